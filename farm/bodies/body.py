"""The body of a request while it arrives: a short one as bytes, a long one in a memory file.

A memory file can be passed to a reader process without a copy, and to a codec in this process as a
view. So the event loop never joins, copies or reads tens of megabytes in one step.

Pages of a new file cost twice as much as the copy into them. A long body that this process decodes
itself, because it is raw numbers, is therefore collected in plain memory, which is used again.
"""

from __future__ import annotations

import threading
import zlib

import numpy as np

from farm.bodies.unpacking import Headers, unpacked
from farm.machine.memory_file import append, let_go, mapped, new_file
from farm.machine.resources import LARGE_BYTES

QUICK_BYTES = 16 * 1024
"""Of requests longer than this, only one is decoded per event-loop iteration: many may be complete
at once, and each may take milliseconds.
"""

HEAVY_BYTES = 256 * 1024
"""Longer bodies are decoded in a reader process: as JSON they take some 10 ms, which would delay
callers of other models.
"""

MOST_IN_MEMORY = LARGE_BYTES
"""Largest body to collect in plain memory, in bytes: larger memory would not be used again."""


class HeldBody:
    """A body in a memory file, or in plain memory. encoding: its compression, b"" if none.

    limit: maximum size in bytes after unpacking. in_memory: its size if it is collected in plain
    memory; it moves to a file if `descriptor` is read. The file lives as long as this object.
    """

    __slots__ = ("_descriptor", "_lock", "_memory", "encoding", "limit", "size")

    def __init__(self, limit: int, in_memory: int = 0) -> None:
        self.size = 0
        self.encoding = b""
        self.limit = limit
        self._lock = threading.Lock()
        self._descriptor = -1
        self._memory = np.empty(in_memory, np.uint8).data if in_memory else None
        if self._memory is None:
            self._descriptor = new_file()

    @property
    def descriptor(self) -> int:
        """The file's descriptor. Writes the file first if there is none, so use it in a thread.

        Raises OSError.
        """
        with self._lock:
            if self._memory is not None:
                self._descriptor = new_file()
                append(self._descriptor, self._memory[: self.size])
                self._memory = None
            return self._descriptor

    def add(self, part: bytes | bytearray) -> None:
        """Append a part. Raises OSError."""
        memory, end = self._memory, self.size + len(part)
        if memory is not None and end <= len(memory):
            memory[self.size : end] = part
        else:
            append(self.descriptor, part)
        self.size = end

    def view(self) -> memoryview:
        """Return the bytes without a copy; they stay valid as long as the view."""
        memory = self._memory
        return mapped(self.descriptor) if memory is None else memory[: self.size].toreadonly()

    def read(self) -> bytes:
        """Return an unpacked copy; other threads can run meanwhile. Raises Refused."""
        with open(self.descriptor, "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            body = file.readall()
        if not self.encoding:
            return body
        return unpacked(body, {b"content-encoding": self.encoding}, self.limit)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            let_go(self._descriptor, self.size)


Body = bytes | HeldBody


class Gathering:
    """Collects the parts of a body. size: bytes so far."""

    __slots__ = ("_held", "_in_memory", "_limit", "_short", "size")

    def __init__(self, limit: int, in_memory: int = 0) -> None:
        """limit: maximum size of the body in bytes, before and after unpacking.

        in_memory: its size if this process is to decode it, see HeldBody.
        """
        self.size = 0
        self._limit = limit
        self._in_memory = in_memory
        self._short: bytes | bytearray = b""
        self._held: HeldBody | None = None

    def add(self, part: bytes) -> None:
        """Append a part."""
        self.size += len(part)
        if self.size <= HEAVY_BYTES:
            if not self._short:
                self._short = part
                return
            # Not a list of parts: each part of one byte would take fifty.
            if isinstance(self._short, bytes):
                self._short = bytearray(self._short)
            self._short += part
            return
        if self._held is None:
            self._held = HeldBody(self._limit, self._in_memory)
            self._held.add(self._short)
            self._short = b""
        self._held.add(part)

    def whole(self, headers: Headers) -> Body:
        """Return the body, unpacked unless it is in a memory file. Raises Refused."""
        encoding = headers.get(b"content-encoding", b"").lower()
        held = self._held
        if held is None:
            body = bytes(self._short)
            if not encoding or self._limit <= HEAVY_BYTES or not _becomes_heavy(body, encoding):
                return unpacked(body, headers, self._limit)
            held = HeldBody(self._limit)
            held.add(body)
        if encoding != b"identity":
            held.encoding = encoding
        return held


def _becomes_heavy(body: bytes, encoding: bytes) -> bool:
    """Whether a short body becomes a long one after unpacking."""
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        return False
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        return len(unpacker.decompress(body, HEAVY_BYTES + 1)) > HEAVY_BYTES
    except zlib.error:
        return False
