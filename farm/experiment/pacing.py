"""How many points a run asks for, and when: no worker idle, no point chosen sooner than need be.

Pure: times are arguments. A point that is chosen late knows more outcomes, one that is chosen early
makes nobody wait. So points are asked for when a place in the farm is free, as long as finding one
takes next to nothing of what evaluating one takes; else they are asked for ahead, as many as
places become free meanwhile; and when that does not suffice either, points that fill the space are
taken, which cost nothing and teach the surrogate something too. Where evaluating takes far less
than finding points, it is the worker's time that costs nothing, and it waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

IDLE_SHARE = 0.03
"""The share of its time that a worker may wait for its next point."""

WORTH = 10.0
"""A strategy that takes longer than so many evaluations for a point is waited for."""

DEARER = 1.5
"""Twice as many points found together are worth it if they take less than so many times as long:
then most of the time is the fit, which they share. More would know fewer outcomes."""

CLOCK_S = 1e-3
"""Waits shorter than this are over."""

LARGEST_ASK = 256

SPARE = 8
"""Of so many places one gets its filling point ahead."""

FORGETS = 0.3
"""Weight of the newest time in the running means."""


@dataclass(slots=True)
class Mean:
    """A running mean of seconds, that follows what changes; None before the first."""

    value: float | None = None

    def add(self, seconds: float) -> None:
        """One more."""
        if self.value is None:
            self.value = seconds
        else:
            self.value += FORGETS * (seconds - self.value)


@dataclass(frozen=True, slots=True)
class Need:
    """What a run is to do now. ask: points to ask the strategy for, 0 for none.

    fill: points that fill the space to take at once; wake_s: look again after so many seconds.
    """

    ask: int = 0
    fill: int = 0
    wake_s: float | None = None


class Pace:
    """The times of one run, and what follows from them.

    places: points that the farm evaluates at once. fill: whether filling points are wanted.
    """

    def __init__(self, places: int, *, fill: bool = True) -> None:
        self.places = places
        self.fill = fill
        self._evaluating = Mean()
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the strategy."""
        self._asking = Mean()
        self._sizes: dict[int, Mean] = {}  # seconds by the number of points, powers of two
        self._size = 1

    def moved_on(self) -> None:
        """Another strategy is asked from now on."""
        self._forget()

    @property
    def ahead(self) -> int:
        """Points to have ready beyond those that the farm evaluates."""
        run, ask = self._evaluating.value, self._asking.value
        if run is None or ask is None or ask <= IDLE_SHARE * run or ask > WORTH * run:
            return 0
        return min(self.places, math.ceil(ask * self.places / run))

    def asked(self, seconds: float, points: int) -> None:
        """The strategy took so long to find so many points."""
        self._asking.add(seconds)
        if points != self._size:
            return
        mean = self._sizes.setdefault(points, Mean())
        mean.add(seconds)
        half = self._sizes.get(points // 2)
        if half is None or half.value is None or mean.value is None:
            self._size = min(2 * points, LARGEST_ASK)
        elif mean.value > DEARER * half.value:
            self._size = points // 2
        else:
            self._size = min(2 * points, LARGEST_ASK)

    def evaluated(self, seconds: float) -> None:
        """A point took so long in the farm."""
        self._evaluating.add(seconds)

    def need(
        self, *, flying: int, ready: int, asking_s: float | None, left: int, waiting_s: float
    ) -> Need:
        """What to do now.

        flying, ready: points in the farm, and found but not given to it. asking_s: for how long
        the strategy has been at it, None when it is not; left: points that may still be asked for;
        waiting_s: for how long a place has been free.
        """
        free = self.places - flying - ready
        run, ask = self._evaluating.value, self._asking.value or 0.0
        slow = run is not None and max(ask, asking_s or 0.0) > WORTH * run
        if asking_s is None:
            if slow and flying:  # they are back at once, and as many points are found together
                return Need()
            if free + self.ahead < (0 if self.ahead else 1):
                return Need()
            # What is ready is used up while the strategy is at it, and as much again after.
            wanted = max(0, min(free + 2 * self.ahead, left))
            quick = run is not None and 0 < ask <= IDLE_SHARE * run
            return Need(ask=wanted if quick or slow else min(wanted, self._size))
        if free <= 0 or left <= 0 or not self.fill or run is None or slow:
            return Need()
        patience = IDLE_SHARE * run - waiting_s
        if patience > CLOCK_S and ask - asking_s <= patience:
            return Need(wake_s=patience)
        # And some for places that are about to be free: recording points takes a moment too.
        return Need(fill=min(free + self.places // SPARE, left))
