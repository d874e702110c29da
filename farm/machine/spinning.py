"""Waiting without sleep for events that come within microseconds.

A process that sleeps and is woken loses more than the time of its wake-up: its processor may have
rested deeply, and has other data in its caches, so that the same code then takes two to four times
as long. Callers that make one fast call after another wait for that in each process of each call.
So front door and worker spin through waits that are likely to be short, and meanwhile leave the
processor to any process that waits for it: see `give_way`.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker does not load it
    import asyncio

SPIN_S = 0.0005
"""Longest time without sleep. A longer wait costs this much processor time at most once, as long
as waits are alike: after a long one, the next is slept through."""

give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))
"""Let another process have this processor if it waits for one."""


class ShortWaits:
    """Tells whether a wait of one kind is likely to be short: the one before was."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.likely = False

    def ended(self, began: float, now: float) -> None:
        """Note a wait that has ended."""
        self.likely = now - began < SPIN_S

    def poll(self, poll: select.poll, timeout_s: float) -> list[tuple[int, int]]:
        """Return what `poll` returns; it is asked without sleep while the wait may be short."""
        began = self._clock()
        if self.likely and timeout_s > SPIN_S:
            while not (ready := poll.poll(0)):
                if self._clock() - began >= SPIN_S:
                    break
                give_way()
            if ready:
                return ready
        ready = poll.poll(int(1000 * timeout_s))
        self.ended(began, self._clock())
        return ready


class LoneCaller:
    """Spins after steps of a lone caller, for at most SPIN_S; other events are served at once.

    tasks, gathered: the tasks, and the gathered calls, without an outcome.
    """

    def __init__(
        self,
        tasks: Sized,
        gathered: Sized,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._tasks = tasks
        self._gathered = gathered
        self._loop = loop
        self._clock = clock
        # Whether a wait is likely to be short: for a request, and for the answer to the only call.
        self._likely = [False, False]
        self._count = 2  # the open calls; with 2 or more there is no such wait
        self._since = 0.0
        self._spins = False

    def acted(self) -> None:
        """Note that the dispatcher has acted: on a request, or on an answer."""
        now = self._clock()
        if self._count < 2:
            self._likely[self._count] = now - self._since < SPIN_S
        self._count = count = 2 if self._gathered else len(self._tasks)
        self._since = now
        if count < 2 and self._likely[count] and not self._spins:
            self._spins = True
            self._loop.call_soon(self._spin)

    def _spin(self) -> None:
        likely = self._count < 2 and self._likely[self._count]
        if not likely or self._clock() - self._since >= SPIN_S:
            self._spins = False
            return
        give_way()
        self._loop.call_soon(self._spin)
