"""What is counted of workers that come and go, and of calls that end."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from farm.call import WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import WHOLE, EndedCall
from farm.dispatcher.events import Departure
from farm.errors import FarmError, LossCause, ModelFailed, TimeLimitExceeded, WorkerLost
from farm.monitoring.counters import Counters, Histogram
from tests.dispatcher.ended_calls import answer

WORKER = WorkerInfo("node1/0", ())


def times(histogram: dict[str, Any]) -> dict[float, int]:
    """Return the counts by upper bound, without those that are 0."""
    bounds = [*histogram["bounds"], float("inf")]
    return {b: n for b, n in zip(bounds, histogram["counts"], strict=True) if n}


def test_workers_that_come_and_go() -> None:
    counters = Counters(Dispatcher([]))
    for _ in range(3):
        counters.joined(WORKER, None)
    counters.left(WORKER, Departure("asked to", drained=True))
    counters.left(WORKER, Departure("stopped by its supervisor", LossCause.STOPPED))
    counters.left(WORKER, Departure("signal 11", LossCause.CRASH))
    counters.left(WORKER, Departure("no connection"))
    shown = counters.snapshot()
    assert (shown["joins"], shown["drained"]) == (3, 2)
    assert shown["losses"] == {"unknown": 1, "crash": 1, "time limit": 0, "reclaimed": 0}
    assert json.loads(json.dumps(shown)) == shown


def ran(run_s: float, *, done: int = 1, **more: Any) -> EndedCall:
    """Return the record of a task that took `run_s` seconds in the model, and 15 ms more."""
    began, given = 5.0, {"ran": True, "done": done, "run_s": run_s, "row_s": run_s / done, **more}
    return replace(answer(1, 0, began + run_s + 0.015), began=began, **given)


def lost(error: FarmError, losses: int) -> EndedCall:
    return answer(0, 1, 9.0, error=error, losses=losses)


FAILED = ModelFailed("it raised")


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (
            [ran(1.5, queue_s=0.004)],
            {
                "ends": {"done": 1},
                "run_times_s": {2.0: 1},
                "waits_s": {0.005: 1},
                "overheads_s": {0.02: 1},
            },
        ),
        (
            [ran(3.0, queue_s=2.9, waited=True), ran(3.0, copied=True)],
            {"waits_s": {1e-4: 1, 5.0: 1}, "overheads_s": {}},
        ),
        ([ran(3.0, rows=4, batch_rows=4)], {"run_times_s": {5.0: 1}}),
        (
            [ran(0.3, done=6, rows=8, is_run=True, error=FAILED)],
            {"ends": {"done": 6, "ModelFailed": 1}, "run_times_s": {0.05: 6}, "waits_s": {1e-4: 6}},
        ),
        ([lost(FAILED, 0)], {"ends": {"done": 0, "ModelFailed": 1}, "run_times_s": {}}),
        ([ran(1.0, losses=2), lost(FAILED, 1)], {"retries": 3}),
        ([lost(WorkerLost("died"), 4)], {"ends": {"done": 0, "WorkerLost": 1}, "retries": 3}),
        ([lost(TimeLimitExceeded("long"), 1)], {"retries": 0}),
        ([replace(ran(1.0), ending=WHOLE), ran(1.0)], {"ends": {"done": 1}}),
    ],
    ids=[
        "a call that finds a free worker",
        "calls whose wait, or the time before a copy, is no overhead",
        "a batch",
        "a run of rows, each of which counts",
        "a failure",
        "retries that had an answer",
        "a loss that is no retry",
        "a time limit that is no retry",
        "a call whose tasks count",
    ],
)
def test_what_is_counted_of_ended_calls(
    records: list[EndedCall], expected: dict[str, object]
) -> None:
    counters = Counters(Dispatcher([]))
    counters.fold(records)
    (row,) = counters.snapshot()["queues"]
    assert (row["model"], row["operation"]) == ("m", "evaluate")
    for name in expected:
        shown = times(row[name]) if name.endswith("_s") else row[name]
        assert shown == expected[name], name


def test_a_time_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    histogram.add([5.1, 0.0, 1.0, 2.0, 5.0, 1.5, 1e9])
    assert histogram.counts == [2, 2, 1, 2]
    assert histogram.sum == 1e9 + 14.6


def test_several_events_of_one_length() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.add([1.5], 4)
    shown = json.loads(json.dumps(asdict(histogram)))
    assert shown == {"bounds": [1.0, 2.0], "counts": [0, 4, 0], "sum": 6.0}
