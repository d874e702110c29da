"""Socket files: create the one on which a farm listens for its own user, and dial it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from farm.errors import Unavailable
from farm.machine.keeper_line import keeper
from farm.machine.peer import peer_uid
from farm.machine.private import short_folder
from farm.transports.stream.line import StreamLine

FILE = "farm.sock"

KEPT_AS = "native"
"""Name of the socket at the keeper of a front door."""

LONGEST_PATH = 100
"""A socket's path has room for 108 bytes, on some systems for 104 (unix(7))."""

DIAL_WITHIN_S = 10.0
"""A listener that accepts no connection for this long is treated as absent."""

DIAL_AGAIN_S = 0.01

BACKLOG = 1024


class ListeningSocket:
    """A listening socket and its file, accessible to this user only.

    path: in `folder` if possible, else in a new private temporary folder: a path may be too
    long for a socket, and some file systems have no sockets. An existing file is replaced, so make
    sure that no living farm owns it. A front door that was started again listens at the socket of
    its predecessor. Raises Unavailable.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.path.abspath(folder))
        line = keeper()
        kept = None if line is None else line.take(KEPT_AS)
        if kept is not None:
            self.socket = kept
            self.path = Path(kept.getsockname()).with_name(FILE)  # bound before it was renamed
        if kept is None or not self.path.exists():
            self._listen()
            if line is not None:
                line.hand(KEPT_AS, self.socket)
        self._inode = self.path.stat().st_ino

    def _listen(self) -> None:
        self.path = self._folder / FILE
        try:
            self.socket = _listening(self.path)
        except OSError:
            import tempfile  # workers import this module to dial

            try:
                self.path = Path(tempfile.mkdtemp(prefix="farm-", dir=short_folder())) / FILE
                self.socket = _listening(self.path)
            except OSError as error:
                self._remove()
                raise Unavailable(f"cannot listen at a unix socket: {error}") from None

    def close(self) -> None:
        """Close the socket and remove its file, unless another farm has replaced the file."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        self._remove()

    def _remove(self) -> None:
        """Remove the temporary folder, if the socket's file is in one."""
        if self.path.parent != self._folder:
            import shutil

            shutil.rmtree(self.path.parent, ignore_errors=True)


def _listening(path: Path) -> socket.socket:
    """Return a socket that listens at `path`. Raises OSError."""
    temporary = path.with_name(f".farm.{os.getpid()}")
    if len(os.fsencode(temporary)) > LONGEST_PATH or len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(f"{path} is too long for a socket")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        listening.bind(os.fspath(temporary))
        # Connecting is possible only after listen(), so this order leaves no gap.
        temporary.chmod(0o600)
        listening.setblocking(False)
        listening.listen(BACKLOG)
        temporary.replace(path)
    except BaseException:
        listening.close()
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return listening


def _connect(dialed: socket.socket, path: str, until: float) -> None:
    """Connect; retry while the accept queue is full. Raises OSError."""
    while True:
        dialed.settimeout(max(0.01, until - time.monotonic()))
        try:
            dialed.connect(path)
            return
        except BlockingIOError:  # connect() on a unix socket does not wait
            if time.monotonic() > until:
                raise
            time.sleep(DIAL_AGAIN_S)


def dial_path(path: str, name: str) -> StreamLine | None:
    """Return a line, under `name`, to the farm that listens at `path`; None if none does.

    A socket of another user counts as none: both ends talk only to their own user.
    """
    dialed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _connect(dialed, path, time.monotonic() + DIAL_WITHIN_S)
        if peer_uid(dialed) == os.getuid():
            line = StreamLine(dialed)
            line.send([name.encode()])
            return line
    except OSError:
        pass
    dialed.close()
    return None
