"""The lock of a sweep; its errors are SweepErrors, which the command line prints."""

from __future__ import annotations

from pathlib import Path

from farm.storage.errors import LockHeld, LockTaken
from farm.storage.files import beside
from farm.storage.lock import Lock
from farm.sweep.errors import LockLost, SweepBusy


def lock_of(path: Path) -> Path:
    """Return the path of a sweep file's lock."""
    return beside(path, ".lock")


class SweepLock(Lock):
    """The exclusive right to write one sweep, acquired on creation. Raises SweepBusy, OSError."""

    def __init__(self, path: Path) -> None:
        """Acquire the lock. path: the lock file."""
        try:
            super().__init__(path)
        except LockHeld as error:
            raise SweepBusy(f"{error}, which is writing this sweep") from None

    def check(self) -> None:
        """Raise LockLost if another process has taken over the sweep."""
        try:
            super().check()
        except LockTaken as error:
            raise LockLost(f"{error}. This process stops; the sweep continues there") from None
