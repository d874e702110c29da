"""Counts and times of each model's calls."""

from __future__ import annotations

import time

import numpy as np
import pytest

from farm.call import Hints, Operation, Result
from farm.dispatcher.ended import EndedCall, EndedCalls
from farm.dispatcher.statistics import SAMPLES, Measures, Statistics
from farm.errors import ModelFailed, Overloaded
from farm.scheduler.accounts import BULK, Account, Clients, ClientUsage, Usage
from farm.scheduler.actions import Reply
from farm.scheduler.queues import ModelQueues
from farm.scheduler.state import Attempt, Task, TaskId
from tests.dispatcher.ended_calls import AtOnce, answer
from tests.scheduler.recorder import Recorder, call


def task(
    *, rows: int | None = None, operation: Operation = Operation.EVALUATE, max_batch: int = 8
) -> Task:
    asked = call(operation=operation, rows=rows)
    queue = ModelQueues("m", Clients()).by_operation[operation]
    queue.max_batch = max_batch
    times, account = queue.run_times, Account(ClientUsage("me"), Usage("me"))
    count, is_run = rows or 1, (rows or 1) > 1 and max_batch == 1
    made = Task(
        TaskId(1),
        asked,
        queue,
        times,
        account,
        BULK,
        0,
        100.0,
        None,
        count,
        is_run,
        callers=1,
        calls=count if is_run else 1,
    )
    farm = Recorder()
    farm.join("w")
    made.attempt = Attempt(farm.worker("w"), None, 0, 0.0, 100.0, 1, alone=True)
    return made


def counting() -> tuple[AtOnce, Statistics]:
    stream = AtOnce()
    return stream, Statistics(stream)


def result(batch_rows: int, run_time_s: float = 0.5, queue_time_s: float = 0.25) -> Result:
    return Result((np.zeros(1),), run_time_s, queue_time_s=queue_time_s, batch_rows=batch_rows)


def test_calls_of_one_batch_are_one_execution() -> None:
    stream, statistics = counting()
    for rows in (None, 3, 2, 2):
        stream.end(task(rows=rows), result(8), 101.0)
    stream.end(task(), result(1, run_time_s=0.25), 103.0)
    model = statistics.models["m"]
    assert model.rows == 9
    assert model.executions == pytest.approx(2)
    assert (model.success.count, model.success.seconds) == (5, 7.0)
    assert (model.queue.count, model.queue.seconds) == (5, 1.25)
    assert model.compute.count == 5
    assert model.compute.seconds == pytest.approx(0.75)
    assert sorted(model.by_batch) == [1, 8]
    assert [model.by_batch[8].count, model.by_batch[8].seconds] == pytest.approx([1, 0.5])
    assert [model.by_batch[1].count, model.by_batch[1].seconds] == [1, 0.25]
    assert model.last == pytest.approx(time.time() - time.monotonic() + 103.0, abs=1.0)


def test_rows_evaluated_one_after_another_are_as_many_executions() -> None:
    stream, statistics = counting()
    stream.end(task(rows=9, max_batch=1), Result((np.zeros((6, 1)),), 0.5), 101.0)
    model = statistics.models["m"]
    assert (model.rows, model.executions, model.compute.seconds) == (6, 6.0, 0.5)
    assert {rows: (ran.count, ran.seconds) for rows, ran in model.by_batch.items()} == {1: (6, 0.5)}


def test_failures_count_apart() -> None:
    stream, statistics = counting()
    stream.end(task(), ModelFailed("diverged"), 104.0)
    model = statistics.models["m"]
    assert (model.fail.count, model.fail.seconds) == (1, 4.0)
    assert (model.success.count, model.rows, model.executions, model.last) == (0, 0, 0, 0.0)


def test_of_a_run_the_row_that_failed_is_one_call() -> None:
    stream, statistics = counting()
    ran = Result((np.zeros((6, 1)),), 0.5, failed=ModelFailed("diverged"))
    stream.end(task(rows=9, max_batch=1), ran, 104.0, calls=9, fails=1)
    stream.end(task(rows=9, max_batch=1), ran, 104.0, calls=0)  # rows of a call that fails later
    model = statistics.models["m"]
    assert (model.success.count, model.fail.count, model.rows) == (6, 1, 12)
    (row,) = statistics.clients.snapshot({}, 1000.0)
    assert (row["done"], row["failed"]) == (6, 1)


@pytest.mark.parametrize("operation", [Operation.DESCRIBE, Operation.COST])
def test_questions_do_not_count(operation: Operation) -> None:
    stream, statistics = counting()
    stream.end(task(operation=operation), Result(()), 101.0)
    assert statistics.models == {}
    assert statistics.clients.snapshot({}, 1000.0) == []


def test_each_client_is_counted_by_its_calls_however_they_ran() -> None:
    stream, statistics = counting()
    stream.end(task(), result(1), 1000.0)
    stream.end(task(), ModelFailed("diverged"), 1000.0)
    stream.end(task(operation=Operation.COST), Result(()), 1000.0)
    stream.end(task(rows=4), result(4), 1000.0, calls=0)  # a part of a call
    hints = Hints("me", shown_as=("me", "a"))
    stream.whole(call(), ModelFailed("diverged"), hints, 0.0)
    stream.reused(call(), hints, calls=3, rows=5)
    stream.reused(call(), hints, calls=0, rows=5)
    stream.reused(call(), hints, calls=0, rows=0, missed=2)
    stream.refused(call(), hints, Overloaded("full"))
    (row,) = statistics.clients.snapshot({}, 1000.0)
    assert (row["client"], row["done"], row["failed"], row["worker_s"]) == ("me", 4, 2, 1.0)
    (chain,) = statistics.chains.snapshot((), 1000.0)
    assert (chain["done"], chain["failed"]) == (3, 1)
    model = statistics.models["m"]
    assert (model.reused, model.missed, model.success.count, model.fail.count) == (10, 2, 4, 2)


