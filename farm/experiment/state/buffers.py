"""Arrays that grow by rows: recorded trials and pending points. Pure.

Returned arrays never change and can be kept: rows are added behind them, or to a copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from farm.call import Array
from farm.experiment.state.events import Seeded, Told


class GrowableRows:
    """Rows of one shape; adding one takes amortised constant time."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._room = np.empty((16, *shape))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, rows: Array) -> None:
        """Add rows at the end, shape (n, ...)."""
        count = self._count + len(rows)
        if count > len(self._room):
            larger = np.empty((max(count, 2 * len(self._room)), *self._room.shape[1:]))
            larger[: self._count] = self._room[: self._count]
            self._room = larger
        self._room[self._count : count] = rows
        self._count = count

    def all(self) -> Array:
        """Return all rows, read-only."""
        view = self._room[: self._count]
        view.setflags(write=False)
        return view


class TrialData:
    """The trials of one experiment, as models and rules see them; its length: those modelled.

    recorded: number of trials told, modelled or not. ones: how often each outcome was 1 in modelled
    trials. warm_start: trials of earlier experiments, which count only for models.
    """

    def __init__(self, stimuli: int, dimensions: int, outcomes: int) -> None:
        self.recorded = 0
        self.ones: Array = np.zeros(outcomes, dtype=np.int64)
        self.warm_start: list[Seeded] = []
        self._x = GrowableRows((stimuli, dimensions))
        self._y = GrowableRows((outcomes,))

    def __len__(self) -> int:
        return len(self._x)

    def add(self, event: Told) -> None:
        """Add the trials of an event."""
        self.recorded += len(event.points)
        rows = event.modelled
        self._x.extend(event.points[rows])
        self._y.extend(event.outcomes[rows])
        self.ones = self.ones + np.count_nonzero(event.outcomes[rows] == 1.0, axis=0)

    def all(self) -> tuple[Array, Array]:
        """Return points and outcomes of the modelled trials: (n, stimuli, d), (n, outcomes)."""
        return self._x.all(), self._y.all()

    def up_to(self, strategy: int) -> tuple[Array, Array]:
        """Return the warm start of the strategies up to this position, and the modelled trials."""
        x, y = self.all()
        if seeds := [seeds for seeds in self.warm_start if seeds.strategy <= strategy]:
            x = np.concatenate([*(seeds.points for seeds in seeds), x])
            y = np.concatenate([*(seeds.outcomes for seeds in seeds), y])
        return x, y

    def check(self) -> None:
        """Assert every invariant."""
        x, y = self.all()
        assert len(x) == len(y) <= self.recorded
        assert np.isfinite(x).all()
        assert np.isfinite(y).all()
        assert all(np.isfinite(seeds.points).all() for seeds in self.warm_start)
        assert all(np.isfinite(seeds.outcomes).all() for seeds in self.warm_start)
        assert (self.ones == np.count_nonzero(y == 1.0, axis=0)).all()


class PointPool:
    """Points with ascending ids and times, oldest first; added: the number of points ever added.

    ids: shape (p,). points: shape (p, ...). times: shape (p,).
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.added = 0
        self.ids: Array = np.empty(0, dtype=np.int64)
        self.points: Array = np.empty((0, *shape))
        self.times: Array = np.empty(0)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, ids: Sequence[int], points: Array, time: float) -> None:
        """Add points, shape (n, ...), at the end."""
        self.added += len(ids)
        self.ids = np.concatenate([self.ids, np.asarray(ids, dtype=np.int64)])
        self.points = np.concatenate([self.points, points])
        self.times = np.concatenate([self.times, np.full(len(ids), time)])

    def find(self, points: Array, among: Array) -> Array:
        """Return for each point the row of `among` that equals it, or -1.

        Each row is used once, the oldest first.
        """
        rows: defaultdict[bytes, list[int]] = defaultdict(list)
        for row in reversed(among.tolist()):
            rows[self.points[row].tobytes()].append(row)
        found = (rows[point.tobytes()] for point in points)
        return np.array([left.pop() if left else -1 for left in found], dtype=np.int64)

    def remove(self, ids: Sequence[int]) -> None:
        """Remove the points with these ids; ignore missing ones."""
        if len(ids) and len(self.ids):
            self._keep(~np.isin(self.ids, np.asarray(ids, dtype=np.int64)))

    def keep_last(self, count: int) -> None:
        """Remove all but the newest `count` points."""
        if len(self.ids) > count:
            self._keep(np.arange(len(self.ids)) >= len(self.ids) - count)

    def _keep(self, rows: Array) -> None:
        self.ids, self.points, self.times = self.ids[rows], self.points[rows], self.times[rows]
