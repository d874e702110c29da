"""Work that is left over when a connection has had its share of a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

A_TURN = 2
"""Steps in one turn of the loop, over all connections. A step is some requests of one connection,
a quarter millisecond at most; calls of everybody else come between two turns."""


class Turns:
    """Runs steps in their order, `a_turn` in each turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, a_turn: int = A_TURN) -> None:
        self._loop = loop
        self._a_turn = a_turn
        self._steps: deque[Callable[[], None]] = deque()
        self._called = False

    @property
    def are_wanted(self) -> bool:
        """Whether steps wait, so that there is more to do than goes into a turn."""
        return bool(self._steps)

    def later(self, step: Callable[[], None]) -> None:
        """Call `step` in a later turn of the loop, after those that wait already."""
        self._steps.append(step)
        self._call()

    async def wait(self) -> None:
        """Until the turn of whoever waits has come."""
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
