"""Decides when a run asks for how many points: workers stay busy, points are chosen late.

Pure: times are arguments. A point chosen late is based on more outcomes; a point chosen early
avoids waiting. So points are requested when a place in the farm is free, if finding one takes
almost no time compared with evaluating it. Otherwise they are requested ahead, as many as places
become free meanwhile; if that is not enough, space-filling points are used. Where evaluating takes
far less time than finding points, idle workers cost little, and they wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

IDLE_SHARE = 0.03
"""Fraction of its time that a worker may wait for its next point."""

WORTH = 10.0
"""If a strategy takes longer than this many evaluations per point, workers wait for it."""

DEARER = 1.5
"""Twice as many points are requested together if they take less than this factor longer."""

CLOCK_S = 1e-3
"""Waits shorter than this count as over."""

LARGEST_ASK = 256

SPARE = 8
"""One filling point is kept ready per this many places."""

PLACES_EVERY_S = 5.0
"""Seconds after which to ask the farm again how many points it evaluates at once."""

FORGETS = 0.3
"""Weight of the latest time in the running means."""


def _updated(mean: float | None, seconds: float) -> float:
    """Return a running mean that follows changes; None before the first value."""
    return seconds if mean is None else mean + FORGETS * (seconds - mean)


@dataclass(frozen=True, slots=True)
class Need:
    """The next action of a run. ask: points to request from the strategy, 0 for none.

    fill: space-filling points to take at once; wake_s: seconds after which to look again.
    """

    ask: int = 0
    fill: int = 0
    wake_s: float | None = None


class Pace:
    """The measured times of one run, and the decisions that follow from them.

    places: points that the farm evaluates at once. fill: whether filling points are wanted.
    """

    def __init__(self, places: int, *, fill: bool = True, began: float = 0.0) -> None:
        self.places = places
        self._fill = fill
        self._looked, self._place_s = began, 0.0
        self._strategy = -1
        self._evaluating: float | None = None
        self._asking: float | None = None
        self._sizes: dict[int, float] = {}  # seconds by number of points, in powers of two
        self._size = 1

    def found(self, places: int, now: float) -> None:
        """Record how many points the farm evaluates at once from `now` on."""
        self._place_s, self._looked = self.place_s(now), now
        self.places = places

    def place_s(self, now: float) -> float:
        """Return the time that all places together have had so far, in seconds."""
        return self._place_s + self.places * (now - self._looked)

    def is_outdated(self, now: float) -> bool:
        """Whether it is time to ask the farm again for its number of places."""
        return now - self._looked > PLACES_EVERY_S

    def searches(self, strategy: int, *, fill: bool) -> None:
        """Discard the times of searches if those were another strategy's."""
        if strategy != self._strategy:
            self._asking, self._sizes, self._size = None, {}, 1
        self._strategy, self._fill = strategy, fill

    @property
    def ahead(self) -> int:
        """Points to have ready beyond those that the farm evaluates."""
        run, ask = self._evaluating, self._asking
        if run is None or ask is None or ask <= IDLE_SHARE * run or ask > WORTH * run:
            return 0
        return min(self.places, math.ceil(ask * self.places / run))

    def asked(self, seconds: float, points: int) -> None:
        """Record how many seconds the strategy took to find this many points."""
        self._asking = _updated(self._asking, seconds)
        if points != self._size:
            return
        mean = self._sizes[points] = _updated(self._sizes.get(points), seconds)
        half = self._sizes.get(points // 2, math.inf)
        self._size = points // 2 if mean > DEARER * half else min(2 * points, LARGEST_ASK)

    def evaluated(self, seconds: float) -> None:
        """Record how many seconds a point took in the farm."""
        self._evaluating = _updated(self._evaluating, seconds)

    def need(
        self, *, flying: int, ready: int, asking_s: float | None, left: int, waiting_s: float
    ) -> Need:
        """Return the next action.

        flying, ready, left: points in the farm, found but not submitted, and still to be requested.
        asking_s: how long the strategy has been searching; waiting_s: how long a place was free.
        """
        free = self.places - flying - ready
        run, ask = self._evaluating, self._asking or 0.0
        slow = run is not None and max(ask, asking_s or 0.0) > WORTH * run
        if asking_s is None:
            if slow and flying:  # they return soon, and as many points are found together
                return Need()
            if free + self.ahead < (0 if self.ahead else 1):
                return Need()
            # The search uses up the points that are ready, and as many are needed after it.
            wanted = max(0, min(free + 2 * self.ahead, left))
            quick = run is not None and 0 < ask <= IDLE_SHARE * run
            return Need(ask=wanted if quick or slow else min(wanted, self._size))
        if free <= 0 or left <= 0 or not self._fill or run is None or slow:
            return Need()
        patience = IDLE_SHARE * run - waiting_s
        if patience > CLOCK_S and ask - asking_s <= patience:
            return Need(wake_s=patience)
        # A few more for places about to become free: recording points takes a moment too.
        return Need(fill=min(free + self.places // SPARE, left))
