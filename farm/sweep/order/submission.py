"""The order in which a sweep submits its points: longest first once costs are known.

The farm serves the calls of one client oldest first, so points run in the order of submission. A
farm that starts the longest runs first ends sooner, because no long run is left for the end.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from farm.call import Array
from farm.sweep.design.plan import AUTO, Plan
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.order.given import timed
from farm.sweep.order.neighbours import (
    blended,
    coordinates,
    correlated,
    explained,
    guesses,
    left_out,
    load_scipy,
)

MIXED_SHARE = 5
"""The first 1/5 of the points stays mixed, so that first results represent the whole."""
ENOUGH = 20
"""Finished points from which on run times are guessed, and given costs are checked."""
GROWTH = 1.25
"""Guess again each time that the number of finished points has grown by this factor."""
MOST_DONE = 0.9
"""Share of the mixed points that must be done before a given cost is judged by them."""
LEAST_EXPLAINED = 0.3
"""Share of the variance that a guess must explain; with a worse one the order stays mixed."""
LEAST_RUN_S = 0.1
"""Mean run time in seconds from which on guessing pays: it can save about one longest run."""
LEAST_SHARE = 100
"""Guessing takes at most 1/100 of the time."""


class SubmissionOrder:
    """The points still to submit, in order; `plan.order` decides whether cost matters.

    known: the state of all points, which the caller updates. clock: monotonic seconds.
    expected_s: guess of the run time of each point that is not done, in seconds; None without one.
    basis: where the costs come from, in words; empty while the order is mixed.
    """

    def __init__(
        self,
        plan: Plan,
        known: PointColumns,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._plan = plan
        self._known = known
        self._clock = clock
        self._wall_clock = wall_clock
        mixed = plan.mixed()
        self._place = np.empty(plan.size, dtype=np.int64)
        self._place[mixed] = np.arange(plan.size)
        self._turn = np.zeros(plan.size, dtype=np.int64)
        self._turns = 0
        self._first = plan.size // MIXED_SHARE
        self._coordinates: Array | None = None
        self._line: deque[int] = deque()
        self._given = None
        if plan.cost is not None and plan.order == AUTO:
            self._given = _above_zero(plan.cost)
        self._cost = self._given
        ran = known.t_run[timed(known)].astype(np.float64)
        self._count, self._work_s = len(ran), float(np.sum(ran))
        self._due = ENOUGH
        self._not_before = clock()
        self.expected_s: Array | None = None
        self.basis = "" if self._cost is None else plan.cost_rule

    def __len__(self) -> int:
        return len(self._line)

    def fill(self, points: Iterable[int]) -> None:
        """Add points and sort."""
        self._line.extend(points)
        self.sort()

    def take(self) -> int:
        """Return the next point and remove it. Raises IndexError if there is none."""
        point = self._line.popleft()
        self._turns += 1
        self._turn[point] = self._turns
        return point

    def put_back(self, point: int) -> None:
        """Add a point that was taken; it is the next one until the order changes."""
        self._line.appendleft(point)
        self._turn[point] = 0

    def ran(self, run_s: float) -> None:
        """Record the run time of a point that was done; NaN and 0 do not count."""
        if run_s > 0:
            self._count += 1
            self._work_s += run_s

    def is_due(self) -> bool:
        """Whether `learn` may improve the order; cheap, for each turn of a loop."""
        return (
            self._count >= self._due
            and self._plan.order == AUTO
            and self._work_s >= LEAST_RUN_S * self._count
            and self._clock() >= self._not_before
        )

    def learn(self) -> bool:
        """Guess the run times from those that are known; return whether to `sort` again.

        Costs that the user gave and learned ones are used if they explain enough, and together if
        both do. If neither do, the order is mixed again.
        """
        load_scipy()  # once, so it must not count as the time that a guess takes
        begun, before = self._clock(), self._cost
        done = timed(self._known)
        run_s = self._known.t_run[done].astype(np.float64)
        self._cost = self.expected_s = None
        self.basis = ""
        learned = self._learned(done, run_s)
        if self._trusts_given(done, run_s):
            self._use_given(done, run_s, learned)
        elif learned is not None:
            self._use(learned, done, run_s, f"the run times of {len(done)} points")
        self._due = max(self._count + 1, math.ceil(GROWTH * self._count))
        ended = self._clock()
        self._not_before = ended + LEAST_SHARE * (ended - begun)
        return self._cost is not before

    def sort(self) -> None:
        """Sort the points: the mixed first fifth, then the rest, longest first if costs are known.

        Points with equal cost keep their mixed order.
        """
        points = np.fromiter(self._line, dtype=np.int64, count=len(self._line))
        place = self._place[points]
        points = points[np.argsort(place)]
        if self._cost is not None:
            place = self._place[points]
            first, rest = points[place < self._first], points[place >= self._first]
            rest = rest[np.argsort(-self._cost[rest], kind="stable")]
            points = np.concatenate([first, rest])
        self._line = deque(points.tolist())

    def _trusts_given(self, done: Array, run_s: Array) -> bool:
        if self._given is None:
            return False
        # Judge by the mixed points once most are done: those that end first are the short ones.
        mixed = max(self._first, ENOUGH)
        fair = self._place[done] < mixed
        if np.count_nonzero(fair) < MOST_DONE * mixed:
            return True
        return correlated(run_s[fair], self._given[done[fair]]) >= LEAST_EXPLAINED

    def _learned(self, done: Array, run_s: Array) -> Array | None:
        """Return the guess at all points, at the known ones from the others; None if it is poor."""
        if self._coordinates is None:
            self._coordinates = coordinates(self._plan)
        overdue, so_far_s = self._overdue(done, run_s)
        known = self._coordinates[np.concatenate([done, overdue])]
        run_s = np.concatenate([run_s, so_far_s])
        left = left_out(known, run_s)
        if explained(run_s, left) < LEAST_EXPLAINED:
            return None
        guess = np.ones(self._plan.size)
        rest = np.flatnonzero(self._known.status != PointStatus.DONE)
        guess[rest] = guesses(known, run_s, self._coordinates[rest])
        guess[done] = left[: len(done)]
        return guess

    def _overdue(self, done: Array, run_s: Array) -> tuple[Array, Array]:
        """Return running points that take longer than the known ones around them, and for how long.

        Long runs end last: without them, the first guesses would know short runs only. Points run
        in the order of submission, so a point has begun before any later one has.
        """
        assert self._coordinates is not None
        told = done[self._turn[done] > 0]
        told = told[np.argsort(self._turn[told])]
        latest_start = np.minimum.accumulate(self._known.t_start[told][::-1])[::-1]
        out = np.flatnonzero((self._turn > 0) & (self._known.status == PointStatus.PENDING))
        after = np.searchsorted(self._turn[told], self._turn[out])
        out, after = out[after < len(told)], after[after < len(told)]
        if not len(out):
            return out, np.empty(0)
        so_far_s = self._wall_clock() - latest_start[after]
        expected_s = guesses(self._coordinates[done], run_s, self._coordinates[out])
        longer = so_far_s > expected_s
        return out[longer], so_far_s[longer]

    def _use_given(self, done: Array, run_s: Array, learned: Array | None) -> None:
        assert self._given is not None
        if learned is None:
            self._use(self._given, done, run_s, self._plan.cost_rule)
            return
        both = blended(run_s, done, self._given, learned)
        self._use(
            both, done, run_s, f"{self._plan.cost_rule} and the run times of {len(done)} points"
        )

    def _use(self, cost: Array, done: Array, run_s: Array, basis: str) -> None:
        self._cost = cost
        # Guesses are means of logarithms, below the mean, and a given cost has any unit.
        self.expected_s = cost * (np.sum(run_s) / np.sum(cost[done]))
        self.basis = basis


def _above_zero(cost: Array) -> Array:
    """Return costs with zeros replaced by a thousandth of the smallest cost above 0."""
    positive = cost[cost > 0]
    smallest = float(np.min(positive)) if len(positive) else 1.0
    return np.maximum(cost, smallest / 1000)
