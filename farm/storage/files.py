"""Durable files: sync a file and its name, replace or keep one, detect a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def sync(path: Path) -> None:
    """Make a file and its name survive the death of the machine. Raises OSError."""
    for target, flags in ((path, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(target, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file beside `path`, which replaces it at once if the block succeeds.

    So `path` is the old or the new file at any time, and nothing between. Raises OSError.
    """
    new = path.with_name(path.name + ".new")
    try:
        yield new
        sync(new)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


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
        shutil.copy2(path, kept)
    return kept


def is_full(error: Exception) -> bool:
    """Whether a full disk or quota is the cause; HDF5 may report it only in the message."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or "quota exceeded" in str(error).lower()
