"""The simulations behind the policy, run on the scheduler itself with recorded seeds.

The expected numbers are those of the study that the policy rests on, a separate simulation of plain
lists of run times: means over ten seeds. Here the same distributions pass through the real
scheduler with messages of a millisecond. Two means of independent samples agree if they differ by
less than three standard errors of their difference, estimated from the spread over the seeds here,
plus the rounding to two digits: `TOLERATED_ERRORS` and `ROUNDING`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.scheduler_scenarios import Ask, Callers, lognormal
from tests.support.scheduler_simulator import Simulation, fixed_prefetch, seeds

TOLERATED_ERRORS = 3
ROUNDING = 0.005
STUDY_SEEDS = 10
ONE_WAY_S = 1e-3

RunTimesOf = Callable[[np.random.Generator, int], NDArray[np.float64]]


def short_and_long(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    return np.where(rng.random(count) < 0.1, 30.0, 1.0)


FEW, MANY = (256, 32, 10), (2000, 64, 6)
"""Tasks, workers, and a number of seeds that takes some seconds."""

TABLE = [
    # size, run times, one at a time, eight bound and recalled
    (FEW, "90 % 1 s, 10 % 30 s", short_and_long, 1.40, 1.41),
    (FEW, "lognormal, cv 1", partial(lognormal, variation=1.0), 1.41, 1.38),
    (FEW, "lognormal, cv 3", partial(lognormal, variation=3.0), 1.10, 1.11),
    (MANY, "lognormal, cv 1", partial(lognormal, variation=1.0), 1.19, 1.20),
    (MANY, "lognormal, cv 3", partial(lognormal, variation=3.0), 1.30, 1.29),
    (MANY, "90 % 1 s, 10 % 30 s", short_and_long, 1.15, 1.15),
]


def ratios(size: tuple[int, int, int], run_times_of: RunTimesOf) -> NDArray[np.float64]:
    """Return makespan divided by its lower bound, max(work / workers, longest), for each seed."""
    count, workers, number = size
    found = []
    for seed in seeds(number):
        run_times = run_times_of(np.random.default_rng(seed), count)
        # The study had no copies.
        farm = Simulation(workers=workers, one_way_s=ONE_WAY_S, copies=False)
        for seconds in run_times:
            farm.submit(float(seconds))
        farm.run()
        assert farm.work_s == pytest.approx(run_times.sum()), "each ran once"
        found.append(farm.last_end / max(run_times.sum() / workers, run_times.max()))
    return np.array(found)


def assert_agrees(found: NDArray[np.float64], expected: float) -> None:
    error = found.std(ddof=1) * np.sqrt(1 / len(found) + 1 / STUDY_SEEDS)
    assert found.mean() == pytest.approx(expected, abs=TOLERATED_ERRORS * error + ROUNDING)


@pytest.mark.parametrize(
    ("size", "run_times_of", "one", "recalled"),
    [
        pytest.param(row[0], *row[2:], marks=pytest.mark.slow if row is not TABLE[0] else [])
        for row in TABLE
    ],
    ids=[f"{row[0][0]} tasks, {row[0][1]} workers, {row[1]}" for row in TABLE],
)
def test_makespan(
    size: tuple[int, int, int],
    run_times_of: RunTimesOf,
    one: float,
    recalled: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Binding eight calls to a worker costs nothing, because they can be recalled."""
    found_one = ratios(size, run_times_of)
    fixed_prefetch(monkeypatch, 7)
    found_recalled = ratios(size, run_times_of)
    assert_agrees(found_one, one)
    assert_agrees(found_recalled, recalled)
    # The seeds are the same: their common variation cancels.
    assert found_recalled.mean() < found_one.mean() + 0.02


@pytest.mark.parametrize(
    "run_time_ms",
    [pytest.param(0.05, marks=pytest.mark.slow), 0.2, 1, 5, 20, 99, 101, 1000],
)
def test_scheduler_finds_the_depth_that_keeps_workers_busy(run_time_ms: float) -> None:
    """At 50 round trips and more no call waits, which costs the 1/50 that the policy allows.

    It starts without known run times and round trips, which costs the shortest calls some
    hundredths of a second.
    """
    run_time_s = run_time_ms * 1e-3
    farm = Simulation(workers=1, one_way_s=ONE_WAY_S)
    for _ in range(max(200, int(1.0 / run_time_s))):
        farm.submit(run_time_s)
    farm.run()
    assert farm.work_s / farm.last_end >= (0.95 if run_time_ms > 0.1 else 0.9)
    (queue,) = farm.scheduler.view.snapshot(farm.now)["queues"]
    assert queue["prefetch"] <= 1 + 1.4 * 2 * ONE_WAY_S / run_time_s, "and not much more"


# A client with one call at a time beside a sweep


@pytest.mark.parametrize(
    ("workers", "variation"),
    [
        (4, 1.0),
        (1, 1.0),
        *[
            pytest.param(workers, variation, marks=pytest.mark.slow)
            for workers, variation in ((16, 1.0), (1, 0.3), (4, 0.3), (16, 0.3))
        ],
    ],
)
def test_single_calls_pass_a_sweep_of_ten_thousand_points(workers: int, variation: float) -> None:
    """The wait of a chain's call is at most twice the p50 of the runs, as the policy promises.

    Its calls need the next worker that becomes free. On several workers that holds for 95 in 100
    calls; on one, whose only run must end first, for the usual call: half of them.
    """
    rng = np.random.default_rng(next(seeds(1)))
    sweep = lognormal(rng, 10_000 if workers > 1 else 2000, variation)
    chain = lognormal(rng, 200 if workers > 1 else 400, variation)
    farm = Simulation(workers=workers, one_way_s=ONE_WAY_S)
    for seconds in sweep:
        farm.submit(float(seconds), client="sweep")
    callers = Callers(farm, seed=0)
    callers.add((Ask(seconds) for seconds in chain.tolist()), "chain")
    farm.run()
    waits = [answered.reply.queue_time_s for answered in callers.answers]
    p50 = float(np.median(sweep))
    assert len(waits) >= 200
    share = 0.95 if workers > 1 else 0.5
    assert np.quantile(waits, share) <= 2 * p50
    assert np.mean(waits) <= 2 * p50 / workers + 0.1 * p50
    efficiency = farm.work_s / workers / farm.last_end
    assert efficiency >= 0.97 or workers == 16
