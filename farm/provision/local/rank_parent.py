"""The program that a launcher starts for each MPI rank: starts the rank, and reports how it ended.

The end of a rank's own line has no status, and a launcher's report says little: when one rank ends
it kills the others, and MPICH's mpiexec combines the statuses of all (3 and 5 are 7) and may name a
rank that it has killed. So each rank has a parent that waits for it, reports its exit status to the
supervisor, and then ends in the same way. Parents that were killed report nothing, and those that
were asked to end say so: the first other report is about the rank that failed.

Imports little, and is run by its path without Python's site packages: it costs some 20 ms.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

VARIABLE = "FARM_SUPERVISOR"
"""The environment variable with the supervisor's address: SECRET@HOST:PORT or SECRET@PATH."""

RANK = "farm.provision.local.rank"

DIAL_WITHIN_S = 30.0

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Launchers send these to their children only, SLURM to every process of a step."""


def command() -> list[str]:
    """Return the words that run this file."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__)]


def dial(address: str, kind: str) -> socket.socket:
    """Connect to the supervisor. kind: what the connection is for. Raises OSError."""
    secret, _, where = address.partition("@")
    if where.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(DIAL_WITHIN_S)
        connection.connect(where)
    else:
        host, _, port = where.rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=DIAL_WITHIN_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection)
    connection.settimeout(None)
    connection.sendall(f"{kind} {secret}\n".encode())
    return connection


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel detect within half a minute that the other host is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class RankParent:
    """The rank, and the signals that reach its parent. signalled: whether one did."""

    def __init__(self) -> None:
        self.signalled = False
        self._pid = 0
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.signalled |= number == signal.SIGTERM
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def run(self, arguments: Sequence[str], line: socket.socket) -> int:
        """Run the rank until it ends; return its exit status, or minus the signal that ended it."""
        line.set_inheritable(True)
        read_end, _ = os.pipe()  # the rank ends with this process, which holds the other end
        os.set_inheritable(read_end, True)
        words = [sys.executable, "-u", "-P", "-m", RANK, "--lifeline", str(line.fileno())]
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        self._pid = os.posix_spawn(
            sys.executable, [*words, *arguments], os.environ, setsigmask=masked
        )
        if hasattr(fcntl, "F_SETSIG"):  # the kernel kills the rank; as in farm.machine.lifeline
            fcntl.fcntl(read_end, fcntl.F_SETOWN, self._pid)
            fcntl.fcntl(read_end, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(read_end, fcntl.F_GETFL)
            fcntl.fcntl(read_end, fcntl.F_SETFL, flags | os.O_ASYNC)
        os.close(read_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        # WNOWAIT: keep the process id reserved while a signal may still be passed on.
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_like(status: int) -> None:
    """End this process as its rank has ended, so that the launcher acts on it."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left one if it may
        with contextlib.suppress(OSError):  # of SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(abs(status))


def main(arguments: Sequence[str]) -> None:
    """Run one rank, and end in the same way."""
    address = os.environ.get(VARIABLE)
    if address is None:
        print(
            f"farm: error: {VARIABLE} is not set here: the launcher does not pass the environment "
            f"on; Open MPI's mpiexec does with -x {VARIABLE}",
            file=sys.stderr,
        )
        sys.exit(78)  # EXIT_NOT_LOADED of process.py
    parent = RankParent()
    line = dial(address, "lifeline")
    status = parent.run(arguments, line)
    facts = {"ended": status, "asked": parent.signalled}
    with contextlib.suppress(OSError):
        line.sendall(json.dumps(facts).encode() + b"\n")
    end_like(status)


if __name__ == "__main__":
    main(sys.argv[1:])
