"""A queue of work that connections defer to later turns of the event loop."""

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
