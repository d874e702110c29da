"""Simulated sweeps: the real order and limit of a sweep on a farm of equal workers, without time.

The farm serves points in the order of submission, as the scheduler does for one client. Guesses
take no time here.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from farm.call import Array, ModelInfo, TensorInfo
from farm.sweep.design.plan import AUTO, SHUFFLED, Plan
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest, make_plan
from farm.sweep.file.journal import PointStatus, Row
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.order.submission import SubmissionOrder
from farm.sweep.run.concurrency_limit import ConcurrencyLimit
from farm.sweep.run.run import recallable_after
from farm.sweep.space.parameters import Uniform

SEEDS = range(6)
OFF_BY = 1.6
"""Factor by which the guesses of the column "guessed" are off (one standard deviation)."""


def makespan_ratio(plan: Plan, run_s: Array, workers: int) -> float:
    """Return the time that a sweep takes over its lower bound, max(work / workers, longest run)."""
    now = 0.0
    known = PointColumns.nothing(plan.size)
    order = SubmissionOrder(plan, known)
    order.fill(plan.mixed())
    limit = ConcurrencyLimit()
    limit.there_are(workers)
    queued: deque[int] = deque()
    running: list[tuple[float, int]] = []
    while True:
        queued.extend(order.take(max(0, limit.size(now) - len(queued) - len(running))).tolist())
        while queued and len(running) < workers:
            point = queued.popleft()
            heapq.heappush(running, (now + run_s[point], point))
        if not running:
            return now / max(float(np.sum(run_s)) / workers, float(np.max(run_s)))
        now, point = heapq.heappop(running)
        limit.answered(f"w{point % workers}", now)
        t_run = float(run_s[point])
        row = Row(point, PointStatus.DONE, t_start=now - t_run, t_run=t_run, values=np.empty(0))
        known.add(row)
        order.ran(run_s[point : point + 1])
        if not order.is_due(now):
            continue
        changed = order.learn(now)
        order.learned(now, now)
        if changed:
            # The one that has just ended is not running any more; the farm starts the next at once.
            while len(running) + len(queued) > recallable_after(workers, varied_config=False):
                order.put_back([queued.pop()])
            order.sort()


@dataclass(frozen=True, slots=True)
class Case:
    """A sweep: its size, and its run times from positions in the unit cube and a generator."""

    title: str
    points: int
    workers: int
    parameters: int
    run_times: Callable[[Array, np.random.Generator], Array]
    design: str = "random"

    def ratios(self, seed: int) -> dict[str, float]:
        """Return the ratio of each way to order the points."""
        rng = np.random.default_rng(seed)
        info = ModelInfo("m", (TensorInfo("x", (self.parameters,)),), (TensorInfo("y", (1,)),))
        count = (
            round(self.points ** (1 / self.parameters)) if self.design == "grid" else self.points
        )
        spreads = {"x": Uniform(0, 1)}
        request = SweepRequest(parse_design(f"{self.design}:{count}"), seed, spreads)
        plan = make_plan(request, lambda config: info)
        assert plan.unit is not None
        run_s = self.run_times(plan.unit, rng)
        guess = run_s * np.exp(math.log(OFF_BY) * rng.normal(size=plan.size))
        plans = {
            "shuffled": replace(plan, order=SHUFFLED),
            "guessed": replace(plan, cost=guess, cost_rule="numbers"),
            "learned": replace(plan, order=AUTO),
            "oracle": replace(plan, cost=run_s, cost_rule="numbers"),
        }
        return {name: makespan_ratio(p, run_s, self.workers) for name, p in plans.items()}

    def medians(self) -> dict[str, float]:
        """Return the median of each ratio over `SEEDS`."""
        rows = [self.ratios(seed) for seed in SEEDS]
        return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}


def smooth(cv: float, noise: float = 0.1) -> Callable[[Array, np.random.Generator], Array]:
    """Return lognormal run times of coefficient of variation `cv`, smooth over the parameters.

    noise: share of the variance of the logarithm that the parameters do not explain.
    """

    def run_times(unit: Array, rng: np.random.Generator) -> Array:
        trend = unit @ rng.normal(size=unit.shape[1])
        for _ in range(2):
            wave = unit @ rng.normal(size=unit.shape[1])
            trend = trend + 0.5 * np.sin(math.pi * wave + rng.random())
        trend = (trend - np.mean(trend)) / np.std(trend)
        mixed = math.sqrt(1 - noise) * trend + math.sqrt(noise) * rng.normal(size=len(unit))
        return np.asarray(np.exp(_sigma(cv) * mixed))

    return run_times


def independent(cv: float) -> Callable[[Array, np.random.Generator], Array]:
    """Return lognormal run times that no parameter explains."""

    def run_times(unit: Array, rng: np.random.Generator) -> Array:
        return np.asarray(np.exp(_sigma(cv) * rng.normal(size=len(unit))))

    return run_times


def rare(unit: Array, rng: np.random.Generator) -> Array:
    """Return 1 s for most points and 30 s for a tenth: those at one end of a parameter."""
    return np.where(unit[:, 0] > 0.9, 30.0, 1.0)


def rare_anywhere(unit: Array, rng: np.random.Generator) -> Array:
    """Return 1 s for most points and 30 s for a tenth, which no parameter explains."""
    return np.where(rng.random(len(unit)) > 0.9, 30.0, 1.0)


def rising(unit: Array, rng: np.random.Generator) -> Array:
    """Return 1 to 60 s, rising along the first parameter."""
    return 1.0 + 59.0 * unit[:, 0]


def _sigma(cv: float) -> float:
    """Return the standard deviation of the logarithm of a lognormal of this cv."""
    return math.sqrt(math.log(1 + cv * cv))


CASES = {
    case.title: case
    for case in (
        Case("cv 1, 256 points, 32 workers", 256, 32, 2, smooth(1)),
        Case("cv 1, 256 points, 32 workers, 4 parameters", 256, 32, 4, smooth(1)),
        Case("cv 3, 2000 points, 32 workers", 2000, 32, 3, smooth(3)),
        Case("10 % take 30 s, 256 points, 32 workers", 256, 32, 2, rare),
        Case("1 to 60 s on an axis, 256 points, 64 workers", 256, 64, 1, rising, "grid"),
        Case("1 to 60 s on an axis, 2000 points, 64 workers", 2000, 64, 1, rising, "grid"),
        Case("unexplained cv 1, 256 points, 32 workers", 256, 32, 2, independent(1)),
        Case("unexplained cv 3, 2000 points, 32 workers", 2000, 32, 3, independent(3)),
        Case("unexplained 30 s, 256 points, 32 workers", 256, 32, 2, rare_anywhere),
    )
}
