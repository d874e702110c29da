"""The keys of a farm that outlive its front door, so that living workers find the next one.

Whoever has the server's secret can pass for the front door. So it is not in the connection file,
which travels to clients, but in a file of its own beside it, for as long as the farm runs.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import zmq

from farm.transports.connection import Connection

FILE = "farm.key"


def keep_secret(folder: Path, connection: Connection) -> None:
    """Write the server's secret where only its owner can read it."""
    path = folder / FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(connection.server_secret)


def forget_secret(folder: Path) -> None:
    """The farm has stopped: nobody is to take its place."""
    (folder / FILE).unlink(missing_ok=True)


def with_secret(folder: Path, before: Connection) -> Connection | None:
    """The connection of the farm before with its server's secret; None when there is none to it."""
    path = folder / FILE
    with contextlib.suppress(OSError, ValueError, zmq.ZMQError):
        if path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
            return None
        secret = path.read_text(encoding="ascii")
        if before.server_key and zmq.curve_public(secret.encode()).decode() == before.server_key:
            return replace(before, server_secret=secret)
    return None
