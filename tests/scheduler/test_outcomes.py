"""The outcome of a task that was lost with its worker."""

from __future__ import annotations

import numpy as np
import pytest

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError, LossCause, TimeLimitExceeded, WorkerLost
from farm.scheduler.actions import Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.state import Task, TaskId, WorkerId
from tests.scheduler.invariants import check

W = WorkerId("w")
X = (TensorInfo("x", (1,)),)


def sent(rows: int | None, *, max_batch: int = 1, retries: int = 3) -> tuple[Scheduler, Task]:
    """Return a task of `rows` rows on a worker."""
    scheduler = Scheduler(retries=retries)
    scheduler.worker_joined(W, [ModelInfo("m", X, X, max_batch=max_batch)], now=0.0)
    x = np.ones((rows or 1, 1))
    scheduler.submit(Call("m", Operation.EVALUATE, (x,), rows=rows), now=0.0)
    (send,) = scheduler.actions(0.0)
    assert isinstance(send, Send)
    return scheduler, send.tasks[0]


def lose(scheduler: Scheduler, task: Task, **how: bool | int) -> list[FarmError | Result]:
    row = how.pop("row", None)
    cause = LossCause.TIME_LIMIT if how.get("time_limit") else LossCause.UNKNOWN
    scheduler.worker_left(W, "signal 9", running=[task.id], row=row, cause=cause, now=1.0)
    check(scheduler)
    return [action.outcome for action in scheduler.actions(1.0) if isinstance(action, Reply)]


def crash(scheduler: Scheduler, task: TaskId, *, row: int | None = None, detail: str = "") -> None:
    cause = LossCause.CRASH
    scheduler.worker_left(
        W, "signal 11", running=[task], row=row, cause=cause, detail=detail, now=1.0
    )
    check(scheduler)


def test_a_run_of_rows_ends_with_the_row_that_ran() -> None:
    scheduler, task = sent(9)
    (error,) = lose(scheduler, task, row=4)
    assert isinstance(error, WorkerLost)
    assert (error.message, error.row) == ("w (signal 9)", 4)
    assert len(scheduler) == 0


@pytest.mark.parametrize(("rows", "max_batch"), [(None, 1), (1, 1), (9, 16)])
def test_what_is_evaluated_at_once_goes_back_to_its_queue(rows: int | None, max_batch: int) -> None:
    scheduler, task = sent(rows, max_batch=max_batch)
    assert lose(scheduler, task, row=0) == []
    assert task.past.lost_on == ("w (signal 9)",)
    assert len(scheduler) == 1


def test_a_row_that_took_too_long_is_named() -> None:
    scheduler, task = sent(9)
    (error,) = lose(scheduler, task, row=4, time_limit=True)
    assert isinstance(error, TimeLimitExceeded)
    assert error.row == 4


def test_no_row_of_a_batch_is_named() -> None:
    scheduler, task = sent(9, max_batch=16)
    (error,) = lose(scheduler, task, row=0, time_limit=True)
    assert isinstance(error, TimeLimitExceeded)
    assert error.row is None


def test_a_crash_is_tried_once_more_and_tells_the_last_output() -> None:
    scheduler, task = sent(None)
    crash(scheduler, task.id, detail="first")
    assert task.past.lost_on == ("w (signal 11)",)
    scheduler.worker_joined(W, [ModelInfo("m", X, X)], now=1.0)
    (again,) = scheduler.actions(1.0)
    assert isinstance(again, Send)
    crash(scheduler, task.id, detail="Segmentation fault")
    (reply,) = scheduler.actions(1.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.outcome, WorkerLost)
    assert reply.outcome.message.startswith("the call was lost 2 times, with w (signal 11), w (")
    assert reply.outcome.detail == "Segmentation fault"


def test_a_crash_of_a_row_counts_for_that_row() -> None:
    scheduler, task = sent(9)
    crash(scheduler, task.id, row=4)
    (reply,) = scheduler.actions(1.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.outcome, WorkerLost)
    scheduler.worker_joined(W, [ModelInfo("m", X, X)], now=1.0)
    call = Call("m", Operation.EVALUATE, (np.ones((1, 1)),), rows=1)
    alone = scheduler.submit(call, lost_on=(reply.outcome.message,), now=1.0)
    scheduler.actions(1.0)
    crash(scheduler, alone, row=0)
    assert len(scheduler) == 0


