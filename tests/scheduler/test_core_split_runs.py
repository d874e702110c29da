"""A run that its worker splits goes on as the call of one row, wherever its answer comes from."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Call, Operation, Result
from farm.errors import ModelFailed, WorkerLost
from farm.scheduler.actions import Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.outcomes import of_row
from farm.scheduler.state import WorkerId
from tests.scheduler.invariants import check
from tests.scheduler.recorder import model

W1, W2 = WorkerId("w1"), WorkerId("w2")
ROW_S = 1e-6


def run_of(rows: int) -> Call:
    return Call("m", Operation.EVALUATE, (np.arange(rows, dtype=float)[:, None],), rows=rows)


def rows_of(first: int, end: int, *, more: bool = False, failed: bool = False) -> Result:
    """The answer to the rows from `first` to `end`; failed: and the next one failed."""
    count = end - first
    outputs = (np.arange(first, end, dtype=float)[:, None],) if count else ()
    error = ModelFailed("no root") if failed else None
    return Result(outputs, count * ROW_S, more=more, failed=error, row_times_s=(ROW_S,) * count)


class Farm:
    """A scheduler that has sent a run of eight rows of eight callers to its first worker."""

    def __init__(self, *, sends: bool = True) -> None:
        self.scheduler = Scheduler()
        self.scheduler.worker_joined(W1, [model()], ends_runs=True, now=0.0)
        self.task = self.scheduler.submit(
            run_of(8), client="me", chain=None, gathered=True, now=0.0
        )
        if sends:
            self.act()

    def act(self) -> list[Reply]:
        """Return the replies; sent calls are kept."""
        actions = self.scheduler.actions(0.0)
        self.sent = [action for action in actions if isinstance(action, Send)]
        check(self.scheduler)
        return [action for action in actions if isinstance(action, Reply)]

    def says(self, outcome: Result | ModelFailed, worker: WorkerId = W1) -> list[Reply]:
        self.scheduler.finished(worker, self.task, outcome, now=0.0)
        return self.act()

    def copy(self) -> None:
        """Answer the run; then send another one, and its copy to a second worker."""
        scheduler = self.scheduler
        self.says(rows_of(0, 8))
        for n in range(40):  # copies need known run times, and answered calls
            self.task = scheduler.submit(run_of(1), client="me", chain=None, now=float(n))
            self.act()
            self.says(Result((np.zeros((1, 1)),), ROW_S))
        scheduler.worker_joined(W2, [model()], ends_runs=True, now=50.0)
        self.task = scheduler.submit(run_of(8), client="me", chain=None, gathered=True, now=50.0)
        sent = [
            a.worker for now in (50.0, 90.0) for a in scheduler.actions(now) if isinstance(a, Send)
        ]
        assert sorted(sent) == [W1, W2]
        check(scheduler)

    def in_flight(self) -> tuple[int, int]:
        """How many calls run, and how many runs of calls the workers have."""
        state = self.scheduler.view.snapshot(90.0)
        return tuple(sum(row["in_flight"] for row in state[kind]) for kind in ("queues", "workers"))

    def callers(self) -> int:
        clients = self.scheduler.view.clients(0.0)
        return clients["me"].callers if "me" in clients else 0


def value(reply: Reply) -> list[float]:
    assert isinstance(reply.outcome, Result)
    return [float(x) for x in reply.outcome.outputs[0].reshape(-1)]


@pytest.mark.parametrize("row", [0, 3, 7])
def test_the_task_goes_on_as_the_row_that_runs(row: int) -> None:
    farm = Farm()
    (done,) = farm.says(rows_of(0, row, more=True))
    assert isinstance(done.outcome, Result)
    assert done.outcome.more
    assert done.task.rows == max(1, row)
    assert farm.callers() == 1
    task = farm.scheduler.view.task(farm.task)
    assert task is not None
    assert (task.rows, task.is_run) == (1, False)
    assert task.call.inputs[0].tolist() == [[float(row)]]
    (last,) = farm.says(rows_of(0, row + 1))
    assert value(last) == [float(row)]
    assert isinstance(last.outcome, Result)
    assert last.outcome.run_time_s == ROW_S
    assert farm.callers() == 0
    assert len(farm.scheduler) == 0
    assert farm.scheduler.queue("m", Operation.EVALUATE).counts.done == row + 1


def test_the_caller_of_all_rows_remains_until_the_last_one_is_answered() -> None:
    farm = Farm()
    farm.says(rows_of(0, 8))
    farm.task = farm.scheduler.submit(run_of(8), client="me", chain="rows 1", now=0.0)
    farm.act()
    farm.says(rows_of(0, 3, more=True))
    assert farm.callers() == 1
    farm.says(rows_of(0, 4))
    assert farm.callers() == 0


def test_the_row_that_runs_may_fail() -> None:
    farm = Farm()
    farm.says(rows_of(0, 3, more=True))
    (last,) = farm.says(rows_of(0, 3, failed=True))
    assert isinstance(last.outcome, ModelFailed)


def test_an_answer_without_the_row_lets_it_run_again() -> None:
    farm = Farm()
    farm.says(rows_of(0, 3, more=True))
    assert farm.says(rows_of(0, 3)) == []
    (send,) = farm.sent
    assert send.tasks[0].call.inputs[0].tolist() == [[3.0]]
    (last,) = farm.says(Result((np.array([[3.0]]),), ROW_S))
    assert value(last) == [3.0]


def test_a_lost_worker_costs_the_row_alone_an_attempt() -> None:
    farm = Farm()
    farm.says(rows_of(0, 3, more=True))
    farm.scheduler.worker_left(W1, "killed", running=[farm.task], row=3, now=0.0)
    assert farm.act() == []
    farm.scheduler.worker_joined(W2, [model()], ends_runs=True, now=0.0)
    farm.act()
    (send,) = farm.sent
    assert send.worker == W2
    assert send.tasks[0].call.inputs[0].tolist() == [[3.0]]
    (last,) = farm.says(Result((np.array([[3.0]]),), ROW_S), W2)
    assert value(last) == [3.0]


@pytest.mark.parametrize("splits", ["before it was given up", "at its second worker"])
def test_a_late_answer_of_the_whole_run_answers_the_row(splits: str) -> None:
    farm = Farm()
    if splits.startswith("before"):
        farm.says(rows_of(0, 3, more=True))
    farm.scheduler.went_missing(W1, [farm.task], now=0.0)
    missing = farm.act()
    if not splits.startswith("before"):  # the run has ended, as those lost with a worker do
        (reply,) = missing
        assert isinstance(reply.outcome, WorkerLost)
        return
    farm.scheduler.worker_left(W1, "gone", drained=True, now=0.0)
    farm.act()
    assert farm.says(rows_of(0, 2, more=True)) == [], "a late first answer tells nothing new"
    assert farm.says(rows_of(0, 3)) == [], "nor does one that ends before the row"
    (last,) = farm.says(rows_of(0, 4))
    assert value(last) == [3.0]


def test_answers_to_what_was_returned_count_by_their_rows() -> None:
    farm = Farm()
    farm.scheduler.worker_left(W1, "unreachable", running=[], now=0.0)
    farm.scheduler.worker_joined(W2, [model()], ends_runs=True, now=0.0)
    farm.act()
    (send,) = farm.sent
    assert send.worker == W2
    farm.says(rows_of(0, 5, more=True), W2)
    (late,) = farm.says(rows_of(0, 8), W1)
    assert value(late) == [5.0]


def test_a_run_that_was_cancelled_goes_on_as_its_row_for_nobody() -> None:
    farm = Farm()
    farm.scheduler.cancel(farm.task)
    assert farm.in_flight() == (8, 8)
    assert farm.says(rows_of(0, 3, more=True)) == []
    assert farm.in_flight() == (1, 1)
    assert farm.says(rows_of(0, 4)) == []
    assert farm.in_flight() == (0, 0)
    assert len(farm.scheduler) == 0
    assert farm.callers() == 0
    assert farm.scheduler.queue("m", Operation.EVALUATE).counts.done == 0


@pytest.mark.parametrize("splits", [False, True])
def test_a_run_whose_copy_was_answered_does_not_count(splits: bool) -> None:
    farm = Farm()
    farm.scheduler._splits_runs = False  # otherwise it would be one row before it has a copy
    farm.copy()
    assert farm.in_flight() == (8, 16)
    (reply,) = farm.says(rows_of(0, 8), W2)
    assert len(value(reply)) == 8
    assert farm.in_flight() == (0, 0)
    farm.scheduler._splits_runs = splits
    assert farm.says(rows_of(0, 3, more=True)) == []
    assert farm.in_flight() == (0, 0)
    assert farm.says(rows_of(0, 4)) == []
    assert len(farm.scheduler) == 0


def test_whoever_expects_one_answer_gets_one() -> None:
    farm = Farm()
    farm.scheduler._splits_runs = False
    assert farm.says(rows_of(0, 3, more=True)) == []
    (reply,) = farm.says(rows_of(0, 4))
    assert value(reply) == [0.0, 1.0, 2.0, 3.0]


def test_the_outcome_of_a_row() -> None:
    whole = rows_of(0, 4, failed=True)
    one = of_row(whole, 2)
    assert isinstance(one, Result)
    assert one.failed is None
    assert isinstance(of_row(whole, 4), ModelFailed)
    assert of_row(whole, 5) is None
    assert of_row(rows_of(0, 4), 4) is None
    assert of_row(rows_of(0, 0, failed=True), 2) is None
    alone = Result((np.ones((1, 1)),), ROW_S)
    assert of_row(alone, 2) is alone
    lost = WorkerLost("gone")
    assert of_row(lost, 2) is lost


def test_the_worker_may_have_the_run_and_its_row() -> None:
    farm = Farm()
    farm.says(rows_of(0, 3, more=True))
    farm.scheduler.went_missing(W1, [farm.task], now=0.0)
    farm.act()
    (send,) = farm.sent
    assert send.worker == W1
    (late,) = farm.says(rows_of(0, 4))
    assert value(late) == [3.0]


def test_a_run_with_a_copy_is_split_by_either_worker() -> None:
    for splits, other in ((W1, W2), (W2, W1)):
        farm = Farm()
        farm.copy()
        assert farm.in_flight() == (8, 16)
        farm.says(rows_of(0, 3, more=True), splits)
        assert farm.in_flight() == (1, 2)
        assert farm.says(rows_of(0, 2, more=True), other) == []
        (reply,) = farm.says(rows_of(0, 8), other)
        assert value(reply) == [3.0]
        farm.says(rows_of(0, 4), splits)
        assert len(farm.scheduler) == 0


def test_a_cancelled_run_with_a_copy_is_split_by_either_worker() -> None:
    for splits, other in ((W1, W2), (W2, W1)):
        farm = Farm()
        farm.copy()
        farm.scheduler.cancel(farm.task)
        assert farm.says(rows_of(0, 3, more=True), splits) == []
        assert farm.in_flight() == (1, 2)
        assert farm.says(rows_of(0, 4), other) == []
        assert farm.says(rows_of(0, 8), splits) == []
        assert len(farm.scheduler) == 0
        assert farm.in_flight() == (0, 0)
