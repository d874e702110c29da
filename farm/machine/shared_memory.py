"""Shared memory objects of POSIX, the files in /dev/shm: opened as `shm_open` does, never mapped.

Another program may cut such a file at any time; touching a mapping beyond its new end would then
kill this process by SIGBUS, as would writing to a mapping while /dev/shm is full. `pread` and
`pwrite` report both as a short count or an error, and copy as fast.
"""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path

from farm.call import Buffer

OBJECTS = Path("/dev/shm")
"""The folder of the objects on Linux; other systems have no such folder."""

LONGEST_OBJECT = 255
"""Bytes of an object's name without its slash (NAME_MAX)."""

FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Without O_NONBLOCK, another program's lease on the file would delay the opening."""

KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAnObject(Exception):
    """The key names no shared memory object of this user; the message says why."""


class SharedFile:
    """An open shared memory object; its descriptor is closed with the last reference to this."""

    __slots__ = ("__weakref__", "_close", "descriptor", "identity")

    def __init__(self, key: str) -> None:
        """key: a slash and a name, as for `shm_open`. Raises NotAnObject."""
        path = OBJECTS / _name_of(key)
        try:
            _check(os.lstat(path))  # first: opening a device may have effects
            self.descriptor = os.open(path, FLAGS)
        except FileNotFoundError:
            raise NotAnObject(f"there is no such object in {OBJECTS}; create it first") from None
        except OSError as error:
            raise NotAnObject(f"{error.strerror}; its owner must be able to write it") from None
        self._close = weakref.finalize(self, os.close, self.descriptor)
        try:
            found = os.fstat(self.descriptor)
            _check(found)  # again: the name may stand for another file by now
        except BaseException:
            self._close()
            raise
        self.identity = (found.st_dev, found.st_ino)

    @property
    def size(self) -> int:
        """The size of the object now, in bytes."""
        return os.fstat(self.descriptor).st_size

    def read(self, at: int, into: memoryview) -> int:
        """Fill `into` with the bytes from `at`; return how many there were. Raises OSError.

        Other threads run meanwhile.
        """
        done = 0
        while done < len(into):
            count = os.preadv(self.descriptor, [into[done:]], at + done)
            if not count:
                break
            done += count
        return done

    def write(self, at: int, data: Buffer) -> None:
        """Write all of `data` at `at`; other threads run meanwhile. Raises OSError.

        Beyond the end it would make the object larger: compare with `size` before.
        """
        left = memoryview(data)
        while left:
            count = os.pwrite(self.descriptor, left, at)
            left, at = left[count:], at + count


def _name_of(key: str) -> str:
    """Return the file name of a key. Raises NotAnObject."""
    name = key[1:]
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        size = 0
    is_name = key.startswith("/") and name not in (".", "..") and not {"/", "\0"} & set(name)
    if not is_name or not 0 < size <= LONGEST_OBJECT:
        raise NotAnObject(
            "a key is a slash and a name without further slashes, such as '/input', of at most "
            f"{LONGEST_OBJECT} bytes"
        )
    return name


def _check(found: os.stat_result) -> None:
    """Raise NotAnObject unless it is a regular file of this user."""
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise NotAnObject(f"it is {kind}; expected a shared memory object")
    if found.st_uid != os.geteuid():
        raise NotAnObject(
            f"it belongs to user {found.st_uid}; expected user {os.geteuid()}, who runs this farm"
        )
