"""Measures how long a process has been stopped, as by SIGSTOP, without being continued.

A stopped process keeps its sockets open, so only its state shows that it does not run.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LONGEST_STEP_S = 1.0
"""Maximum time counted between two checks. A supervisor that was stopped along with its processes,
as by `scontrol suspend`, must not conclude after it continues that they were stopped for hours.
"""


class StopClock:
    """Adds up the time for which a process is seen stopped."""

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._stopped_s = 0.0

    def look(self, now: float, *, stopped: bool) -> float:
        """Return the seconds for which it has been stopped; 0.0 if it runs, or stopped just now."""
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
        """Count from the next check on: the process has run in between."""
        self._looked_at = None


class ChildStops:
    """The stops of a child of this process, as the kernel reports them to its parent.

    Each stop is reported once (waitid(2) without WNOWAIT), so a process that is stopped and
    continued repeatedly, as cpulimit does, counts from its last stop. A process that waits at a
    breakpoint of a debugger is not reported: that is left to the debugger's user.
    stopped: whether it was stopped when `stopped_s` was last asked.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.stopped = False
        self._clock = StopClock()

    def stopped_s(self, now: float) -> float:
        """Return the seconds for which the child has been stopped."""
        with contextlib.suppress(ChildProcessError):  # it has ended
            options = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
            while (event := os.waitid(os.P_PID, self._pid, options)) is not None:
                self.stopped = event.si_code == os.CLD_STOPPED
                self._clock.restart()
        return self._clock.look(now, stopped=self.stopped)


def child_events() -> bool:
    """Whether a child of this process has ended, stopped or continued since that was last asked.

    One system call for all children; it leaves the events to those who wait for one child.
    """
    options = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_ALL, 0, options) is not None
    except ChildProcessError:  # there is none
        return False


class ProcessStops:
    """The stops of a process of this machine that is not a child. Only Linux shows them.

    Its state and its processor time are in /proc/PID/stat (proc(5)): state `T`, whereas `t` is a
    stop for a debugger. If the processor time has changed, it ran since the last check.
    """

    def __init__(self, pid: int, *, proc: Path = Path("/proc")) -> None:
        self._stat = proc / str(pid) / "stat"
        self._ticks: list[bytes] = []
        self._clock = StopClock()

    def stopped_s(self, now: float) -> float:
        """Return the seconds for which the process has been stopped."""
        try:
            fields = self._stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            fields = [b"X"]
        ticks, before = fields[11:13], self._ticks
        self._ticks = ticks
        if ticks != before:
            self._clock.restart()
        return self._clock.look(now, stopped=fields[0] == b"T")
