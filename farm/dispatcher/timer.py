"""The one timer of a dispatcher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Timer:
    """Calls `on_time` at the time that was set last, on the running event loop."""

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None
        self._at: float | None = None

    def set(self, at: float | None) -> None:
        """Set the time, by time.monotonic(); None: never."""
        if at == self._at:
            return
        self.cancel()
        self._at = at
        if at is not None:
            delay = max(0.0, at - time.monotonic())
            self._handle = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._handle = self._at = None
        self._on_time()

    def cancel(self) -> None:
        """Set no time."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._at = None
