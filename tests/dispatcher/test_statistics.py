"""Counts and times of each model's calls."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Hints, Operation, Result
from farm.dispatcher.statistics import Statistics
from farm.errors import ModelFailed
from farm.scheduler.accounts import BULK, Account, Clients, ClientUsage, Usage
from farm.scheduler.queues import ModelQueues
from farm.scheduler.state import Task, TaskId
from tests.scheduler.recorder import call


def task(
    *, rows: int | None = None, operation: Operation = Operation.EVALUATE, max_batch: int = 8
) -> Task:
    asked = call(operation=operation, rows=rows)
    queue = ModelQueues("m", Clients()).by_operation[operation]
    queue.max_batch = max_batch
    return Task(
        TaskId(1), asked, queue, Account(ClientUsage("me"), Usage("me")), 0, None, 100.0, None, BULK
    )


def result(batch_rows: int, run_time_s: float = 0.5, queue_time_s: float = 0.25) -> Result:
    return Result((np.zeros(1),), run_time_s, queue_time_s=queue_time_s, batch_rows=batch_rows)


def test_calls_of_one_batch_are_one_execution() -> None:
    statistics = Statistics()
    for rows in (None, 3, 2, 2):
        asked = task(rows=rows)
        statistics.add_run(asked, result(8))
        statistics.add_outcome(asked.call, result(8), 1.0, 1e9)
    statistics.add_run(task(), result(1, run_time_s=0.25))
    statistics.add_outcome(call(), result(1, run_time_s=0.25), 3.0, 2e9)
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
    assert model.last == 2e9


def test_rows_evaluated_one_after_another_are_as_many_executions() -> None:
    statistics = Statistics()
    ran = Result((np.zeros((6, 1)),), 0.5)
    statistics.add_run(task(rows=9, max_batch=1), ran)
    model = statistics.models["m"]
    assert (model.rows, model.executions, model.compute.seconds) == (6, 6.0, 0.5)
    assert {rows: (ran.count, ran.seconds) for rows, ran in model.by_batch.items()} == {1: (6, 0.5)}


def test_failures_count_apart() -> None:
    statistics = Statistics()
    statistics.add_run(task(), ModelFailed("diverged"))
    statistics.add_outcome(call(), ModelFailed("diverged"), 4.0, 1e9)
    model = statistics.models["m"]
    assert (model.fail.count, model.fail.seconds) == (1, 4.0)
    assert (model.success.count, model.rows, model.executions, model.last) == (0, 0, 0, 0.0)


@pytest.mark.parametrize("operation", [Operation.DESCRIBE, Operation.COST])
def test_questions_do_not_count(operation: Operation) -> None:
    statistics = Statistics()
    asked = task(operation=operation)
    statistics.add_run(asked, Result(()))
    statistics.add_outcome(asked.call, Result(()), 1.0, 1e9)
    assert statistics.models == {}


def test_each_client_is_counted_by_its_calls_however_they_ran() -> None:
    statistics = Statistics()
    statistics.add_answer(task(), result(1), 1, 1000.0, 1e9)
    statistics.add_answer(task(), ModelFailed("diverged"), 1, 1000.0, 1e9)
    statistics.add_answer(task(operation=Operation.COST), Result(()), 1, 1000.0, 1e9)
    statistics.add_answer(task(rows=4), result(4), 0, 1000.0, 1e9)  # a part of a call
    hints = Hints("me", shown_as=("me", "a"))
    statistics.add_whole(call(), ModelFailed("diverged"), hints, 0.0, 1000.0, 1e9)
    statistics.count_reused(call(), 3, 5, hints, 1000.0)
    statistics.count_reused(call(), 0, 5, hints, 1000.0)
    (row,) = statistics.clients.snapshot({}, 1000.0)
    assert (row["client"], row["done"], row["failed"], row["worker_s"]) == ("me", 4, 2, 1.0)
    (chain,) = statistics.chains.snapshot((), 1000.0)
    assert (chain["done"], chain["failed"]) == (3, 1)
