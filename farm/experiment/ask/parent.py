"""A process that has the libraries of surrogates loaded, and forks a process for each experiment.

    python -m farm.experiment.ask.parent LIFELINE CONTROL [load]

Forked processes share the memory of the libraries, and start without the seconds that importing
them takes. This process has one thread and never computes: a fork copies no other thread, and a
lock that such a thread holds would stay locked in the child.

Each byte on the socket CONTROL asks for a process and carries three descriptors: the socket of its
work, its lifeline, and a pipe on which this process writes the child's process id and, when it has
ended, its exit status, as i32 little-endian.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable

from farm.experiment.ask import fitter
from farm.experiment.ask.execute import load

NEWS = struct.Struct("<i")
"""A process id, and then an exit status; negative for a signal."""

ASKED = b"+"
DESCRIPTORS = 3


def main(lifeline: int, control: int, *, libraries: bool) -> int:
    """Fork processes until the socket or the lifeline closes; return the exit status."""
    fitter.be_killed_first(700)  # after its children, which can be replaced one by one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is handled by the server
    os.dup2(2, 1)  # a library's greeting must not mix with the server's output
    # Elsewhere than on Linux, libraries of the system may not be used after a fork.
    if libraries and sys.platform == "linux":
        # The work of each child imports them again, and reports the error.
        with contextlib.suppress(Exception):
            load()
    # The collector writes to the objects that it visits, which would copy their pages.
    gc.collect()
    gc.freeze()
    return _Parent(lifeline, socket.socket(fileno=control)).run()


class _Parent:
    def __init__(self, lifeline: int, control: socket.socket) -> None:
        self._lifeline = lifeline
        self._control = control
        self._news: dict[int, int] = {}  # by the child's process id
        self._woken, self._wakes = os.pipe()
        for end in (self._woken, self._wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)

    def run(self) -> int:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        poll.register(self._lifeline, 0)  # the end of a pipe shows as POLLHUP
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._lifeline in ready:
                return 1
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._control.fileno() in ready:
                asked, given, *_ = socket.recv_fds(self._control, len(ASKED), DESCRIPTORS)
                if not asked:
                    return 0
                for descriptor in given:  # not for programs that a library starts
                    os.set_inheritable(descriptor, False)
                self._fork(*given)

    def _fork(self, channel: int, lifeline: int, news: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # the server sees its ends close
            print(f"cannot start a process to fit a surrogate: {error}", file=sys.stderr)
            os.close(news)
        else:
            if pid == 0:
                _in_child(lambda: self._work(channel, lifeline, news))
            self._news[pid] = news
            self._tell(news, pid)
        for descriptor in (channel, lifeline):
            os.close(descriptor)

    def _work(self, channel: int, lifeline: int, news: int) -> int:
        """Do an experiment's work, in the child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        # A pipe ends for its reader only when every copy of the other end is closed.
        for descriptor in (self._lifeline, self._woken, self._wakes, news, *self._news.values()):
            os.close(descriptor)
        os.setpgid(0, 0)
        return fitter.main(lifeline, channel)

    def _reap(self) -> None:
        """Report the children that have ended."""
        while self._news:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            news = self._news.pop(pid)
            self._tell(news, os.waitstatus_to_exitcode(status))
            os.close(news)

    @staticmethod
    def _tell(news: int, value: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the server has given the process up
            os.write(news, NEWS.pack(value))


def _in_child(work: Callable[[], int]) -> None:
    """End the process by the status of `work`, without running what the parent has to run."""
    status = 1
    try:
        status = work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), libraries="load" in sys.argv[3:]))
