"""The command `farm` in processes that are forked instead of started: they import nothing again.

A test that runs `farm serve` waits half a second of processor time for imports, in a suite with
hundreds of farms. A parent imports them once for each process of the suite and forks on request.
What it forks is a child of the test's process, like any other, with its own folder, environment
and streams. Tests of the start itself run `FARM` of `dispatcher_farm.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from farm.machine.fork_parent import adopting_orphans

LENGTH = struct.Struct("!I")

ALSO = ("farm.cli.front_door", "farm.server.farm", "fastapi", "uvloop")
"""What `farm serve` imports, in addition to the commands' modules and the protocols."""


def interpreter_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python reads at its start, such as PYTHONPATH."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


SETTINGS = interpreter_settings(os.environ)
"""Those of all that is forked; what needs others must be started."""


MAY_IGNORE = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Signals that a program ignores if the one that started it did, as under `nohup`."""

ONE_AT_A_TIME = threading.Lock()
"""For the line to the parent, which several threads of a test may use."""


class ForkedCommand(subprocess.Popen[str]):
    """A running `farm` with the arguments `args`; text streams."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        """Fork instead of executing a program; called by the constructor."""
        _, _, _, _, cwd, env, _, _, _, *ends = given
        stdin, _, _, stdout, _, stderr = ends[:6]
        ignored = [int(each) for each in MAY_IGNORE if signal.getsignal(each) is signal.SIG_IGN]
        folder = os.path.abspath(cwd or "")  # the parent stands in another
        body = json.dumps([list(args), folder, dict(env), ignored]).encode()
        try:
            with adopting_orphans():
                self.pid = _ask(body, [stdin, stdout, stderr])
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends[:6])  # type: ignore[attr-defined]  # of subprocess itself


@cache
def _parent() -> socket.socket:
    """Start the parent of all commands; it ends with this process."""
    ours, theirs = socket.socketpair()
    with theirs:
        parent = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_commands", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
            | SETTINGS,
            cwd=Path(__file__).parents[2],
        )

    def end() -> None:
        ours.close()
        parent.wait()

    atexit.register(end)
    return ours


def _ask(body: bytes, streams: list[int]) -> int:
    with ONE_AT_A_TIME:
        parent = _parent()
        socket.send_fds(parent, [LENGTH.pack(len(body))], streams)
        parent.sendall(body)
        pid: int = LENGTH.unpack(_exactly(parent, LENGTH.size))[0]
    return pid


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


# In the parent


def _imports() -> None:
    from farm import protocols
    from farm.cli import COMMANDS

    names = [place.partition(":")[0] for place in COMMANDS.values()]
    names += [m.name for m in pkgutil.walk_packages(protocols.__path__, "farm.protocols.")]
    for name in [*names, *ALSO]:
        with contextlib.suppress(ImportError):  # of an extra that is not installed here
            importlib.import_module(name)


def _serve(connection: socket.socket) -> list[str] | None:
    """Fork on request; return the arguments in a forked process, None at the end."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
        if not head:
            return None
        body = _exactly(connection, LENGTH.unpack(head)[0])
        read_pid, write_pid = os.pipe()
        go_read, go_write = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if pid:  # its child becomes one of the test's process
                os.write(write_pid, LENGTH.pack(pid))
                os._exit(0)
            os.close(go_write)
            os.read(go_read, 1)  # until then
            for descriptor in (read_pid, write_pid, go_read):
                os.close(descriptor)
            connection.close()
            return _become(streams, *json.loads(body))
        os.waitpid(between, 0)
        pid_of = os.read(read_pid, LENGTH.size)
        for descriptor in (read_pid, write_pid, go_read, go_write, *streams):
            os.close(descriptor)
        connection.sendall(pid_of)


def _become(
    streams: list[int],
    arguments: list[str],
    cwd: str,
    environment: dict[str, str],
    ignored: list[int],
) -> list[str]:
    """Take over streams, folder, environment and ignored signals of the command."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = os.getcwd()  # as for `python -m farm`
    sys.argv[1:] = arguments
    for number in MAY_IGNORE:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else default)
    return arguments


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test's process ends this one
    connection = socket.socket(fileno=int(sys.argv[1]))
    _imports()
    gc.freeze()
    with contextlib.suppress(EOFError):
        if _serve(connection) is not None:
            from farm.cli import main

            main()


if __name__ == "__main__":
    _main()
