"""What is counted of workers that come and go, and of calls that end."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from farm.call import Operation, Result, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import FarmError, LossCause, ModelFailed, WorkerLost
from farm.monitoring.counters import Counters, Histogram
from farm.scheduler.actions import Reply
from farm.scheduler.state import TaskId, WorkerId
from tests.dispatcher.ended_calls import AtOnce
from tests.scheduler.recorder import Recorder, call, model

WORKER = WorkerInfo("node1/0", ())


class Answered:
    """A scheduler whose replies are counted, as the dispatcher does it."""

    def __init__(self, *workers: str, max_batch: int = 1) -> None:
        self.farm = Recorder()
        self.counters = Counters(Dispatcher([]))
        self.stream = AtOnce()
        self.stream.add_window(self.counters)
        for worker in workers:
            self.farm.scheduler.worker_joined(
                WorkerId(worker),
                [model(max_batch=max_batch)],
                now=self.farm.now,
            )

    def act(self) -> None:
        for action in self.farm.scheduler.actions(self.farm.now):
            if isinstance(action, Reply):
                outcome = action.outcome
                if isinstance(outcome, Result):
                    outcome = action.result(outcome)
                self.stream.answered(action, outcome, 1, 0, self.farm.now)

    def submit(self, rows: int | None = None) -> TaskId:
        task = self.farm.scheduler.submit(call(rows=rows), now=self.farm.now)
        self.act()
        return task

    def finish(self, worker: str, task: TaskId, outcome: Result | FarmError, after: float) -> None:
        self.farm.now += after
        self.farm.scheduler.finished(
            WorkerId(worker),
            task,
            outcome,
            now=self.farm.now,
        )
        self.act()

    def lose(self, task: TaskId) -> None:
        """Lose the worker that runs a task."""
        attempt = self.farm.scheduler._open.by_id[task].attempt
        self.farm.scheduler.worker_left(
            attempt.worker.id, "it died", running=[task], now=self.farm.now
        )
        self.act()

    def row(self) -> dict[str, Any]:
        (row,) = self.counters.snapshot()["queues"]
        assert isinstance(row, dict)
        return row


def done(run_time_s: float, rows: int = 1, **more: Any) -> Result:
    return replace(Result((np.zeros((rows, 1)),), run_time_s), **more)


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


def test_times_of_a_call_that_finds_a_free_worker() -> None:
    seen = Answered("a")
    task = seen.submit()
    seen.finish("a", task, done(1.5, queue_time_s=0.004), after=1.515)
    row = seen.row()
    assert (row["model"], row["operation"]) == ("m", Operation.EVALUATE.value)
    assert row["ends"] == {"done": 1}
    assert times(row["run_times_s"]) == {2.0: 1}
    assert times(row["waits_s"]) == {0.005: 1}
    assert times(row["overheads_s"]) == {0.02: 1}
    assert row["run_times_s"]["sum"] == 1.5


def test_the_wait_of_a_call_is_no_overhead() -> None:
    seen = Answered("a")
    first, second = seen.submit(), seen.submit()
    seen.finish("a", first, done(3.0), after=3.0)
    seen.finish("a", second, done(3.0), after=3.0)
    row = seen.row()
    assert times(row["waits_s"]) == {1e-4: 1, 5.0: 1}
    assert sum(row["overheads_s"]["counts"]) == 1


def test_a_run_of_rows_counts_each_row() -> None:
    seen = Answered("a")
    task = seen.submit(rows=8)
    seen.finish("a", task, done(0.3, rows=6, failed=ModelFailed("row 6")), after=0.3)
    row = seen.row()
    assert times(row["run_times_s"]) == {0.05: 6}
    assert row["ends"] == {"done": 6, "ModelFailed": 1}


def test_a_batch_counts_as_one_run_for_each_call() -> None:
    seen = Answered("a", max_batch=4)
    task = seen.submit(rows=4)
    seen.finish("a", task, done(0.3, rows=4, batch_rows=4), after=0.3)
    assert times(seen.row()["run_times_s"]) == {0.5: 1}


def test_failures_by_class_of_error() -> None:
    seen = Answered("a")
    seen.finish("a", seen.submit(), ModelFailed("it raised"), after=1.0)
    row = seen.row()
    assert row["ends"] == {"done": 0, "ModelFailed": 1}
    assert sum(row["run_times_s"]["counts"]) == 0


def test_retries_after_losses_that_ended_well() -> None:
    seen = Answered("a", "b", "c")
    task = seen.submit()
    seen.lose(task)
    seen.lose(task)
    (last,) = seen.farm.scheduler._workers
    seen.finish(last, task, done(1.0), after=1.0)
    assert seen.row()["retries"] == 2


def test_the_loss_that_ends_a_call_is_no_retry() -> None:
    seen = Answered(*"abcd")
    task = seen.submit()
    for _ in "abcd":
        seen.lose(task)
    row = seen.row()
    assert row["ends"] == {"done": 0, WorkerLost.__name__: 1}
    assert row["retries"] == seen.farm.scheduler._open._retries == 3


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
