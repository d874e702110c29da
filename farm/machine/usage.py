"""Memory and processor time of processes of this machine, and of the programs they started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

MOST = 256
"""Processes that are counted: a model that starts thousands must not slow its worker down."""

LEAST_S = 0.5
"""Shortest time over which processor use is measured: the kernel counts in steps of 10 ms."""

UTIME, STIME, CUTIME, CSTIME, RSS = 11, 12, 13, 14, 21
"""Positions in /proc/PID/stat behind the name of the program (proc(5)); times in clock ticks."""


class UsageMeter:
    """Reads what processes use, in well under a millisecond; not for several threads at once."""

    def __init__(
        self,
        pids: Sequence[int] = (),
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pids: the processes; by default this one."""
        self._pids = pids or (os.getpid(),)
        self._proc = proc
        self._clock = clock
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._before = self._sample()[1:]
        self._processor: float | None = None

    def read(self) -> tuple[int | None, float | None]:
        """Return the resident memory in bytes and the mean cores used lately; None: unknown."""
        memory, spent_s, now = self._sample()
        spent_before_s, before = self._before
        if spent_s is None or spent_before_s is None:
            self._processor = None
        elif now - before >= LEAST_S:
            # A program that its parent does not wait for takes its time with it.
            self._processor = max(0.0, spent_s - spent_before_s) / (now - before)
        else:
            return memory, self._processor
        self._before = spent_s, now
        return memory, self._processor

    def _sample(self) -> tuple[int | None, float | None, float]:
        """Return the memory in bytes, the processor time in seconds, and the time."""
        now = self._clock()
        found = list(self._all())
        if not found:
            return None, self._own_time(), now
        pages = sum(fields[RSS] for fields in found)
        # Of programs that ended their parent has the time.
        ticks = sum(f[UTIME] + f[STIME] + f[CUTIME] + f[CSTIME] for f in found)
        return pages * self._page, ticks / self._ticks_per_s, now

    def _own_time(self) -> float | None:
        """Return this process's time where no /proc shows it."""
        if self._pids != (os.getpid(),):
            return None
        return sum(os.times()[:4])

    def _all(self) -> Iterator[list[int]]:
        """Yield the numbers in the stat of each process, and of those that it started."""
        open_, seen = list(self._pids), set(self._pids)
        while open_:
            pid = open_.pop()
            try:
                stat = (self._proc / str(pid) / "stat").read_bytes()
            except OSError:  # it has ended
                continue
            # The first field is a letter, the state.
            yield [0, *map(int, stat.rpartition(b")")[2].split()[1:])]
            new = [child for child in self._children(pid) if child not in seen]
            del new[max(0, MOST - len(seen)) :]
            seen.update(new)
            open_ += new

    def _children(self, pid: int) -> list[int]:
        """Return what its threads have started; nothing where the kernel does not tell."""
        found: list[int] = []
        try:
            for thread in (self._proc / str(pid) / "task").iterdir():
                found += map(int, (thread / "children").read_bytes().split())
        except OSError:
            pass
        return found
