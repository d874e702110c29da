"""Reads clients' bytes in portions, so that one large upload does not delay other callers.

An event loop reads from a connection until no more bytes arrive; uvloop stops at 8 MiB. Eight
uploads then take a tenth of a second in every turn of the loop.
"""

from __future__ import annotations

import asyncio

PORTION_BYTES = 16 * 1024
"""The size of a normal read. Thousands of connections may be read in one turn of the loop."""

LONG_PORTION_BYTES = 256 * 1024
"""The size of a long read, in bytes. Reading it and writing it to a file takes 0.4 ms."""


class Buffer:
    """The memory that all connections of a server read into, one after another."""

    def __init__(self) -> None:
        self.long = memoryview(bytearray(LONG_PORTION_BYTES))
        self.quick = self.long[:PORTION_BYTES]


class Portions(asyncio.BufferedProtocol):
    """An asyncio protocol that passes each portion of bytes to `received`.

    A subclass that receives `PORTION_BYTES` or more must pause reading and resume it in a later
    turn of the loop.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._much = False  # the last portion was full, so there may be more

    def received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        raise NotImplementedError

    @property
    def takes_long(self) -> bool:
        """Whether to read long portions while portions are full."""
        return True

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory that the event loop reads into next."""
        return self._buffer.long if self._much and self.takes_long else self._buffer.quick

    def buffer_updated(self, nbytes: int) -> None:
        """The event loop has read `nbytes` bytes into the buffer."""
        self._much = nbytes >= PORTION_BYTES
        self.received(bytes(self._buffer.long[:nbytes]))
