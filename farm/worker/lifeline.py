"""A pipe that ties a group of processes to the one that started it: they die with it, however."""

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

    On Linux the kernel itself sends SIGKILL to the child's group when the write end closes, be it
    by SIGKILL of the starter and while the child's interpreter is held by C code. Elsewhere the
    child has to watch `read_end`; see `farm.provision.process`.

    The pipe's owner and signal belong to the open file, so the child keeps them over exec
    (fcntl(2), F_SETSIG). PR_SET_PDEATHSIG would not do: it fires when the *thread* that forked
    ends, and reaches one process, not its children.
    """

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()

    def tie(self, group: int) -> None:
        """Tie process group `group`, which holds the read end; this process lets go of it."""
        if hasattr(fcntl, "F_SETSIG"):
            # The group may be gone already.
            with contextlib.suppress(ProcessLookupError):
                fcntl.fcntl(self.read_end, fcntl.F_SETOWN, -group)
                fcntl.fcntl(self.read_end, fcntl.F_SETSIG, signal.SIGKILL)
                flags = fcntl.fcntl(self.read_end, fcntl.F_GETFL)
                fcntl.fcntl(self.read_end, fcntl.F_SETFL, flags | os.O_ASYNC)
        self._close_read_end()

    def cut(self) -> None:
        """Let go: what still lives of the group dies. May be called twice."""
        self._close_read_end()
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def _close_read_end(self) -> None:
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1


class TiedProcess:
    """A process in a group of its own that ends with this one, however this one ends."""

    def __init__(
        self, command: Callable[[int], Sequence[str]], *, pass_fds: Sequence[int] = (), **popen: Any
    ) -> None:
        """Start it. command: its words, given the read end of its lifeline; popen: as `Popen`."""
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
        """Whether it could work."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it and what it has started, now."""
        if self.lives():  # else its number may be another's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it and let go of what is held for it."""
        self.kill()
        self.process.wait()
        self._lifeline.cut()


def end_with(read_end: int) -> None:
    """End this process with the one that holds the other end, also where the kernel does not."""

    def watch() -> None:
        poll = select.poll()
        poll.register(read_end, 0)  # the end of a pipe shows as POLLHUP
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
