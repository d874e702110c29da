"""The order in which a sweep submits its points: longest first once costs are known.

The farm serves the calls of one client oldest first, so points run in the order of submission. A
farm that starts the longest runs first ends sooner, because no long run is left for the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farm.call import Array
from farm.sweep.design.plan import AUTO, Plan
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.order.costs import timed
from farm.sweep.order.neighbours import (
    blended,
    coordinates,
    correlated,
    explained,
    guesses,
    left_out,
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


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What is known of the cost of each point: as in `SubmissionOrder`.

    cost: in any unit, to sort by; None: the order stays mixed.
    """

    cost: Array | None = None
    expected_s: Array | None = None
    basis: str = ""


@dataclass(slots=True)
class LearningSchedule:
    """When to guess run times: once enough are known, and for a small share of the time.

    known: number of run times known, which together are `work_s`. due: number at which to guess.
    not_before: monotonic seconds.
    """

    known: int
    work_s: float
    due: int = ENOUGH
    not_before: float = 0.0

    def ran(self, count: int, run_s: float) -> None:
        """Record run times, which together are `run_s`."""
        self.known += count
        self.work_s += run_s

    @property
    def is_worth_it(self) -> bool:
        """Whether the runs are long enough for an order to pay."""
        return self.work_s >= LEAST_RUN_S * self.known

    def is_due(self, now: float) -> bool:
        """Whether to guess at the time `now`."""
        return self.known >= self.due and self.is_worth_it and now >= self.not_before

    def guessed(self, began: float, ended: float) -> None:
        """Record a guess, and when it began and ended."""
        self.due = max(self.known + 1, math.ceil(GROWTH * self.known))
        self.not_before = ended + LEAST_SHARE * (ended - began)


