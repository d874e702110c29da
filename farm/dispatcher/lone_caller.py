"""Keeps the event loop awake between the steps of a lone caller.

A caller that makes one call after another has the front door wait twice for each call: for the
worker's answer, and for the next request. Where these waits are short, the loop does not sleep
through them: see `farm.machine.spinning`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from farm.machine.spinning import SPIN_S, ShortWaits, give_way


class LoneCaller:
    """Spins after steps of a lone caller, for at most SPIN_S; other events are served at once.

    calls_open: gives the number of calls without an outcome.
    """

    def __init__(
        self, calls_open: Callable[[], int], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._calls_open = calls_open
        self._clock = clock
        # For the next request, without an open call, and for the answer to the only open one.
        self._waits = ShortWaits(clock), ShortWaits(clock)
        self._wait: ShortWaits | None = None  # the present one; None: there are several calls
        self._since = 0.0
        self._spins = False

    def acted(self) -> None:
        """Note that the dispatcher has acted: on a request, or on an answer."""
        now = self._clock()
        if self._wait is not None:
            self._wait.ended(self._since, now)
        count = self._calls_open()
        self._wait = self._waits[count] if count < 2 else None
        self._since = now
        if self._wait is not None and self._wait.likely and not self._spins:
            self._spins = True
            asyncio.get_running_loop().call_soon(self._spin)

    def _spin(self) -> None:
        wait = self._wait
        if wait is None or not wait.likely or self._clock() - self._since >= SPIN_S:
            self._spins = False
            return
        give_way()
        asyncio.get_running_loop().call_soon(self._spin)
