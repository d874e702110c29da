"""The program of a process that has loaded modules, and forks processes that begin with them.

A module of farm that can be forked runs `forked` if its first option is `--forks`; the other side
is `fork_parent.py`. Forked processes share the memory of the loaded modules and start without the
time that loading takes. The parent never computes and never loads a user's model, whose import may
start threads or use a GPU. It has one thread: a fork copies no other one, and a lock that such a
thread holds would stay locked.

Each request on the socket of the option is one byte with descriptors: of a memory file with a JSON
object of the new process's words, its environment and the names of the other descriptors, and
these. The answer is a JSON object with the process id or the error.

The new process is a grandchild whose parent has ended, so that it becomes a child of the process
that asked, which sees its stops and its end whatever becomes of this process. Until that one has
given it a process group, it waits, and belongs to the group of this process.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farm.machine.memory_file import frames_in

MOST_DESCRIPTORS = 16

NAME = "farm-parent"
"""Its name in lists of threads and processes, of at most 15 characters; not those it forks."""

_FORKED = struct.Struct("<ii")
"""The process id and the error number of a fork; one of them is 0."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Sent to all processes of a terminal or a batch job. This one ends with its starter."""

_COMM = Path("/proc/self/comm")


def options(descriptors: Mapping[str, int]) -> list[str]:
    """Return the options of a module's command line that pass descriptors on."""
    return [word for name, number in descriptors.items() for word in (f"--{name}", str(number))]


def forked(control: int, load: Callable[[], object]) -> list[str]:
    """Load modules and fork processes; return in each of them, with the words of its command line.

    control: descriptor of the socket. In the parent itself it does not return.
    """
    forker = _Forker(socket.socket(fileno=control))
    load()
    return forker.run()


class _Forker:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._words = len(sys.argv) - 1
        self._name = _COMM.read_text().strip()
        _COMM.write_text(NAME)
        # A handler, not SIG_IGN, which programs that a forked process starts would inherit.
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
            _, received, *_ = socket.recv_fds(self._control, 1, MOST_DESCRIPTORS)
            if not received:
                sys.exit(0)  # the starter has ended
            request = json.loads(bytes(frames_in(received[0])[0]))
            descriptors = dict(zip(request["descriptors"], received[1:], strict=True))
            try:
                pid = _orphan(self._control.fileno(), self._name)
            except OSError as error:
                self._say({"error": error.strerror})
            else:
                if pid == 0:
                    return self._begin(request["words"], request["environment"], descriptors)
                self._say({"pid": pid})
            for descriptor in received:
                os.close(descriptor)

    def _say(self, facts: Mapping[str, object]) -> None:
        try:
            self._control.send(json.dumps(facts).encode())
        except OSError:
            sys.exit(0)  # the starter has ended

    def _begin(
        self, words: Sequence[str], environment: Mapping[str, str], descriptors: dict[str, int]
    ) -> list[str]:
        """Make this process like one that was just started; return the words of its command line.

        descriptors: `go`, on which it is told to begin; `output`, for what it prints; and those
        that it has options for.
        """
        if not os.read(descriptors.pop("go"), 1):
            os._exit(1)  # the starter has ended, or has given this process up
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        output = descriptors.pop("output")
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        self._control.detach()
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in descriptors.values():
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        numpy_random: Any = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed()  # Python renews the numbers of `random` itself
        importlib.invalidate_caches()  # files may be newer than this process's parent
        line = [*options(descriptors), *words]
        for shown in (sys.orig_argv, sys.argv):
            shown[len(shown) - self._words :] = line
        return line


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
    os.set_blocking(read_end, False)  # the new process has a copy of the other end
    try:
        between = os.fork()
        if between == 0:
            os.close(control)  # the starter sees the end of this process when all copies close
            with contextlib.suppress(OSError):
                _COMM.write_text(name)
            if _fork_from_between(write_end) == 0:
                return 0
            os._exit(0)
        os.waitpid(between, 0)
        try:
            pid, error = _FORKED.unpack(os.read(read_end, _FORKED.size))
        except BlockingIOError:  # the process between was killed
            sys.exit(1)  # the starter then kills all of this group
    finally:
        os.close(read_end)
        os.close(write_end)
    if error:
        raise OSError(error, os.strerror(error))
    return int(pid)


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
