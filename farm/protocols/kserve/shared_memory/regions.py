"""The registered regions of shared memory: one record for HTTP and gRPC.

A region is a part of a shared memory object of the farm's user. Its descriptor stays open until it
is unregistered and no request uses it; so a region whose object was unlinked still works.
Source: Triton's shared-memory extension, and shared_memory_manager.cc of its server for the texts.

An object is a file in /dev/shm, opened as `shm_open` does and never mapped: another program may cut
it at any time; touching a mapping beyond its new end would then kill this process by SIGBUS, as
would writing to a mapping while /dev/shm is full. `pread` and `pwrite` report both as a short count
or an error, and copy as fast.
"""

from __future__ import annotations

import os
import resource
import stat
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from farm.bodies.unpacking import Refused
from farm.call import Buffer
from farm.encoding.tensors import shown
from farm.errors import InvalidInput, UnsupportedFeature
from farm.protocols.kserve.shared_memory.places import LARGEST, Place, whole_number

MOST_REGIONS = 1024
"""Regions at a time, and open objects: those of regions, and of requests that still run."""

SHARE_OF_FILES = 8
"""Objects may use one in so many of the files that this process may open."""

LONGEST_REGION = 256
"""Characters in the name of a region."""


def is_offered() -> bool:
    """Whether this machine has shared memory objects that farm can open."""
    return OBJECTS.is_dir()


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region. offset: of its first byte in the object."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: SharedFile

    def check(self, place: Place) -> None:
        """Raise InvalidInput unless the place lies in the region and in the object as it is now."""
        end = place.offset + place.byte_size
        if end > self.byte_size or place.offset >= self.byte_size:
            wrong = "offset" if place.offset >= self.byte_size else "offset + byte size"
            raise InvalidInput(
                f"Invalid {wrong} for shared memory region: {shown(self.name)}: it has "
                f"{self.byte_size} bytes; the request names {place.byte_size} at {place.offset}"
            )
        if self.offset + end > self.file.size:
            raise self.cut()

    def cut(self) -> InvalidInput:
        """Return the error of a request whose bytes are no longer there."""
        left = max(0, self.file.size - self.offset)
        return InvalidInput(
            f"shared memory region {shown(self.name)} was cut: its object {shown(self.key)} holds "
            f"{left} of its {self.byte_size} bytes; enlarge it, or register it again"
        )


class Regions:
    """The registered regions by name."""

    def __init__(self, most: int | None = None) -> None:
        """most: regions, and open objects; None: by the limit on this process's open files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = MOST_REGIONS if soft == resource.RLIM_INFINITY else soft // SHARE_OF_FILES
        self.most = most or min(MOST_REGIONS, share)
        self._regions: dict[str, Region] = {}
        self._files: WeakSet[SharedFile] = WeakSet()

    def register(self, name: Any, key: Any, offset: Any, byte_size: Any) -> None:
        """Open an object and register a part of it as a region.

        Raises InvalidInput, UnsupportedFeature; Refused for a name that is taken.
        """
        if not is_offered():
            raise UnsupportedFeature(
                f"system shared memory is not offered on this machine: it has no {OBJECTS}; send "
                "the data itself"
            )
        if type(name) is not str or not 0 < len(name) <= LONGEST_REGION:
            raise InvalidInput(
                f"the name of the region is {shown(name)}; expected 1 to {LONGEST_REGION} "
                "characters"
            )
        failed = f"failed to register shared memory region {shown(name)}"
        if type(key) is not str:
            raise InvalidInput(f"{failed}: its key is {shown(key)}; expected a string")
        offset = whole_number(offset, f"{failed}: offset")
        byte_size = whole_number(byte_size, f"{failed}: byte_size")
        if not byte_size or offset + byte_size > LARGEST:
            raise InvalidInput(
                f"{failed}: byte_size is {byte_size} at offset {offset}; expected 1 or more, and "
                "the end below 2^63"
            )
        if name in self._regions:
            raise already_registered(name)
        if len(self._regions) >= self.most or len(self._files) >= self.most:
            raise InvalidInput(
                f"{failed}: {self.most} regions are registered or in use, the limit here; "
                "unregister others"
            )
        file = self._opened(key)
        if offset + byte_size > file.size:
            raise InvalidInput(
                f"{failed}: invalid args: its end is {offset + byte_size}; the object "
                f"{shown(key)} has {file.size} bytes"
            )
        self._regions[name] = Region(name, key, offset, byte_size, file)

    def _opened(self, key: str) -> SharedFile:
        """Return the object, which other regions may have open already."""
        try:
            file = SharedFile(key)
        except NotAnObject as error:
            raise InvalidInput(
                f"Unable to open shared memory region: {shown(key)}: {error}"
            ) from None
        for other in self._files:
            if other.identity == file.identity:
                return other
        self._files.add(file)
        return file

    def find(self, name: str) -> Region:
        """Return a region. Raises Refused if there is none of that name."""
        found = self._regions.get(name)
        if found is None:
            raise Refused(404, "NotFound", f"Unable to find shared memory region: {shown(name)}")
        return found

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the region of that name, or all of them, as JSON data. Raises Refused."""
        regions = list(self._regions.values())
        if name:
            if name not in self._regions:
                message = f"Unable to find system shared memory region: {shown(name)}"
                raise Refused(404, "NotFound", message)
            regions = [self._regions[name]]
        return [
            {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
            for r in regions
        ]

    def unregister(self, name: str = "") -> None:
        """Forget the region of that name, or all; running requests finish with theirs.

        Does nothing for a name that is not registered, as Triton.
        """
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()


def already_registered(name: str) -> Refused:
    """Return the error of registering a name twice; Triton answers it with 400 over HTTP."""
    return Refused(400, "AlreadyExists", f"shared memory region {shown(name)} already in manager")


def check_owner(is_owner: bool) -> None:
    """Raise Refused unless the caller is a program of the farm's user on this machine."""
    if not is_owner:
        raise Refused(
            403,
            "Forbidden",
            "shared memory is for programs of the user who runs this farm, on the same machine and "
            "not through a proxy; send the data itself",
        )


def refuse_cuda() -> UnsupportedFeature:
    """Return the error of registering CUDA shared memory."""
    return UnsupportedFeature(
        "CUDA shared memory is not offered here: the server itself uses no GPU; use system shared "
        "memory, or send the data itself"
    )


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
