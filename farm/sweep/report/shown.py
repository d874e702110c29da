"""Chooses the points that a report contains, so that its size is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farm.call import Array
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import PointColumns

MOST_POINTS = 10_000
"""Most points in a report; more are slow to draw and show no more."""

LEAST_POINTS = 1_000
"""Points that a report may have however many parameters and outputs there are."""

MOST_NUMBERS = 120_000
"""Most numbers of parameters and outputs in a report: 1.3 MB of text."""

LEAST_DONE = 0.2
"""Share of a report's points that is kept for done ones where very many failed."""


@dataclass(frozen=True, eq=False)
class ShownPoints:
    """The points of a report. points: ascending; all counts are of the sweep's finished points."""

    points: Array
    done: int
    done_shown: int
    failed: int
    failed_shown: int

    @property
    def note(self) -> str:
        """A sentence about points that are left out; "" if there are none."""
        total, count = self.done + self.failed, len(self.points)
        if count == total:
            return ""
        parts = []
        if self.failed:
            every = self.failed == self.failed_shown
            parts.append(
                f"all {self.failed:,} that failed"
                if every
                else f"{self.failed_shown:,} of {self.failed:,} that failed"
            )
        parts.append(f"{self.done_shown:,} of {self.done:,} that are done")
        return f"{count:,} of {total:,} points are shown, drawn at random: {' and '.join(parts)}."


def shown_points(known: PointColumns, columns: int) -> ShownPoints:
    """Choose points of a sweep: failed ones first, done ones at random, the same each time.

    columns: numbers that the report has for each point. Pending points are left out. Points are
    drawn at random because every n-th point of a grid would miss whole levels.
    """
    most = min(MOST_POINTS, max(LEAST_POINTS, MOST_NUMBERS // max(columns, 1)))
    done = np.flatnonzero(known.status == PointStatus.DONE)
    failed = np.flatnonzero(known.status > PointStatus.DONE)
    rng = np.random.default_rng(0)
    room = most - min(len(done), int(LEAST_DONE * most))
    failed_kept = some_of(failed, room, rng)
    done_kept = some_of(done, most - len(failed_kept), rng)
    points = np.sort(np.concatenate([done_kept, failed_kept]))
    return ShownPoints(points, len(done), len(done_kept), len(failed), len(failed_kept))


def some_of(items: Array, most: int, rng: np.random.Generator) -> Array:
    """Return at most `most` items, drawn at random, in their order."""
    if len(items) <= most:
        return items
    kept: Array = items[np.sort(rng.choice(len(items), most, replace=False))]
    return kept
