"""Measurements of a running farm."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Result
from farm.dispatcher.measures import SAMPLES, Measures
from farm.errors import ModelFailed
from farm.scheduler.state import Attempt, Task
from tests.scheduler.recorder import Recorder, call


def task_of(*, submitted_at: float = 0.0, alone: bool = False, refill: bool = False) -> Task:
    farm = Recorder()
    farm.join("w")
    farm.now = submitted_at
    task = farm.task(farm.submit())
    task.attempt = Attempt(farm.worker("w"), None, 0, 0.0, 1, alone, refill, submitted_at)
    return task


def test_nothing_is_measured_at_first() -> None:
    assert Measures().snapshot(1.0) == {
        "done": 0,
        "failed": 0,
        "run_time_s": 0.0,
        "calls_per_s": 0.0,
        "overhead_s": None,
        "idle_gap_s": None,
    }


def test_calls_are_counted_and_timed() -> None:
    measures = Measures()
    measures.add(task_of(), Result((), 2.0), 0, 10.0)
    measures.add(task_of(), Result((), 3.0), 0, 11.0)
    measures.add(task_of(), ModelFailed("it raised"), 1, 12.0)
    state = measures.snapshot(12.0)
    assert (state["done"], state["failed"], state["run_time_s"]) == (2, 1, 5.0)
    assert state["calls_per_s"] == pytest.approx(0.3)
    assert measures.snapshot(21.5)["calls_per_s"] == pytest.approx(0.1)
    assert measures.snapshot(100.0)["calls_per_s"] == 0.0


def test_rate_of_more_calls_than_are_kept_is_over_the_time_they_span() -> None:
    measures = Measures()
    task = task_of()
    for i in range(2 * SAMPLES):
        measures.add(task, Result((), 0.0), 0, i * 1e-3)
    now = (2 * SAMPLES - 1) * 1e-3
    assert measures.snapshot(now)["calls_per_s"] == pytest.approx(1000.0, rel=1e-3)


def test_overhead_is_of_calls_that_found_a_worker_idle() -> None:
    measures = Measures()
    measures.add(task_of(submitted_at=1.0, alone=True), Result((), 2.0), 0, 3.5)
    measures.add(task_of(submitted_at=1.0), Result((), 2.0), 0, 99.0)
    overhead = measures.snapshot(100.0)["overhead_s"]
    assert overhead == pytest.approx({"p50": 0.5, "p95": 0.5, "p99": 0.5, "samples": 1})


@pytest.mark.parametrize("alone", [True, False])
def test_idle_gap_is_of_calls_that_waited_for_the_worker_here_or_there(alone: bool) -> None:
    measures = Measures()
    for idle_s in (0.1, 0.2, 0.3, -1.0):  # below 0: the worker does not report it
        task = task_of(alone=alone, refill=alone)
        measures.add(task, Result((), 2.0, idle_s=idle_s), 0, 9.0)
    measures.add(task_of(alone=True), Result((), 2.0, idle_s=5.0), 0, 9.0)
    gap = measures.snapshot(9.0)["idle_gap_s"]
    assert gap is not None
    assert gap["samples"] == 3
    assert gap["p50"] == pytest.approx(0.2)
    assert gap["p99"] == pytest.approx(0.298)
    overhead = measures.snapshot(9.0)["overhead_s"]
    assert overhead is not None
    assert overhead["samples"] == 1  # only the call that did not wait


def test_each_row_of_a_run_counts() -> None:
    farm = Recorder()
    farm.join("w")
    task = farm.task(farm.submit(call(rows=6)))
    task.attempt = Attempt(farm.worker("w"), None, 0, 0.0, 1, False, False, 0.0)
    measures = Measures()
    measures.add(task, Result((np.ones((4, 1)),), 2.0), 0, 1.0)
    measures.add(task, Result((), 0.0, failed=ModelFailed("row 4")), 1, 1.0)
    state = measures.snapshot(1.0)
    assert (state["done"], state["failed"]) == (4, 1)
    assert state["calls_per_s"] == pytest.approx(0.4)
    assert task.ended(Result((np.ones((4, 1)),))) == 4
    assert task.ended(ModelFailed("all")) == 0
