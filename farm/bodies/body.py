"""The body of a request while it arrives: a short one as bytes, a long one in a memory file.

A memory file can be passed to a reader process without a copy, and to a codec in this process as a
view. So the event loop never joins, copies or reads tens of megabytes in one step.
"""

from __future__ import annotations

import zlib

from farm.bodies.unpacking import Headers, unpacked
from farm.machine.memory_file import append, let_go, mapped, new_file

QUICK_BYTES = 16 * 1024
"""Of requests longer than this, only one is decoded per event-loop iteration: many may be complete
at once, and each may take milliseconds.
"""

HEAVY_BYTES = 256 * 1024
"""Longer bodies are decoded in a reader process: as JSON they take some 10 ms, which would delay
callers of other models.
"""


class HeldBody:
    """A body in a memory file. encoding: its compression, b"" if none.

    limit: maximum size in bytes after unpacking. The file lives as long as this object.
    """

    __slots__ = ("descriptor", "encoding", "limit", "size")

    def __init__(self, limit: int) -> None:
        self.size = 0
        self.encoding = b""
        self.limit = limit
        self.descriptor = new_file()

    def add(self, part: bytes | bytearray) -> None:
        """Append a part. Raises OSError."""
        append(self.descriptor, part)
        self.size += len(part)

    def view(self) -> memoryview:
        """Return the bytes without a copy; they stay valid as long as the view."""
        return mapped(self.descriptor)

    def read(self) -> bytes:
        """Return an unpacked copy; other threads can run meanwhile. Raises Refused."""
        with open(self.descriptor, "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            body = file.readall()
        if not self.encoding:
            return body
        return unpacked(body, {b"content-encoding": self.encoding}, self.limit)

    def __del__(self) -> None:
        let_go(self.descriptor, self.size)


Body = bytes | HeldBody


class Gathering:
    """Collects the parts of a body. size: bytes so far."""

    __slots__ = ("_held", "_limit", "_short", "size")

    def __init__(self, limit: int) -> None:
        """limit: maximum size of the body in bytes, before and after unpacking."""
        self.size = 0
        self._limit = limit
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
            self._held = HeldBody(self._limit)
            self._held.add(self._short)
            self._short = b""
        self._held.add(part)

    def clear(self) -> None:
        """Discard the parts received so far."""
        self._short = b""
        self._held = None

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
