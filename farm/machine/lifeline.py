"""A pipe that ties a group of processes to their starter: they end when it does, for any reason."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any


class Lifeline:
    """The starter keeps the write end; the child inherits `read_end` and sees its end of file.

    On Linux the kernel itself sends SIGKILL to the child's group when the write end closes, even
    after SIGKILL of the starter and while C code holds the child's interpreter. Elsewhere the
    child has to watch `read_end`; see `farm.provision.local.process`.

    The pipe's owner and signal belong to the open file, so the child keeps them over exec
    (fcntl(2), F_SETSIG). PR_SET_PDEATHSIG is not sufficient: it fires when the *thread* that forked
    ends, and reaches one process, not its children.
    """

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()

    def tie(self, group: int) -> None:
        """Tie process group `group`, which inherited the read end; close this process's copy.

        A starter that is killed before this, some 0.1 ms after the start, leaves the group running
        unless it watches `read_end` itself.
        """
        _signal(self.read_end, group)
        self._close_read_end()

    def hand_over(self) -> None:
        """Close this process's copy of the read end; the child ties itself by `tie_to`."""
        self._close_read_end()

    def cut(self) -> None:
        """Close the write end, which kills the remaining processes. May be called twice."""
        self._close_read_end()
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def _close_read_end(self) -> None:
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1


class TiedProcess:
    """A process in its own group that ends with this process, for any reason."""

    def __init__(
        self, command: Callable[[int], Sequence[str]], *, pass_fds: Sequence[int] = (), **popen: Any
    ) -> None:
        """Start it. command: from the lifeline's read end to the words; popen: as for `Popen`."""
        self._lifeline = Lifeline()
        try:
            self.process = subprocess.Popen(
                command(self._lifeline.read_end),
                process_group=0,
                pass_fds=(self._lifeline.read_end, *pass_fds),
                **popen,
            )
        except BaseException:
            self._lifeline.cut()
            raise
        self.pid = self.process.pid
        self._lifeline.tie(self.pid)

    def lives(self) -> bool:
        """Whether the process is alive."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill it and the processes it started, now."""
        if self.lives():  # otherwise its process id may be reused
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and release its resources."""
        self.kill()
        self.process.wait()
        self._lifeline.cut()


def tie_to(read_end: int) -> None:
    """End this process, the leader of its group, and the group when the write end closes."""
    _signal(read_end, os.getpid())
    end_with(read_end)  # also if the write end closed before


def _signal(read_end: int, group: int) -> None:
    """Have the kernel kill a process group when the write end closes, where it can."""
    if hasattr(fcntl, "F_SETSIG"):
        # The group may have ended already.
        with contextlib.suppress(ProcessLookupError):
            fcntl.fcntl(read_end, fcntl.F_SETOWN, -group)
            fcntl.fcntl(read_end, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(read_end, fcntl.F_GETFL)
            fcntl.fcntl(read_end, fcntl.F_SETFL, flags | os.O_ASYNC)


def end_with(read_end: int) -> None:
    """End this process when the holder of the write end ends, also if the kernel does not do it."""

    def watch() -> None:
        poll = select.poll()
        poll.register(read_end, 0)  # the end of a pipe shows as POLLHUP
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