def test_a_call_may_be_allowed_no_retry_after_a_crash() -> None:
    scheduler, task = sent(None, retries=0)
    crash(scheduler, task.id)
    assert len(scheduler) == 0


def test_losses_before_count() -> None:
    scheduler, _ = sent(None, retries=1)
    x = (np.ones(1),)
    call = Call("m", Operation.EVALUATE, x)
    before = scheduler.submit(call, lost_on=("v (signal 9)",), now=0.0)
    scheduler.worker_joined(WorkerId("w2"), [ModelInfo("m", X, X)], now=0.0)
    scheduler.actions(0.0)
    scheduler.worker_left(WorkerId("w2"), "signal 9", running=[before], now=1.0)
    (reply,) = [action for action in scheduler.actions(1.0) if isinstance(action, Reply)]
    assert isinstance(reply.outcome, WorkerLost)
    assert reply.outcome.message == (
        "the call was lost 2 times, with v (signal 9), w2 (signal 9); what happened: "
        "lost before with v (signal 9), queued 0 s, lost with w2 after 1 s (signal 9)"
    )


def in_a_job(
    began: float, ended: float, how: LossCause = LossCause.UNKNOWN, **call: int
) -> tuple[Scheduler, list[FarmError | Result]]:
    """Lose the call that a worker of a job from 0 to 60 s begins and ends at these times."""
    scheduler = Scheduler()
    info = ModelInfo("m", X, X, max_batch=call.pop("max_batch", 1))
    scheduler.worker_joined(W, [info], ends_at=60.0, now=0.0)
    rows = call.get("rows")
    ids = [
        scheduler.submit(
            Call("m", Operation.EVALUATE, (np.ones((rows or 1, 1)),), rows=rows), now=0.0
        )
        for _ in range(call.get("calls", 1))
    ]
    scheduler.actions(began)
    scheduler.worker_left(W, "it was stopped", running=ids, cause=how, now=ended)
    check(scheduler)
    replies = [action for action in scheduler.actions(ended) if isinstance(action, Reply)]
    return scheduler, [reply.outcome for reply in replies]


def test_a_call_that_outlasts_its_job_is_not_tried_in_another_one() -> None:
    for how in (LossCause.UNKNOWN, LossCause.STOPPED):
        scheduler, (error,) = in_a_job(2.0, 70.0, how)
        assert len(scheduler) == 0
        assert isinstance(error, TimeLimitExceeded)
        assert error.message == (
            "the call needs more than 68 s: it ran that long on worker w until the time limit of "
            "its job, which leaves a worker about 60 s; raise the limit (`time` in the file of "
            "--cluster, --time of sbatch); what happened: queued 2 s, lost with w after 68 s (it "
            "was stopped)"
        )


@pytest.mark.parametrize(
    ("began", "ended", "how", "call"),
    [
        (20.0, 62.0, LossCause.UNKNOWN, {}),  # a new job has more time for it
        (0.0, 49.0, LossCause.UNKNOWN, {}),  # before the end of the job
        (0.0, 60.0, LossCause.RECLAIMED, {}),
        (0.0, 60.0, LossCause.CRASH, {}),
        (0.0, 60.0, LossCause.UNKNOWN, {"max_batch": 4, "calls": 2}),  # one may fit alone
    ],
)
def test_other_calls_lost_with_a_job_run_again(
    began: float, ended: float, how: LossCause, call: dict[str, int]
) -> None:
    scheduler, replies = in_a_job(began, ended, how, **call)
    assert replies == []
    assert len(scheduler) == call.get("calls", 1)


def test_rows_of_a_run_that_outlasts_its_job_are_tried_alone() -> None:
    _, (error,) = in_a_job(0.0, 60.0, rows=9)
    assert isinstance(error, WorkerLost)
    assert error.message == "w (it was stopped)"


def test_a_call_lost_at_the_end_of_its_job_waits_for_one_with_more_time() -> None:
    scheduler, _ = in_a_job(20.0, 60.0)
    scheduler.worker_joined(WorkerId("long"), [ModelInfo("m", X, X)], ends_at=120.0, now=60.0)
    scheduler.worker_joined(WorkerId("short"), [ModelInfo("m", X, X)], ends_at=100.0, now=60.0)
    (send,) = scheduler.actions(60.0)
    assert isinstance(send, Send)
    assert send.worker == "long"
