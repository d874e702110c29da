"""A run that its worker splits goes on as the call of one row, wherever its answer comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.errors import ModelFailed
from farm.scheduler.actions import Reply
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import Recorder, call, sent

ROW_S = 1e-6
THREE = Result((np.array([[3.0]]),), ROW_S)
"""The answer to row 3, run alone."""


def run_of(rows: int) -> Call:
    return replace(call(rows=rows), inputs=(np.arange(rows, dtype=float)[:, None],))


def rows_of(first: int, end: int, *, more: bool = False, failed: bool = False) -> Result:
    """The answer to the rows from `first` to `end`; failed: and the next one failed."""
    count = end - first
    outputs = (np.arange(first, end, dtype=float)[:, None],) if count else ()
    error = ModelFailed("no root") if failed else None
    return Result(outputs, count * ROW_S, more=more, failed=error, row_times_s=(ROW_S,) * count)


def begun(farm: Recorder, chain: str | None = None) -> TaskId:
    return farm.begin("w1", run_of(8), client="me", chain=chain, gathered=chain is None)


@pytest.fixture
def run(farm: Recorder) -> TaskId:
    """A run of eight rows of eight callers, which "w1" has."""
    farm.join("w1")
    return begun(farm)


def copied(farm: Recorder) -> TaskId:
    """Return such a run that "w2" has, too."""
    farm.learn(ROW_S, count=40)
    farm.join("w1")
    task = begun(farm)
    farm.join("w2")
    farm.after(40.0).expect(sent("w2", task))
    return task


def says(
    farm: Recorder, task: TaskId, outcome: Result | ModelFailed, worker: str = "w1"
) -> list[Reply]:
    """Let a worker answer; return the replies."""
    farm.finish(worker, task, outcome)
    return [action for action in farm.act() if isinstance(action, Reply)]


def in_flight(farm: Recorder) -> tuple[int, int]:
    """How many calls run, and how many runs of calls the workers have."""
    state = farm.scheduler.view.snapshot(farm.now)
    calls, runs = (sum(row["in_flight"] for row in state[kind]) for kind in ("queues", "workers"))
    return calls, runs


def callers(farm: Recorder) -> int:
    clients = farm.scheduler.view.clients(farm.now)
    return clients["me"].callers if "me" in clients else 0


def value(reply: Reply) -> list[float]:
    assert isinstance(reply.outcome, Result)
    return [float(x) for x in reply.outcome.outputs[0].reshape(-1)]


@pytest.mark.parametrize("row", [0, 3, 7])
def test_the_task_goes_on_as_the_row_that_runs(farm: Recorder, run: TaskId, row: int) -> None:
    (done,) = says(farm, run, rows_of(0, row, more=True))
    assert isinstance(done.outcome, Result)
    assert done.outcome.more
    assert done.task.rows == max(1, row)
    assert callers(farm) == 1
    task = farm.scheduler.view.task(run)
    assert task is not None
    assert (task.rows, task.is_run) == (1, False)
    assert task.call.inputs[0].tolist() == [[float(row)]]
    (last,) = says(farm, run, rows_of(0, row + 1))
    assert value(last) == [float(row)]
    assert isinstance(last.outcome, Result)
    assert last.outcome.run_time_s == ROW_S
    assert (callers(farm), len(farm.scheduler)) == (0, 0)
    assert farm.scheduler.queue("m", Operation.EVALUATE).counts.done == row + 1


def test_the_caller_of_all_rows_remains_until_the_last_one_is_answered(farm: Recorder) -> None:
    farm.join("w1")
    task = begun(farm, chain="rows 1")
    says(farm, task, rows_of(0, 3, more=True))
    assert callers(farm) == 1
    says(farm, task, rows_of(0, 4))
    assert callers(farm) == 0


def test_an_answer_may_be_without_the_row_which_runs_again_and_may_fail(
    farm: Recorder, run: TaskId
) -> None:
    says(farm, run, rows_of(0, 3, more=True))
    assert says(farm, run, rows_of(0, 3)) == []
    assert farm.sends[-1].tasks[0].call.inputs[0].tolist() == [[3.0]]
    (last,) = says(farm, run, rows_of(0, 3, failed=True))
    assert isinstance(last.outcome, ModelFailed)


def test_a_lost_worker_costs_the_row_alone_an_attempt(farm: Recorder, run: TaskId) -> None:
    says(farm, run, rows_of(0, 3, more=True))
    farm.leave("w1", running=[run], row=3)
    farm.expect()
    farm.join("w2")
    farm.expect(sent("w2", run))
    assert farm.sends[-1].tasks[0].call.inputs[0].tolist() == [[3.0]]
    (last,) = says(farm, run, THREE, "w2")
    assert value(last) == [3.0]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_late_answer_of_the_whole_run_answers_the_row(
    farm: Recorder, run: TaskId, leaves: bool
) -> None:
    says(farm, run, rows_of(0, 3, more=True))
    farm.miss("w1", run)
    farm.expect(sent("w1", run))
    if leaves:
        farm.leave("w1", drained=True)
        farm.expect()
        assert says(farm, run, rows_of(0, 2, more=True)) == [], "it tells nothing new"
        assert says(farm, run, rows_of(0, 3)) == [], "nor does one that ends before the row"
    (last,) = says(farm, run, rows_of(0, 4))
    assert value(last) == [3.0]


def test_whoever_expects_one_answer_gets_one(farm: Recorder, run: TaskId) -> None:
    farm.scheduler._splits_runs = False
    assert says(farm, run, rows_of(0, 3, more=True)) == []
    (reply,) = says(farm, run, rows_of(0, 4))
    assert value(reply) == [0.0, 1.0, 2.0, 3.0]


# Runs with a copy


@pytest.mark.parametrize(("splits", "other"), [("w1", "w2"), ("w2", "w1")])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_run_with_a_copy_is_split_by_either_worker(
    farm: Recorder, splits: str, other: str, cancelled: bool
) -> None:
    task = copied(farm)
    assert in_flight(farm) == (8, 16)
    if cancelled:
        farm.scheduler.cancel(task)
    assert len(says(farm, task, rows_of(0, 3, more=True), splits)) == (not cancelled)
    assert in_flight(farm) == (1, 2)
    assert says(farm, task, rows_of(0, 2, more=True), other) == []
    rows = [value(reply) for reply in says(farm, task, rows_of(0, 8), other)]
    assert rows == ([] if cancelled else [[3.0]])
    assert says(farm, task, rows_of(0, 4), splits) == []
    assert (len(farm.scheduler), in_flight(farm)) == (0, (0, 0))
