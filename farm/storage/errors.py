"""Errors of stored files. Callers translate these into their own errors."""

from __future__ import annotations

from pathlib import Path


class StorageError(Exception):
    """A stored file cannot be used; the message names the file and the reason."""


class LockHeld(StorageError):
    """Another process holds the lock. holder: that process, such as `process 7 on node3`."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is held by {holder}")
        self.holder = holder


class LockTaken(StorageError):
    """Another process took over this lock because its holder appeared dead. holder: the new one."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is now held by {holder}: this process appeared to be dead")
        self.holder = holder


class WrongFormat(StorageError):
    """The file is not a journal of the expected kind and version.

    path: the file. version: the version found, for a journal of that kind; None: the file is
    something else.
    """

    def __init__(self, path: Path, expected: str, version: int | None = None) -> None:
        found = "not one" if version is None else f"version {version}"
        super().__init__(f"{path}: expected a {expected}, found {found}")
        self.path = path
        self.version = version


class RecordTooLarge(StorageError):
    """A record is too long for a journal."""


class UnsafeFile(OSError):
    """A file is not just data: it is not regular, refers to other files, or declares too much."""
