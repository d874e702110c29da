"""A request's body while it arrives: short ones as bytes, long ones in a memory file.

The file can be handed to a reader process without copying it, and to a codec in this process as a
view. So nobody here ever joins, copies or reads through tens of megabytes in one go.
"""

from __future__ import annotations

import zlib

from farm.server.door import Headers, unpacked
from farm.server.memory_file import append, let_go, mapped, new_file

QUICK_BYTES = 16 * 1024
"""Requests longer than this are read one in a turn of the loop: many may be whole at once, and each
may take milliseconds."""

HEAVY_BYTES = 256 * 1024
"""Bodies longer than this are read in a reader process: as JSON they take some 10 ms, which a
caller of another model would wait for."""


class HeldBody:
    """A body in a memory file. encoding: what it is compressed with, b"" for not at all.

    limit: bytes that it may have once it is unpacked. The file lives as long as this object.
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
        """The bytes, without a copy; they stay as long as the view."""
        return mapped(self.descriptor)

    def read(self) -> bytes:
        """A copy, unpacked; other threads go on meanwhile. Raises Refused."""
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
        """limit: bytes that the body may have, also once it is unpacked."""
        self.size = 0
        self._limit = limit
        self._short: bytes | bytearray = b""
        self._held: HeldBody | None = None

    def add(self, part: bytes) -> None:
        """Another part."""
        self.size += len(part)
        if self.size <= HEAVY_BYTES:
            if not self._short:
                self._short = part
                return
            # Not a list of parts: a part of one byte would take fifty.
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
        """Let go of what has come."""
        self._short = b""
        self._held = None

    def whole(self, headers: Headers) -> Body:
        """The body, unpacked unless it is held. Raises Refused."""
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
    """Whether a short body is a long one once it is unpacked."""
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        return False
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        return len(unpacker.decompress(body, HEAVY_BYTES + 1)) > HEAVY_BYTES
    except zlib.error:
        return False