class SubmissionOrder:
    """The points still to submit, in order; `plan.order` decides whether cost matters.

    known: the state of all points, which the caller updates.
    """

    def __init__(self, plan: Plan, known: PointColumns) -> None:
        self._plan = plan
        self._known = known
        mixed = plan.mixed()
        # A plan's record has less than 4 GiB, so there are fewer than 2**31 points.
        self._place = np.empty(plan.size, dtype=np.int32)
        self._place[mixed] = np.arange(plan.size, dtype=np.int32)
        self._turn = np.zeros(plan.size, dtype=np.int64)
        self._turns = 0
        self._coordinates: Array | None = None
        self._line = np.empty(0, dtype=np.int32)
        self._next = 0  # in the line
        self._back: list[int] = []  # before the line, the last one first
        self._given: Array | None = None
        self._costs = Costs()
        if plan.cost is not None and plan.order == AUTO:
            self._given = _above_zero(plan.cost)
            self._costs = Costs(self._given, basis=plan.cost_rule)
        ran = known.t_run[timed(known)].astype(np.float64)
        self._schedule = LearningSchedule(len(ran), float(np.sum(ran)))

    @property
    def expected_s(self) -> Array | None:
        """Guess of the run time of each point that is not done, in seconds; None without one."""
        return self._costs.expected_s

    @property
    def basis(self) -> str:
        """Where the costs come from, in words; empty while the order is mixed."""
        return self._costs.basis

    def __len__(self) -> int:
        return len(self._back) + len(self._line) - self._next

    def fill(self, points: Array) -> None:
        """Add points and sort."""
        self._line = np.concatenate([self._rest(), points.astype(np.int32)])
        self.sort()

    def _rest(self) -> Array:
        return np.concatenate([np.array(self._back[::-1], np.int32), self._line[self._next :]])

    def take(self, most: int) -> Array:
        """Return the next points, `most` at most, and remove them."""
        back = self._back[-1 : -most - 1 : -1]
        del self._back[len(self._back) - len(back) :]
        line = self._line[self._next : self._next + most - len(back)]
        self._next += len(line)
        points = np.concatenate([np.array(back, np.int64), line])
        self._turn[points] = self._turns + 1 + np.arange(len(points))
        self._turns += len(points)
        return points

    def put_back(self, points: Sequence[int]) -> None:
        """Add points that were taken; the last one is the next until the order changes."""
        self._back.extend(points)
        self._turn[points] = 0

    def ran(self, run_s: Array) -> None:
        """Record the run times of points that were done; NaN and 0 do not count."""
        run_s = run_s[run_s > 0]
        self._schedule.ran(len(run_s), float(np.sum(run_s)))

    @property
    def are_short(self) -> bool:
        """Whether the points are known to run for so short that no order gains anything."""
        return self._schedule.known >= ENOUGH and not self._schedule.is_worth_it

    def is_due(self, now: float) -> bool:
        """Whether `learn` may improve the order; cheap, for each turn of a loop.

        now: monotonic seconds.
        """
        return self._plan.order == AUTO and self._schedule.is_due(now)

    def learn(self, now: float) -> bool:
        """Guess the run times from those that are known; return whether to `sort` again.

        Costs that the user gave and learned ones are used if they explain enough, and together if
        both do. If neither do, the order is mixed again. now: Unix time.
        """
        before = self._costs.cost
        done = timed(self._known)
        run_s = self._known.t_run[done].astype(np.float64)
        learned = self._learned(done, run_s, now)
        if self._trusts_given(done, run_s):
            self._costs = self._with_given(done, run_s, learned)
        elif learned is not None:
            self._costs = _scaled(learned, done, run_s, f"the run times of {len(done)} points")
        else:
            self._costs = Costs()
        return self._costs.cost is not before

    def learned(self, began: float, ended: float) -> None:
        """Record when `learn` began and ended, in monotonic seconds."""
        self._schedule.guessed(began, ended)

    def sort(self) -> None:
        """Sort the points: the mixed first fifth, then the rest, longest first if costs are known.

        Points with equal cost keep their mixed order.
        """
        points = self._rest()
        points = points[np.argsort(self._place[points])]
        if self._costs.cost is not None:
            is_first = self._place[points] < self._mixed_first
            first, rest = points[is_first], points[~is_first]
            rest = rest[np.argsort(-self._costs.cost[rest], kind="stable")]
            points = np.concatenate([first, rest])
        self._line, self._next = points, 0
        self._back.clear()

    @property
    def _mixed_first(self) -> int:
        """Number of the first points, which stay mixed."""
        return self._plan.size // MIXED_SHARE

    def _trusts_given(self, done: Array, run_s: Array) -> bool:
        if self._given is None:
            return False
        # Judge by the mixed points once most are done: those that end first are the short ones.
        mixed = max(self._mixed_first, ENOUGH)
        fair = self._place[done] < mixed
        if np.count_nonzero(fair) < MOST_DONE * mixed:
            return True
        return correlated(run_s[fair], self._given[done[fair]]) >= LEAST_EXPLAINED

    def _learned(self, done: Array, run_s: Array, now: float) -> Array | None:
        """Return the guess at all points, at the known ones from the others; None if it is poor."""
        if self._coordinates is None:
            self._coordinates = coordinates(self._plan)
        overdue, so_far_s = self._overdue(done, run_s, now)
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

    def _overdue(self, done: Array, run_s: Array, now: float) -> tuple[Array, Array]:
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
        so_far_s = now - latest_start[after]
        expected_s = guesses(self._coordinates[done], run_s, self._coordinates[out])
        longer = so_far_s > expected_s
        return out[longer], so_far_s[longer]

    def _with_given(self, done: Array, run_s: Array, learned: Array | None) -> Costs:
        assert self._given is not None
        if learned is None:
            return _scaled(self._given, done, run_s, self._plan.cost_rule)
        both = blended(run_s, done, self._given, learned)
        basis = f"{self._plan.cost_rule} and the run times of {len(done)} points"
        return _scaled(both, done, run_s, basis)


def _scaled(cost: Array, done: Array, run_s: Array, basis: str) -> Costs:
    """Return costs with the run times that follow from those of the points that are done."""
    # Guesses are means of logarithms, below the mean, and a given cost has any unit.
    return Costs(cost, cost * (np.sum(run_s) / np.sum(cost[done])), basis)


def _above_zero(cost: Array) -> Array:
    """Return costs with zeros replaced by a thousandth of the smallest cost above 0."""
    positive = cost[cost > 0]
    smallest = float(np.min(positive)) if len(positive) else 1.0
    return np.maximum(cost, smallest / 1000)
