"""Quantiles from buckets: within the bound of the exact ones, and of the last runs."""

from __future__ import annotations

import math
import random

import pytest

from farm.monitoring.run_times import SHORTEST_S, STEPS, WINDOW, RunTimeSketch

WITHIN = 2.0 ** (0.5 / STEPS) - 1.0
LEVELS = (0.5, 0.9, 0.99)


def sketch_of(seconds: list[float]) -> RunTimeSketch:
    sketch = RunTimeSketch()
    for each in seconds:
        sketch.add(each)
    return sketch


def test_there_are_none_before_the_first_run() -> None:
    assert RunTimeSketch().quantiles(*LEVELS) == [None, None, None]


@pytest.mark.parametrize("count", [1, 2, 10, 99, 100, 1000, 1900])
def test_they_are_near_the_exact_ones(count: int) -> None:
    chance = random.Random(count)
    seconds = [chance.lognormvariate(-2.0, 2.0) for _ in range(count)]
    exact = [sorted(seconds)[math.ceil(level * count) - 1] for level in LEVELS]
    assert sketch_of(seconds).quantiles(*LEVELS) == pytest.approx(exact, rel=WITHIN)


def test_old_runs_are_forgotten_but_counted() -> None:
    sketch = sketch_of([1.0] * (5 * WINDOW) + [100.0] * (2 * WINDOW))
    assert sketch.count == 7 * WINDOW
    assert sketch.quantiles(0.001) == pytest.approx([100.0], rel=WITHIN)


def test_any_time_fits_in_few_buckets() -> None:
    times = [-1.0, 0.0, 1e-300, SHORTEST_S, 1e-6, 1.0, 1e300]
    sketch = sketch_of(times)
    low, high = sketch.quantiles(0.01, 1.0)
    assert low == pytest.approx(SHORTEST_S, rel=WITHIN)
    assert high == pytest.approx(1e300, rel=WITHIN)
