"""Connections of another user of this machine, for tests that run as root."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STRANGER = 65534

PROGRAM = """
import os, socket, sys
socket.getaddrinfo("127.0.0.1", 1)  # what it imports, this user may not be able to read
os.setgroups([])
os.setgid({uid})
os.setuid({uid})
sock, kept = None, []
for step in map(eval, sys.stdin):
    answer = b""
    if step[0] == "connect":
        family = socket.AF_UNIX if isinstance(step[1], str) else socket.AF_INET
        if family == socket.AF_INET and ":" in step[1][0]:
            family = socket.AF_INET6
        kept.append(sock)
        sock = socket.socket(family)
        sock.settimeout(30)
        sock.connect(step[1])
    elif step[0] == "send":
        sock.sendall(step[1])
    elif step[0] == "read":
        while part := sock.recv(65536):
            answer += part
            if step[1] and answer.endswith(step[1]):
                break
    else:
        sock.close()
    print(repr(answer), flush=True)
"""


class Stranger:
    """One connection of a process of another user, step by step."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _do(self, *step: Any) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(repr(step), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the stranger's process has failed"
        read = eval(answer)
        assert isinstance(read, bytes)
        return read

    def connect(self, address: tuple[str, int] | str) -> None:
        """Connect to host and port, or the path of a Unix socket; earlier connections stay open."""
        self._do("connect", address)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._do("send", data)

    def read(self, up_to: bytes = b"") -> bytes:
        """Return everything received until the server closes, or the data ends with `up_to`."""
        return self._do("read", up_to)

    def close(self) -> None:
        """Close the connection; the process lives on."""
        self._do("close")


@contextmanager
def stranger(uid: int = STRANGER) -> Iterator[Stranger]:
    """Start a process of that user, which has no connection yet."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(uid=uid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Stranger(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


@contextmanager
def connect_as_stranger(host: str, port: int, uid: int = STRANGER) -> Iterator[Stranger]:
    """Open a connection of another user to that address."""
    with stranger(uid) as made:
        made.connect((host, port))
        yield made


def wait_for_disowned(port: int, count: int = 1) -> None:
    """Wait until the kernel reports that many closed sockets towards `port` as root's."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table.splitlines()[1:]]
        mine = [row for row in rows if row[2].endswith(f":{port:04X}")]
        if len([row for row in mine if row[7] == row[9] == "0"]) >= count:
            return
        time.sleep(0.005)
    raise AssertionError("they never were")
