"""Durable files: sync a file and its name, replace or keep one, detect a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from farm.storage.errors import UnsafeFile

TOKEN_BYTES = 8
MOST_LINKS = 40


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file; anything else, such as a pipe, is refused at once. Raises OSError."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(fd, "rb")
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise UnsafeFile(f"{path} is not a regular file")
    return file


def open_own(path: Path, flags: int, mode: int = 0o644) -> int:
    """Return the descriptor of a file that farm keeps beside a user's: this user's, and no link.

    In a folder where others write, a file of that name may lead elsewhere. Raises UnsafeFile,
    OSError.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UnsafeFile(f"{path} is a symbolic link; remove it, or use another folder") from None
    found, why = os.fstat(fd), ""
    if not stat.S_ISREG(found.st_mode):
        why = "is not a regular file"
    elif found.st_uid != os.geteuid():
        why = f"belongs to user {found.st_uid}"
    elif found.st_nlink > 1:
        why = f"has {found.st_nlink} names"
    if why:
        os.close(fd)
        raise UnsafeFile(f"{path} {why}; remove it, or use another folder")
    return fd


def read_own(path: Path) -> bytes:
    """Return the content of such a file, which may be another user's. Raises OSError."""
    with open_regular(path, os.O_RDONLY | os.O_NOFOLLOW) as file:
        return file.read()


def resolved(path: Path) -> Path:
    """Return the place of a file that the user named. Raises UnsafeFile.

    A link is followed if only this user and root can change its target.
    """
    place = path
    for _ in range(MOST_LINKS):
        if not place.is_symlink():
            return place
        target = place.parent / os.readlink(place)
        for each in (place, *place.absolute().parents, *target.absolute().parents):
            uid = each.lstat().st_uid
            if uid not in (0, os.geteuid()):
                raise UnsafeFile(
                    f"{path} is a link by way of {each}, which belongs to user {uid}; name the "
                    "file that is meant"
                )
        place = target
    raise UnsafeFile(f"{path} is a link that leads nowhere")


def beside(path: Path, suffix: str) -> Path:
    """Return the path of a file that farm keeps beside the one at `path`, where a link leads."""
    place = path.resolve() if path.is_symlink() else path
    return place.with_name(place.name + suffix)


def sync(path: Path) -> None:
    """Make a file and its name survive the death of the machine. Raises OSError."""
    for target, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(target, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o644, *, durable: bool = True) -> Iterator[Path]:
    """Yield the path of a new file beside `path`, which replaces it at once if the block succeeds.

    So `path` is the old or the new file at any time, and nothing between. The new file has a random
    name, and exists already, empty. It gives others no permission that the old file lacks. A link
    at `path` is replaced itself.
    durable: whether it must survive the death of the machine. Raises OSError.
    """
    new = path.with_name(f"{path.name}.{secrets.token_hex(TOKEN_BYTES)}.new")
    with contextlib.suppress(FileNotFoundError):
        before = path.lstat().st_mode
        if stat.S_ISREG(before):
            mode &= before | stat.S_IRWXU  # the owner, who writes it now, keeps what `mode` has
    os.close(open_own(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield new
        if durable:
            sync(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def remove_unfinished(path: Path) -> None:
    """Remove what killed processes left of replacing `path`; for the holder of its lock."""
    name = re.compile(
        re.escape(path.name) + r"(\.journal|\.status\.json|\.lock)?\.[0-9a-f]{16}(\.new)?"
    )
    for each in path.parent.iterdir():
        if name.fullmatch(each.name):
            each.unlink(missing_ok=True)


def keep_as(path: Path, suffix: str) -> Path:
    """Keep the present content of a file as NAME + suffix and return that path.

    Replaces an older copy. The file itself stays, so that it exists at all times even if it is
    replaced next. Raises OSError.
    """
    kept = path.with_name(path.name + suffix)
    kept.unlink(missing_ok=True)
    try:
        os.link(path, kept)
    except OSError:  # a file system without hard links
        with open_regular(path) as file, kept.open("xb") as copy:
            shutil.copyfileobj(file, copy)
    return kept


def is_full(error: Exception) -> bool:
    """Whether a full disk or quota is the cause; HDF5 may report it only in the message."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or "quota exceeded" in str(error).lower()
