"""Unnamed files in memory: bodies that grow as they arrive, and frames for another process.

Such a file exists only through its descriptors, so it vanishes once every process that holds one
has ended, for any reason. Without memfd (macOS) it is an unnamed temporary file, which the system
keeps in memory as long as it can.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from _thread import start_new_thread
from collections.abc import Callable, Sequence

from farm.call import Buffer

ALIGNMENT = 64

LARGE_BYTES = 4 << 20
"""Size from which another thread frees the memory: that takes longer than starting a thread."""

_LENGTH = struct.Struct("<Q")


def new_file() -> int:
    """Return the descriptor of a new, empty file; no child inherits it. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("farm", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def append(descriptor: int, part: Buffer) -> None:
    """Write all of `part` at the file's position. Raises OSError."""
    left = memoryview(part)
    while left:
        left = left[os.write(descriptor, left) :]


def mapped(descriptor: int) -> memoryview:
    """Map the whole file for reading; the mapping lives as long as a view of it."""
    size = os.fstat(descriptor).st_size
    if not size:
        return memoryview(b"")
    return memoryview(_Mapping(descriptor, size, prot=mmap.PROT_READ))


def let_go(descriptor: int, size: int) -> None:
    """Close a file of that size; freeing tens of megabytes takes the system milliseconds."""
    if size < LARGE_BYTES:
        os.close(descriptor)
    else:
        _elsewhere(lambda: os.close(descriptor))


class _Mapping(mmap.mmap):
    """A mapping whose memory is freed by another thread if it is large."""

    def __del__(self) -> None:
        if not self.closed and len(self) >= LARGE_BYTES:
            _elsewhere(self.close)


def _elsewhere(work: Callable[[], object]) -> None:
    """Run work in its own thread, or in this one if no thread can be started any more.

    Not with `threading.Thread`: objects may be deleted at any moment, also while that module holds
    its lock, and when the interpreter ends: starting a thread would then block for ever.
    """
    try:
        start_new_thread(work, ())
    except RuntimeError:
        work()


def file_of(frames: Sequence[Buffer]) -> int:
    """Return a new file with these frames, for `frames_in`. Raises OSError."""
    descriptor = new_file()
    try:
        sizes = [memoryview(frame).nbytes for frame in frames]
        append(descriptor, b"".join(map(_LENGTH.pack, [len(frames), *sizes])))
        at = _LENGTH.size * (1 + len(frames))
        for frame, size in zip(frames, sizes, strict=True):
            append(descriptor, bytes(-at % ALIGNMENT))
            append(descriptor, frame)
            at += -at % ALIGNMENT + size
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def frames_in(descriptor: int) -> list[memoryview]:
    """Return the frames of a file that `file_of` made, without copying them."""
    whole = mapped(descriptor)
    (count,) = _LENGTH.unpack_from(whole)
    frames = []
    at = _LENGTH.size * (1 + count)
    for number in range(count):
        (size,) = _LENGTH.unpack_from(whole, _LENGTH.size * (1 + number))
        at += -at % ALIGNMENT
        frames.append(whole[at : at + size])
        at += size
    return frames