def of_chain(*, more: bool = False) -> EndedCall:
    return answer(1, 0, 1001.0, 1.0, rows=1, done=1, task=TaskId(2), ran=True, more=more)


def test_a_chain_begins_after_the_calls_that_have_ended() -> None:
    stream = EndedCalls()
    statistics = Statistics(stream)
    stream.answered(Reply(task(), result(1, run_time_s=9.0), 0.0, None), result(1, 9.0), 1, 0, 1.0)
    statistics.chains.opened(TaskId(2), call(), ("me", "a"), 1000.0)
    stream.add(of_chain())
    (row,) = statistics.chains.snapshot((), 1001.0)
    assert (row["done"], row["queued"], row["share"]) == (1, 0, 1.0)


def test_a_chain_that_began_with_an_answer_from_a_record_keeps_it() -> None:
    stream = EndedCalls()
    statistics = Statistics(stream)
    stream.reused(call(), Hints("me", shown_as=("me", "a")), calls=1, rows=1)
    statistics.chains.opened(TaskId(2), call(), ("me", "a"), 1000.0)
    (row,) = statistics.chains.snapshot((), 1001.0)
    assert (row["done"], row["queued"]) == (1, 1)


def test_of_a_cancelled_task_the_rows_that_were_answered_count() -> None:
    stream = EndedCalls()
    statistics = Statistics(stream)
    statistics.chains.opened(TaskId(2), call(), ("me", "a"), 1000.0)
    stream.add(of_chain(more=True))
    statistics.chains.cancelled(TaskId(2))
    (row,) = statistics.chains.snapshot((), 1001.0)
    assert (row["done"], row["queued"]) == (1, 0)


def task_of(*, submitted_at: float = 0.0, alone: bool = False, refill: bool = False) -> Task:
    farm = Recorder()
    farm.join("w")
    farm.now = submitted_at
    task = farm.task(farm.submit())
    worker = farm.worker("w")
    task.attempt = Attempt(worker, None, 0, 0.0, submitted_at, 1, alone=alone, refill=refill)
    return task


def measuring() -> tuple[AtOnce, Measures]:
    stream = AtOnce()
    return stream, Measures(stream)


def test_nothing_is_measured_at_first() -> None:
    assert Measures(EndedCalls()).snapshot(1.0) == {
        "done": 0,
        "failed": 0,
        "run_time_s": 0.0,
        "calls_per_s": 0.0,
        "overhead_s": None,
        "idle_gap_s": None,
    }


def test_calls_are_counted_and_timed() -> None:
    stream, measures = measuring()
    stream.end(task_of(), Result((), 2.0), 10.0)
    stream.end(task_of(), Result((), 3.0), 11.0)
    stream.end(task_of(), ModelFailed("it raised"), 12.0, fails=1)
    state = measures.snapshot(12.0)
    assert (state["done"], state["failed"], state["run_time_s"]) == (2, 1, 5.0)
    assert state["calls_per_s"] == pytest.approx(0.3)
    assert measures.snapshot(21.5)["calls_per_s"] == pytest.approx(0.1)
    assert measures.snapshot(100.0)["calls_per_s"] == 0.0


def test_rate_of_more_calls_than_are_kept_is_over_the_time_they_span() -> None:
    stream, measures = measuring()
    task = task_of()
    for i in range(2 * SAMPLES):
        stream.end(task, Result((), 0.0), i * 1e-3)
    now = (2 * SAMPLES - 1) * 1e-3
    assert measures.snapshot(now)["calls_per_s"] == pytest.approx(1000.0, rel=1e-3)


def test_overhead_is_of_calls_that_found_a_worker_idle() -> None:
    stream, measures = measuring()
    stream.end(task_of(submitted_at=1.0, alone=True), Result((), 2.0), 3.5)
    stream.end(task_of(submitted_at=1.0), Result((), 2.0), 99.0)
    overhead = measures.snapshot(100.0)["overhead_s"]
    assert overhead == pytest.approx({"p50": 0.5, "p95": 0.5, "p99": 0.5, "samples": 1})


@pytest.mark.parametrize("alone", [True, False])
def test_idle_gap_is_of_calls_that_waited_for_the_worker_here_or_there(alone: bool) -> None:
    stream, measures = measuring()
    for idle_s in (0.1, 0.2, 0.3, -1.0):  # below 0: the worker does not report it
        task = task_of(alone=alone, refill=alone)
        stream.end(task, Result((), 2.0, idle_s=idle_s), 9.0)
    stream.end(task_of(alone=True), Result((), 2.0, idle_s=5.0), 9.0)
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
    task.attempt = Attempt(farm.worker("w"), None, 0, 0.0, 0.0, 1, alone=True)
    stream, measures = measuring()
    stream.end(task, Result((np.ones((4, 1)),), 2.0), 1.0)
    stream.end(task, Result((), 0.0, failed=ModelFailed("row 4")), 1.0, fails=1)
    state = measures.snapshot(1.0)
    assert (state["done"], state["failed"]) == (4, 1)
    assert state["calls_per_s"] == pytest.approx(0.4)
    assert task.ended(Result((np.ones((4, 1)),))) == 4
    assert task.ended(ModelFailed("all")) == 0
