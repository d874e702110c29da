"""Folders and files that only this user can open, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

from farm.errors import Unavailable
from farm.wording import worded

OTHERS = 0o077
"""The permission bits of all users but the owner."""


def private_opener(path: str | os.PathLike[str], flags: int) -> int:
    """Opener for `open(path, mode, opener=...)` that creates files for this user only."""
    return os.open(path, flags, 0o600)


def make_private_folder(folder: Path, *, known: Collection[str]) -> None:
    """Make a folder that only this user can enter.

    If it exists and others can enter it, their access to it and to its contents is removed. But
    this is done only if every name in the folder matches a pattern of `known`: a folder with other
    things in it may be open to others on purpose.

    Raises Unavailable, which says what to do, and OSError.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError("it is not a folder")
    if found.st_uid != os.geteuid():
        raise Unavailable(
            f"folder {folder} belongs to user {found.st_uid}, who can read all that is in it; "
            f"give this farm its own {worded('--dir', 'dir=')}"
        )
    if not found.st_mode & OTHERS:
        return
    foreign = sorted(
        name for name in os.listdir(folder) if not any(fnmatch(name, pattern) for pattern in known)
    )
    if not foreign:
        _narrow(folder)
    if folder.stat().st_mode & OTHERS:
        more = f" and has {foreign[0]!r} in it" if foreign else ""
        raise Unavailable(
            f"others can enter the folder {folder}, which is for keys and logs{more} (mode "
            f"{found.st_mode & 0o777:o}, expected 700); give this farm its own "
            f"{worded('--dir', 'dir=')}, or run: "
            f"chmod 700 {folder}"
        )


def _narrow(folder: Path) -> None:
    """Remove others' permissions from a folder and from everything in it that this user owns."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another user's, or already gone
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o777 & ~OTHERS)


def short_folder() -> str:
    """Return a folder for a socket file, whose whole path has to be shorter than 108 bytes."""
    import tempfile  # for this alone

    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) < 80 else "/tmp"
