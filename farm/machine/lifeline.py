"""A pipe that ties a group of processes to their starter: they end when it does, for any reason."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol


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
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            kill_at_end_of(self.read_end, -group)
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


class Waitable(Protocol):
    """A child process as `subprocess.Popen` has it: `wait` sets returncode, from any thread."""

    pid: int
    returncode: Any

    def wait(self) -> int:
        """Wait for its end; return its exit status, or minus the signal that ended it."""


class TiedProcess:
    """A process in its own group that ends with this process, for any reason."""

    def __init__(
        self, command: Callable[[int], Sequence[str]], *, pass_fds: Sequence[int] = (), **popen: Any
    ) -> None:
        """Start it. command: from the lifeline's read end to the words; popen: as for `Popen`."""
        with new_lifeline() as lifeline:
            self.process = subprocess.Popen(
                command(lifeline.read_end),
                process_group=0,
                pass_fds=(lifeline.read_end, *pass_fds),
                **popen,
            )
            lifeline.tie(self.process.pid)
        self._adopt(self.process, lifeline)

    def _adopt(self, started: Waitable, lifeline: Lifeline) -> None:
        self._started = started
        self._lifeline = lifeline
        self.pid = started.pid

    def code(self) -> int | None:
        """Return the exit status, or minus the signal that ended it; None while it lives.

        Also kills processes that it started and left behind.
        """
        with contextlib.suppress(ChildProcessError):  # another thread has just waited for it
            if not self.has_ended():
                return None
            if self._started.returncode is None:
                self.kill_group()  # before waiting for it: until then its id cannot be reused
        return self.wait()

    def has_ended(self) -> bool:
        """Whether it has ended; does not wait for it."""
        if self._started.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def lives(self) -> bool:
        """Whether the process is alive."""
        return self.code() is None

    def wait(self) -> int:
        """Wait for its end; return what `code` does then."""
        return self._started.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal to it alone, if it is alive."""
        if self.lives():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and the processes it started, now."""
        if self.lives():  # otherwise its process id may be reused
            self.kill_group()

    def kill_group(self) -> None:
        """Kill it and the processes it started, unless it has been waited for."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and release its resources."""
        self.kill()
        self.wait()
        self._lifeline.cut()


@contextlib.contextmanager
def new_lifeline() -> Iterator[Lifeline]:
    """Yield a lifeline, which is cut if the block fails."""
    lifeline = Lifeline()
    try:
        yield lifeline
    except BaseException:
        lifeline.cut()
        raise


def kill_at_end_of(descriptor: int, owner: int) -> None:
    """Have the kernel send SIGKILL to a process, or to group -owner, when the other end closes.

    Only where it can: on Linux. Nothing may be written to the other end.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, owner)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)


def end_with(read_end: int) -> None:
    """End this process when the holder of the write end ends, also if the kernel does not do it.

    Programs that this process starts do not inherit the read end.
    """
    os.set_inheritable(read_end, False)

    def watch() -> None:
        poll = select.poll()
        poll.register(read_end, 0)  # the end of a pipe shows as POLLHUP
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
