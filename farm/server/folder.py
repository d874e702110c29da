"""The run folder of a farm, which one running farm has for itself."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from farm.errors import Unavailable
from farm.machine.private import make_private_folder
from farm.transports.connection import CLIENTS_FILE, read_connection
from farm.transports.reach import accepts_tcp
from farm.wording import worded

RUN_FOLDER = ("farm.*", ".farm.*", "workers.*", "logs", "jobs", "experiments.db*")
"""Files that farms create in a run folder; a folder with other files is not farm's alone."""


def take_folder(folder: Path) -> None:
    """Claim the run folder. Raises Unavailable if a running farm uses it."""
    try:
        make_private_folder(folder, known=RUN_FOLDER)
    except OSError as error:
        raise Unavailable(f"run folder {folder} cannot be made: {error}") from None
    try:
        before = read_connection(folder / CLIENTS_FILE)
    except Unavailable:
        return
    if before.host == socket.gethostname() and _lives(before.pid):
        raise Unavailable(
            f"a farm (process {before.pid}) runs in {folder} already; "
            f"stop it, or give this one its own {worded('--dir', 'dir=')}"
        )
    if before.host != socket.gethostname() and accepts_tcp(before.endpoint):
        raise Unavailable(
            f"a farm on {before.host} runs in {folder} already, as something answers at "
            f"{before.endpoint}; stop it, or give this one its own "
            f"{worded('--dir', 'dir=')}"
        )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid() and not _has_ended(pid)


def _has_ended(pid: int) -> bool:
    """Whether the process is a zombie: it has ended, and its parent has not reaped it yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # no such file system, or the process is gone
        return False
    return stat.rpartition(b")")[2].split()[0] in (b"Z", b"X")  # proc(5)
