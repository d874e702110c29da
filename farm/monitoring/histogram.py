"""A histogram of times with fixed bounds: one bisection and two additions for each time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

TIMES_S = tuple(float(f"{digit}e{power}") for power in range(-4, 5) for digit in (1, 2, 5))
"""Bounds of run times and waits, in seconds: 0.1 ms to 14 hours, three in each decade."""

SHORT_TIMES_S = tuple(bound for bound in TIMES_S if bound <= 1.0)
"""Bounds of times that farm itself takes, in seconds."""


class Histogram:
    """How many times lie between which bounds, and their sum.

    A time equal to a bound lies below it, as in Prometheus.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = TIMES_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Record `count` events that took `seconds` each."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.total += seconds * count

    def snapshot(self) -> dict[str, Any]:
        """Return bounds, the count below each bound and above the last, and the sum."""
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.total}
