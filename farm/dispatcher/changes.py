"""Waits for conditions that depend on what happens on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Changes:
    """Wakes those who wait for a condition, to check it again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.tell = self._event.set

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition is true; return whether it is after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._event.clear()
                    await self._event.wait()
        return condition()
