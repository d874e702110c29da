"""Processes that run a module of farm: a fresh interpreter, or forked from one with modules loaded.

`forking.py` is the program of the parent and describes the messages between the two sides. The
start method `forkserver` of `multiprocessing` does not suffice: its processes are children of its
server, not of the process that asked. So their exit statuses are lost with the server, a stop is
not reported, and they belong to the group of the server until they run. A program also has only
one such server, with one environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from farm.machine.forking import options
from farm.machine.lifeline import Lifeline, TiedProcess, new_lifeline
from farm.machine.memory_file import file_of
from farm.machine.programs import in_words, python

CAN_FORK = sys.platform == "linux"
"""Elsewhere, libraries of the system may not be used after a fork."""

LOAD_S = 300.0
"""Time to load in, from a slow file system too. If it takes longer, others start without it."""

FORK_S = 10.0
"""Time to fork in, milliseconds on an idle machine; one that takes longer may have been stopped."""

LONGEST_ANSWER = 4096

_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h

_lock = threading.Lock()
_blocks = 0
_before = 0


class ParentLost(Exception):
    """The process cannot fork: it has ended, or does not answer. The message says why."""


class ForkedProcess:
    """A forked process, a child of this one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def wait(self) -> int:
        """Wait for its end; return its exit status, or minus the signal that ended it."""
        with self._waiting:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self.returncode


class ForkParent(TiedProcess):
    """A process that loads, and then forks on request; started on construction.

    forks: how many processes it has forked; ready: whether it has loaded.

    It ends with this process in every case; the processes that it has forked outlive it.
    """

    def __init__(self, module: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """module: the one of the processes; words: theirs, for lists of processes.

        environment: its environment, which those of the processes extend. Raises OSError.
        """
        self.ready = False
        self.forks = 0
        self.load_until = time.monotonic() + LOAD_S
        self._swept = False
        self._asking = threading.Lock()
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._control.settimeout(FORK_S)
        try:
            with theirs:
                super().__init__(
                    lambda lifeline: [*python(module), f"--forks={theirs.fileno()}", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    # A process that is not forked has the same error, and a log.
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=dict(environment),
                )
        except BaseException:
            self._control.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when it has loaded, or has ended."""
        return self._control.fileno()

    def look(self, now: float) -> bool:
        """Return whether it can fork, False while it loads. Raises ParentLost.

        now: the monotonic time.
        """
        if not self._is_readable():
            if not self.ready and now >= self.load_until:
                raise ParentLost(f"it has not loaded the libraries after {LOAD_S:g} s")
            return self.ready
        facts = self._answer()  # its end, if it is ready: it says nothing unasked
        if facts["ready"]:
            raise ParentLost(str(facts["ready"]))
        self.ready = True
        return True

    def fork(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Mapping[str, int],
        lifeline: Lifeline,
    ) -> ForkedProcess:
        """Fork a process with these words, in a group of its own; from any thread.

        descriptors: `output`, for its printed text, and those that it has options for. lifeline: it
        is tied before any code of the process runs. Raises OSError if no process can be made,
        ParentLost if this one cannot fork any more.
        """
        go_read, go_write = os.pipe()
        given = {"go": go_read, "lifeline": lifeline.read_end, **descriptors}
        request = {"words": words, "environment": dict(environment), "descriptors": list(given)}
        try:
            with self._asking, adopting_orphans():
                pid = self._asked(json.dumps(request).encode(), list(given.values()))
            process = ForkedProcess(pid)
            try:
                os.setpgid(pid, pid)
            except OSError as error:
                raise ParentLost(f"what it forks is no child of its starter: {error}") from None
            lifeline.tie(pid)
            os.write(go_write, b"g")
            self.forks += 1
        finally:
            os.close(go_read)
            os.close(go_write)
        return process

    def _asked(self, request: bytes, descriptors: Sequence[int]) -> int:
        file = file_of([request])
        try:
            socket.send_fds(self._control, [b"."], [file, *descriptors])
            facts = self._answer()
        except OSError as error:
            self._end_group()  # a process that it has just forked is in its group still
            raise ParentLost(f"it does not answer: {error}") from None
        finally:
            os.close(file)
        if "error" in facts:
            raise OSError(f"cannot fork: {facts['error']}")
        return int(str(facts["pid"]))

    def _answer(self) -> Mapping[str, object]:
        """Return what it says, as soon as it does. Raises ParentLost, OSError."""
        with contextlib.suppress(ConnectionResetError):
            if answer := self._control.recv(LONGEST_ANSWER):
                facts: Mapping[str, object] = json.loads(answer)
                return facts
        self._end_group()
        raise ParentLost(f"it has ended: {in_words(self.wait(), out_of_memory=False)}")

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return bool(poll.poll(0))

    def _end_group(self) -> None:
        """Kill it and what it was about to fork, and wait for those that are children of this."""
        self.kill()
        self.wait()
        if not self._swept:  # later its id may be another one's
            self._swept = True
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitid(os.P_PGID, self.pid, os.WEXITED)

    def close(self) -> None:
        """End it and release its resources."""
        self._end_group()
        super().close()
        self._control.close()


class ModuleProcess(TiedProcess):
    """A process that runs a module of farm, in its own group; it ends with this process.

    Its command line is `--lifeline N`, the options of other descriptors, and its words, whether it
    is forked or not.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        output: int,
        descriptors: Mapping[str, int],
        parent: ForkParent | None = None,
    ) -> None:
        """Start it. output: descriptor for what it prints. Raises OSError.

        parent: what it is forked from, which runs the same module; None: it is a fresh interpreter.
        Raises ParentLost, too.
        """
        if parent is None:
            super().__init__(
                lambda lifeline: [
                    *python(module),
                    *options({"lifeline": lifeline, **descriptors}),
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=tuple(descriptors.values()),
            )
            return
        with new_lifeline() as lifeline:
            forked = parent.fork(words, environment, {"output": output, **descriptors}, lifeline)
            self._adopt(forked, lifeline)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt, during the block, the descendants of this process whose parents end. Only on Linux.

    Otherwise the first process of the machine adopts them. Blocks of several threads may overlap.
    Keep the block short: a process that a model has left behind may become an orphan meanwhile, and
    this process would have to wait for it. Raises OSError if the system does not allow it.
    """
    global _blocks, _before
    with _lock:
        if not _blocks:
            was = ctypes.c_int()
            _prctl(_GET_CHILD_SUBREAPER, ctypes.byref(was))
            _prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
            _before = was.value
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and not _before:
                _prctl(_SET_CHILD_SUBREAPER, ctypes.c_ulong(0))


def _prctl(option: int, value: object) -> None:
    rest = [ctypes.c_ulong(0)] * 3
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, *rest):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
