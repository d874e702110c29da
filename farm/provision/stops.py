"""Measures how long a process has been stopped, as by SIGSTOP, without being continued.

A stopped process keeps its sockets open, so nothing but its state shows that it does not run.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LONGEST_STEP_S = 1.0
"""Time counted between two looks at most. A supervisor that was stopped along with its processes,
as `scontrol suspend` does, must not find after it is continued that they were stopped for hours."""


class StopClock:
    """Adds up the time for which a process is seen stopped."""

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._stopped_s = 0.0

    def look(self, now: float, *, stopped: bool) -> float:
        """Seconds for which it has been stopped; 0.0 when it runs, or stopped just now."""
        if not stopped:
            self._looked_at = None
            return 0.0
        if self._looked_at is None:
            self._stopped_s = 0.0
        else:
            self._stopped_s += min(now - self._looked_at, LONGEST_STEP_S)
        self._looked_at = now
        return self._stopped_s

    def restart(self) -> None:
        """Count from the next look on: the process has run in between."""
        self._looked_at = None


class ChildStops:
    """The stops of a child of this process, as the kernel reports them to its parent.

    Each stop is reported once (waitid(2) without WNOWAIT), so a process that is stopped and
    continued all the time, as cpulimit does, counts from its last stop. A process that waits at a
    breakpoint of a debugger is not reported: whoever attached the debugger decides about it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = False
        self._clock = StopClock()

    def stopped_s(self, now: float) -> float:
        """Seconds for which the child has been stopped."""
        with contextlib.suppress(ChildProcessError):  # it has ended
            options = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
            while (event := os.waitid(os.P_PID, self._pid, options)) is not None:
                self._stopped = event.si_code == os.CLD_STOPPED
                self._clock.restart()
        return self._clock.look(now, stopped=self._stopped)


class ProcessStops:
    """The stops of a process of this machine that is no child. Linux only; elsewhere it sees none.

    Its state and its processor time are in /proc/PID/stat (proc(5)): state `T`, whereas `t` is a
    stop for a debugger. If the processor time has changed, it ran since the last look.
    """

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        self._stat = proc / str(pid) / "stat"
        self._ticks: list[bytes] = []
        self._clock = StopClock()

    def stopped_s(self, now: float) -> float:
        """Seconds for which the process has been stopped."""
        try:
            fields = self._stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            fields = [b"X"]
        ticks, before = fields[11:13], self._ticks
        self._ticks = ticks
        if ticks != before:
            self._clock.restart()
        return self._clock.look(now, stopped=fields[0] == b"T")
