"""Work that connections defer to later turns of the event loop, and reading in portions.

An event loop reads from a connection until no more bytes arrive; uvloop stops at 8 MiB. Without
portions, eight uploads would take a tenth of a second in every turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

A_TURN = 2
"""Steps per turn of the loop, over all connections. A step is some requests of one connection, a
quarter millisecond at most; the loop serves other callers between two turns."""


class Turns:
    """Runs steps in order, `a_turn` of them in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, a_turn: int = A_TURN) -> None:
        self._loop = loop
        self._a_turn = a_turn
        self._steps: deque[Callable[[], None]] = deque()
        self._called = False

    @property
    def are_wanted(self) -> bool:
        """Whether steps are queued, so that there is more work than one turn can take."""
        return bool(self._steps)

    def later(self, step: Callable[[], None]) -> None:
        """Call `step` in a later turn of the loop, after the steps already queued."""
        self._steps.append(step)
        self._call()

    async def wait(self) -> None:
        """Wait until the caller's turn comes."""
        come: asyncio.Future[None] = self._loop.create_future()

        def begin() -> None:
            if not come.done():
                come.set_result(None)

        self.later(begin)
        await come

    def _call(self) -> None:
        if self._steps and not self._called:
            self._called = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        try:
            for _ in range(min(self._a_turn, len(self._steps))):
                self._steps.popleft()()
        finally:
            self._called = False
            self._call()


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
