"""Quantiles of run times in bounded memory: counts in buckets of a logarithmic scale."""

from __future__ import annotations

import math
from math import log2

STEPS = 8
"""Buckets for each factor of two: a quantile is off by 4.4 % at most."""

SHORTEST_S = 1e-7
"""Shorter runs count as this long, so that there are few buckets."""

WINDOW = 1000
"""Quantiles are those of the last 1,000 to 2,000 runs: an old time must not hide a new one."""


class RunTimeSketch:
    """The run times of one worker; count: of all runs."""

    __slots__ = ("_before", "_counts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Record one run."""
        counts = self._counts
        # Above the lowest bucket the number is positive, where int() rounds down.
        bucket = int(STEPS * log2(seconds) - _LOWEST) if seconds > SHORTEST_S else 0
        counts[bucket] = counts.get(bucket, 0) + 1
        self.count += 1
        if not self.count % WINDOW:
            self._before, self._counts = counts, {}

    def quantiles(self, *levels: float) -> list[float | None]:
        """Return the quantiles in seconds, by nearest rank; None while no run is known.

        levels: between 0 and 1, in ascending order.
        """
        both = self._before.copy()
        for bucket, count in self._counts.items():
            both[bucket] = both.get(bucket, 0) + count
        buckets = sorted(both.items())
        total = sum(both.values())
        found: list[float | None] = []
        seen = at = 0
        for level in levels:
            rank = max(1, math.ceil(level * total))
            while at < len(buckets) and seen + buckets[at][1] < rank:
                seen += buckets[at][1]
                at += 1
            found.append(2.0 ** ((buckets[at][0] + _LOWEST + 0.5) / STEPS) if buckets else None)
        return found


_LOWEST = math.floor(STEPS * math.log2(SHORTEST_S))
