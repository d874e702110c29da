"""Ports of containers that share the host's network: a free one, and whose server listens there.

Between the choice of a port and the start of the server, another program may take the port, such as
the container of another worker with another model.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

LISTENS = "0A"
"""The state TCP_LISTEN in /proc/net/tcp (proc(5))."""


def free_port() -> int:
    """Return a port that is free on all addresses now."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return port


def is_anothers(port: int, group: int) -> bool:
    """Whether a program outside process group `group` and its children listens at the port.

    False if it is not known: on systems without /proc, and for processes that hide their files.
    """
    inodes = set()
    for uid, inode in _listeners(port):
        if uid != os.getuid():
            return True
        inodes.add(f"socket:[{inode}]")
    owners = [pid for pid in _pids() if inodes & _sockets(pid)]
    return bool(owners) and not any(_belongs(pid, group) for pid in owners)


def _listeners(port: int) -> Iterator[tuple[int, str]]:
    """Yield user and inode of each socket that listens at the port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    yield int(words[7]), words[9]


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _sockets(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _belongs(pid: int, group: int) -> bool:
    """Whether a process is in the group, or a descendant of a process in it."""
    while pid > 1:
        try:
            if os.getpgid(pid) == group:
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
