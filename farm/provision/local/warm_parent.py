"""The process that a supervisor's model processes are forked from, from the supervisor's side.

`warm.py` is its program and describes what the two send.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from farm.machine.lifeline import TiedProcess
from farm.machine.programs import in_words, python
from farm.provision.local.warm import DESCRIPTORS, LENGTH

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
    """A forked process, a child of this one. It has of `subprocess.Popen` what `Child` needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended and been waited for."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for its end; return its exit status, or minus the signal that ended it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class WarmParent:
    """A process that loads, and then forks on request; started on construction.

    environment: its environment, which those of the forked processes extend; folder: where it was
    started; forks: how many processes it has forked; ready: whether it has loaded.

    It ends with this process in every case; the processes that it has forked outlive it.
    """

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], *, folder: str = ""
    ) -> None:
        """words: those of the processes, for lists of processes. Raises OSError."""
        self.environment = environment
        self.folder = folder
        self.ready = False
        self.forks = 0
        self.load_until = time.monotonic() + LOAD_S
        self._unread = b""
        self._control, theirs = socket.socketpair()
        self._control.settimeout(FORK_S)
        program = python("farm.provision.local.process")
        try:
            with theirs:
                self._process = TiedProcess(
                    lambda lifeline: [*program, f"--forks={theirs.fileno()}", *words],
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
        self.pid = self._process.pid

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
        told = self._answer()  # its end, if it is ready: it says nothing unasked
        if told["ready"]:
            raise ParentLost(str(told["ready"]))
        self.ready = True
        return True

    def fork(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: int,
        passed: Mapping[str, int],
        tie: Callable[[int], None],
    ) -> ForkedProcess:
        """Fork a process that runs `process.py` with these words, in a group of its own.

        output: descriptor of its log; passed: those of its options, `PASSED`. tie: called with
        its process id before any code of the process runs. Raises OSError if no process can be
        made, ParentLost if this one cannot fork any more.
        """
        go_read, go_write = os.pipe()
        given = {"output": output, "go": go_read, **passed}
        body = json.dumps({"words": list(words), "environment": dict(environment)}).encode()
        try:
            with adopting_orphans():
                pid = self._asked(LENGTH.pack(len(body)), body, [given[n] for n in DESCRIPTORS])
            process = ForkedProcess(pid)
            try:
                os.setpgid(pid, pid)
            except OSError as error:
                raise ParentLost(f"what it forks is no child of its supervisor: {error}") from None
            tie(pid)
            os.write(go_write, b"g")
            self.forks += 1
        finally:
            os.close(go_read)
            os.close(go_write)
        return process

    def _asked(self, head: bytes, body: bytes, descriptors: Sequence[int]) -> int:
        try:
            socket.send_fds(self._control, [head], descriptors)
            self._control.sendall(body)
            told = self._answer()
        except (OSError, ParentLost) as error:
            # A process that it has just forked is in its group still.
            self._end_group()
            if isinstance(error, ParentLost):
                raise
            raise ParentLost(f"it does not answer: {error}") from None
        if "error" in told:
            raise OSError(f"cannot fork: {told['error']}")
        return int(str(told["pid"]))

    def _answer(self) -> Mapping[str, object]:
        """Return what it says, as soon as it does. Raises ParentLost, OSError."""
        while b"\n" not in self._unread:
            with contextlib.suppress(ConnectionResetError):
                more = self._control.recv(LONGEST_ANSWER)
                if more:
                    self._unread += more
                    continue
            raise ParentLost(self._why_ended())
        line, self._unread = self._unread.split(b"\n", 1)
        facts: Mapping[str, object] = json.loads(line)
        return facts

    def _why_ended(self) -> str:
        self._end_group()
        code = self._process.process.returncode
        return f"it has ended: {in_words(code, out_of_memory=False)}"

    def _is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return bool(poll.poll(0))

    def _end_group(self) -> None:
        """Kill it and what it was about to fork, and wait for those that are children of this."""
        process = self._process.process
        if process.returncode is not None:
            return  # its id may be another one's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        process.wait()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitid(os.P_PGID, self.pid, os.WEXITED)

    def close(self) -> None:
        """End it and release its resources."""
        self._end_group()
        self._process.close()
        self._control.close()


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
    nothing = ctypes.c_ulong(0)
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:
        raise OSError("this system has no prctl(2)") from None
    if prctl(option, value, nothing, nothing, nothing):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
