"""Shared memory objects of a test, and how many descriptors a process has of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farm.protocols.kserve.shared_memory.regions import OBJECTS


class SharedObject:
    """A shared memory object; key: a slash and its name."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.path = OBJECTS / key[1:]

    def write(self, data: bytes, at: int = 0) -> None:
        """Write some of its bytes."""
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def read(self) -> bytes:
        """Return its bytes."""
        return self.path.read_bytes()

    def cut(self, size: int) -> None:
        """Give it another size, which other programs' mappings do not survive."""
        os.truncate(self.path, size)


@contextmanager
def shared_object(size: int | None) -> Iterator[SharedObject]:
    """Make an object of so many zero bytes for the duration of the block; None: only a free key."""
    made = SharedObject(f"/farm-test-{os.getpid()}-{uuid.uuid4().hex}")
    if size is not None:
        with made.path.open("xb") as file:
            file.truncate(size)
    try:
        yield made
    finally:
        if made.path.is_symlink() or not made.path.is_dir():
            made.path.unlink(missing_ok=True)


def open_of(path: Path, pid: int | str = "self") -> int:
    """Return how many descriptors a process has of this file, which may be unlinked."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += os.readlink(link).removesuffix(" (deleted)") == str(path)
        except FileNotFoundError:  # closed meanwhile
            continue
    return count
