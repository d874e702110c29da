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
from collections.abc import Callable

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
