"""A process that has loaded what every model process needs, and forks model processes.

`process.py` runs it with `--forks`; `warm_parent.py` is its supervisor's side. Forked processes
share the memory of the loaded modules and start without the half second that loading takes. It
never loads a model, whose import may start threads or use a GPU, and never computes. It has one
thread: a fork copies no other one, and a lock that such a thread holds would stay locked.

Each request on the socket of the option is its length, u32 little-endian, and a JSON object of the
new process's words and environment; with it come descriptors, in the order of `DESCRIPTORS`. The
answer is a line with the process id or the error.

The new process is a grandchild whose parent has ended, so that it becomes a child of the
supervisor, which sees its stops and its end whatever becomes of this process. Until the supervisor
has given it a process group, it waits, and belongs to the group of this process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.errors import FarmError
from farm.transports.connection import read_worker_connection

LENGTH = struct.Struct("<I")

DESCRIPTORS = ("output", "go", "lifeline", "status", "record")
"""Of a new process: its log, a pipe that lets it begin, and the options of `process.py`."""

PASSED = DESCRIPTORS[2:]

NAME = "farm-parent"
"""Its name in lists of threads and processes, of at most 15 characters; not those it forks."""

_FORKED = struct.Struct("<ii")
"""The process id and the error number of a fork; one of them is 0."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Sent to all processes of a terminal or a batch job. This one ends with its supervisor."""

_COMM = Path("/proc/self/comm")


def forked(control: int, connect: str) -> list[str]:
    """Fork processes; return in each of them, with its words for the command line.

    connect: their connection file. In the parent itself it does not return.
    """
    forker = _Forker(socket.socket(fileno=control))
    load_the_rest(connect)
    return forker.run()


class _Forker:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._told = control.makefile("rb", buffering=0)
        self._words = len(sys.argv) - 1
        self._name = _COMM.read_text().strip()
        _COMM.write_text(NAME)
        # A handler, not SIG_IGN, which programs that a model starts would inherit.
        self._handlers = {
            number: signal.signal(number, lambda *_: None)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN  # nohup ignores one
        }

    def run(self) -> list[str]:
        # The collector writes to the objects that it visits, which would copy their pages.
        gc.collect()
        gc.freeze()
        self._say({"ready": why_unsafe()})
        while True:
            head, given, *_ = socket.recv_fds(self._control, LENGTH.size, len(DESCRIPTORS))
            if len(head) < LENGTH.size:
                sys.exit(0)  # the supervisor has ended
            wanted = json.loads(self._read(LENGTH.unpack(head)[0]))
            descriptors = dict(zip(DESCRIPTORS, given, strict=True))
            try:
                pid = _orphan(self._control.fileno(), self._name)
            except OSError as error:
                self._say({"error": error.strerror})
            else:
                if pid == 0:
                    return self._begin(wanted["words"], wanted["environment"], descriptors)
                self._say({"pid": pid})
            for descriptor in given:
                os.close(descriptor)

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self._told.read(length - len(data))
            if not more:
                sys.exit(0)
            data += more
        return data

    def _say(self, facts: Mapping[str, object]) -> None:
        try:
            self._control.sendall(json.dumps(facts).encode() + b"\n")
        except OSError:
            sys.exit(0)  # the supervisor has ended

    def _begin(
        self, words: Sequence[str], environment: Mapping[str, str], descriptors: Mapping[str, int]
    ) -> list[str]:
        """Make this process like one that was just started; return the words that it was given."""
        if not os.read(descriptors["go"], 1):
            os._exit(1)  # the supervisor has ended, or has given this process up
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for descriptor in (1, 2):
            os.dup2(descriptors["output"], descriptor)
        self._told.close()
        self._control.detach()
        kept = [descriptors[name] for name in PASSED]
        for descriptor in _open_descriptors():
            if descriptor > 2 and descriptor not in kept:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        numpy_random: Any = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # Python renews the numbers of `random` itself
        importlib.invalidate_caches()  # files may be newer than this process's parent
        options = [word for name in PASSED for word in (f"--{name}", str(descriptors[name]))]
        given = [*options, *words]
        for shown in (sys.orig_argv, sys.argv):
            shown[len(shown) - self._words :] = given
        return given


def load_the_rest(connect: str) -> None:
    """Import what a process imports besides `process.py`, whatever its model.

    connect: its connection file.
    """
    importlib.import_module("importlib.abc")  # used by the loader of files
    with contextlib.suppress(FarmError):  # each process reports it
        there = read_worker_connection(connect)
        if not there.local or there.host != socket.gethostname():
            import farm.transports.zmq.line  # noqa: F401  # so that it is loaded before forks


def why_unsafe() -> str:
    """Return why this process may not be forked, in words; "" if it may."""
    threads = [thread.name for thread in threading.enumerate()]
    if len(threads) > 1:
        return f"it has the threads {', '.join(threads)}"
    # OpenBLAS, which numpy comes with, ends its threads at a fork and starts them when needed.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    count = len(os.listdir("/proc/self/task"))
    return "" if count == 1 else f"it has {count} threads, some of a library that it loads"


def _orphan(control: int, name: str) -> int:
    """Fork a process, a child of another one; return its id, in itself 0. Raises OSError.

    control: the socket, which is closed in it. name: its name, which it has from its first moment.
    """
    read_end, write_end = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            os.close(control)  # the supervisor sees the end of this process when all copies close
            with contextlib.suppress(OSError):
                _COMM.write_text(name)
            if _fork_from_between(write_end) == 0:
                return 0
            os._exit(0)
        os.waitpid(between, 0)
        pid, error = _FORKED.unpack(_read_now(read_end))
    finally:
        os.close(read_end)
        os.close(write_end)
    if error:
        raise OSError(error, os.strerror(error))
    return int(pid)


def _read_now(read_end: int) -> bytes:
    os.set_blocking(read_end, False)  # the new process has a copy of the other end
    try:
        return os.read(read_end, _FORKED.size)
    except BlockingIOError:  # the process between was killed
        sys.exit(1)  # the supervisor then kills all of this group


def _fork_from_between(write_end: int) -> int:
    """Fork the new process; report its id and return it, in itself 0."""
    try:
        pid = os.fork()
        if pid:
            os.write(write_end, _FORKED.pack(pid, 0))
        return pid
    except OSError as error:
        os.write(write_end, _FORKED.pack(0, error.errno or 0))
    except BaseException:
        os._exit(1)
    return -1


def _open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]
