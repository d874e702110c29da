"""Bytes from clients, a portion at a time: no client is read from while others wait.

Left to itself, an event loop reads from one connection as long as it finds bytes there, with uvloop
up to 8 MiB; eight uploads then take a tenth of a second of every turn of the loop.
"""

from __future__ import annotations

import asyncio

PORTION_BYTES = 16 * 1024
"""A portion that needs no turn: thousands of clients may send one at once."""

LONG_PORTION_BYTES = 256 * 1024
"""A portion of those that come in turns: to read it and write it to a file takes 0.4 ms."""


class Buffer:
    """What the connections of a server read into, one after another."""

    def __init__(self) -> None:
        self.long = memoryview(bytearray(LONG_PORTION_BYTES))
        self.quick = self.long[:PORTION_BYTES]


class Portions(asyncio.BufferedProtocol):
    """A protocol that `received` bytes.

    Who gets `PORTION_BYTES` or more has to pause reading and go on in another turn of the loop.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._much = False  # the last portion was a long one, so there may be more

    def received(self, data: bytes) -> None:
        """Bytes of the client's."""
        raise NotImplementedError

    @property
    def takes_long(self) -> bool:
        """Whether long portions are read where much comes."""
        return True

    def get_buffer(self, sizehint: int) -> memoryview:
        """For the event loop: what it reads into."""
        return self._buffer.long if self._much and self.takes_long else self._buffer.quick

    def buffer_updated(self, nbytes: int) -> None:
        """For the event loop: so many bytes have come."""
        self._much = nbytes >= PORTION_BYTES
        self.received(bytes(self._buffer.long[:nbytes]))
