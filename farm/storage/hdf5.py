"""HDF5 files on any file system: opening with checks and retries, and the errors of h5py.

A file from another user is only data. HDF5 by itself follows links to other files, reads and
writes datasets that are stored in other files, loads plugins to decompress one, and h5py allocates
the size that a dataset declares. A file from `open_file` refuses that.
"""

from __future__ import annotations

import errno
import math
import os
import posixpath
import time
from pathlib import Path
from typing import Any

import h5py

from farm.storage.errors import UnsafeFile
from farm.storage.files import open_regular

PATIENCE_S = 5.0
"""Longest wait for readers, in seconds: a short read takes less, a longer one is an error."""

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of `flock` on a file system without locks, as some NFS. HDF5 forgives ENOSYS only."""

HDF5_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError)
"""Exceptions that h5py raises for a damaged file or a full disk, depending on the call."""

FILTERS = frozenset({1, 2, 3, 4, 5, 6, h5py.h5z.FILTER_LZF})
"""Filters of HDF5 (deflate, shuffle, fletcher32, szip, nbit, scaleoffset) and of h5py (lzf)."""

EXPANSION = 1032
"""Largest ratio between data and its compressed form. Source: zlib Technical Details."""


def open_file(
    path: Path, mode: str, *, patience_s: float = PATIENCE_S, locking: bool | str = "best-effort"
) -> h5py.File:
    """Open an HDF5 file, with HDF5's own lock if the file system supports locks.

    mode: r or r+. To write, waits up to `patience_s` seconds for programs that read it. Raises
    OSError; later UnsafeFile, when an object is opened that is not just data in this file.
    """
    until = time.monotonic() + patience_s
    while True:
        with open_regular(path, os.O_RDONLY if mode == "r" else os.O_RDWR) as regular:
            try:
                # Not by its path, which may lead to another file by now.
                return CheckedFile(path, regular.fileno(), mode, locking)
            except OSError as error:
                if locking and error.errno in NO_LOCKS:  # farm has a lock of its own
                    locking = False
                    continue
                is_held = isinstance(error, BlockingIOError) and mode != "r"
                # HDF5 opens no file whose name has just been given to another one.
                is_replaced = not os.path.samestat(os.fstat(regular.fileno()), path.stat())
                if not (is_held or is_replaced) or time.monotonic() > until:
                    raise
        time.sleep(0.05)


class CheckedGroup(h5py.Group):  # type: ignore[misc]  # h5py is published without types
    """A group of the file at `path`, which checks each member that it opens."""

    def __init__(self, path: Path, group: h5py.h5g.GroupID) -> None:
        super().__init__(group)
        self.path = path

    def __getitem__(self, name: str) -> Any:
        """Return the member `name`, such as a or a/b. Raises UnsafeFile, KeyError."""
        first, _, rest = name.strip("/").partition("/")
        links = self.id.links
        if first in self and links.get_info(first.encode()).type != h5py.h5l.TYPE_HARD:
            self._refuse(first, "is a link to another place")
        found = super().__getitem__(first or "/")
        if isinstance(found, h5py.Group):
            found = CheckedGroup(self.path, found.id)
        elif isinstance(found, h5py.Dataset) and (danger := _danger(found.id)):
            self._refuse(first, danger)
        return found[rest] if rest else found

    def get(self, name: str, default: Any = None) -> Any:
        """Return the member `name`, or `default` without one. Raises UnsafeFile."""
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        """Whether there is a member `name`, which may be a link that leads nowhere."""
        return isinstance(name, str) and name != "" and self.id.links.exists(name.encode())

    def _refuse(self, name: str, danger: str) -> None:
        raise UnsafeFile(
            f"{self.path}: {posixpath.join(self.name, name)} {danger}. farm uses only data that is "
            "in the file itself; if you trust the file, copy the data into a new one with h5py"
        )


class CheckedFile(CheckedGroup, h5py.File):  # type: ignore[misc]  # as above
    """The file of a descriptor, opened by `path`, which checks each object that it opens."""

    def __init__(self, path: Path, fd: int, mode: str, locking: bool | str) -> None:
        h5py.File.__init__(self, f"/dev/fd/{fd}", mode, locking=locking)
        self.path = path

    @property
    def filename(self) -> str:
        """The path by which the file was opened."""
        return str(self.path)


def _danger(data: h5py.h5d.DatasetID) -> str:
    """Return why a dataset is not just data in its file; "" if it is."""
    made = data.get_create_plist()
    layout = made.get_layout()
    if made.get_external_count():
        return f"is stored in another file, {os.fsdecode(made.get_external(0)[0])}"
    if layout == h5py.h5d.VIRTUAL:
        return "is a virtual dataset, with data in other files"
    for code, _, _, name in map(made.get_filter, range(made.get_nfilters())):
        if code not in FILTERS:
            return f"needs a filter plugin, {os.fsdecode(name) or 'unnamed'} ({code})"
    shapes = [data.shape or (), made.get_chunk() if layout == h5py.h5d.CHUNKED else ()]
    shape = max(shapes, key=math.prod)
    size, there = (
        math.prod(shape) * data.get_type().get_size(),
        h5py.h5i.get_file_id(data).get_filesize(),
    )
    if size > EXPANSION * there:
        return f"has the shape {shape}, for which a file of {there:,} bytes is too small"
    return ""
