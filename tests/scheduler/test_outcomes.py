"""The outcome of a task that was lost with its worker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError, LossCause, TimeLimitExceeded, WorkerLost
from farm.scheduler.actions import Reply, Send
from farm.scheduler.core import Scheduler
from farm.scheduler.outcomes import STEPS_TOLD, Deadlines, story, with_story
from farm.scheduler.state import Task, TaskId, WorkerId
from tests.scheduler.invariants import check
from tests.scheduler.recorder import Recorder, sent

W = WorkerId("w")
X = (TensorInfo("x", (1,)),)


def at_worker(rows: int | None, *, max_batch: int = 1, retries: int = 3) -> tuple[Scheduler, Task]:
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
    scheduler, task = at_worker(9)
    (error,) = lose(scheduler, task, row=4)
    assert isinstance(error, WorkerLost)
    assert (error.message, error.row) == ("w (signal 9)", 4)
    assert len(scheduler) == 0


@pytest.mark.parametrize(("rows", "max_batch"), [(None, 1), (1, 1), (9, 16)])
def test_what_is_evaluated_at_once_goes_back_to_its_queue(rows: int | None, max_batch: int) -> None:
    scheduler, task = at_worker(rows, max_batch=max_batch)
    assert lose(scheduler, task, row=0) == []
    assert task.past.lost_on == ("w (signal 9)",)
    assert len(scheduler) == 1


def test_a_row_that_took_too_long_is_named() -> None:
    scheduler, task = at_worker(9)
    (error,) = lose(scheduler, task, row=4, time_limit=True)
    assert isinstance(error, TimeLimitExceeded)
    assert error.row == 4


def test_no_row_of_a_batch_is_named() -> None:
    scheduler, task = at_worker(9, max_batch=16)
    (error,) = lose(scheduler, task, row=0, time_limit=True)
    assert isinstance(error, TimeLimitExceeded)
    assert error.row is None


def test_a_crash_is_tried_once_more_and_tells_the_last_output() -> None:
    scheduler, task = at_worker(None)
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
    scheduler, task = at_worker(9)
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
    scheduler, task = at_worker(None, retries=0)
    crash(scheduler, task.id)
    assert len(scheduler) == 0


def test_losses_before_count() -> None:
    scheduler, _ = at_worker(None, retries=1)
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


# Deadlines


def tasks_of(count: int) -> dict[TaskId, Task]:
    farm = Recorder()
    farm.join("w")
    ids = farm.submit_many(count)
    return {task_id: farm.task(task_id) for task_id in ids}


def test_there_is_no_deadline_at_first() -> None:
    deadlines = Deadlines({})
    assert deadlines.passed(1e9) == []
    assert deadlines.first_at == float("inf")


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 100.0), max_size=30), st.floats(0.0, 100.0))
def test_those_that_passed_come_once_and_earliest_first(times: list[float], now: float) -> None:
    tasks = tasks_of(len(times))
    deadlines = Deadlines(tasks)
    at = dict(zip(tasks, times, strict=True))
    for task_id, deadline in at.items():
        deadlines.add(deadline, task_id)
    assert deadlines.first_at == min(times, default=float("inf"))
    passed = [task.id for task in deadlines.passed(now)]
    assert passed == sorted((t for t in at if at[t] <= now), key=lambda t: (at[t], t))
    assert deadlines.passed(now) == []
    left = [deadline for deadline in times if deadline > now]
    assert deadlines.first_at == min(left, default=float("inf"))


def test_tasks_that_are_gone_have_no_deadline() -> None:
    tasks = tasks_of(3)
    deadlines = Deadlines(tasks)
    first, second, third = tasks
    for at, task_id in enumerate(list(tasks)):
        deadlines.add(float(at), task_id)
    del tasks[first], tasks[second]
    assert [task.id for task in deadlines.passed(0.0)] == []
    assert deadlines.first_at == 2.0
    assert [task.id for task in deadlines.passed(9.0)] == [third]


def test_deadlines_of_tasks_that_are_gone_do_not_pile_up() -> None:
    """Calls with a deadline of an hour that take a millisecond."""
    tasks = tasks_of(1)
    (kept,) = tasks
    deadlines = Deadlines(tasks)
    deadlines.add(5e6, kept)
    for i in range(10_000):
        deadlines.add(1e6 + i, TaskId(10 + i))
        assert len(deadlines._heap) <= 2 + Deadlines.SLACK
    assert [task.id for task in deadlines.passed(1e7)] == [kept]


def test_a_time_to_start_is_kept_by_starting() -> None:
    farm = Recorder()
    farm.join("w")
    running, waiting = (farm.submit() for _ in range(2))
    farm.expect(sent("w", running))
    deadlines = Deadlines({task_id: farm.task(task_id) for task_id in (running, waiting)})
    for task_id in (running, waiting):
        deadlines.add(1.0, task_id, to_start=True)
        deadlines.add(1.0, task_id)
        deadlines.add(3.0, task_id)
    assert {task.id for task in deadlines.passed(1.0)} == {running, waiting}
    deadlines.add(2.0, running, to_start=True)
    deadlines.add(2.0, waiting, to_start=True)
    assert [task.id for task in deadlines.passed(2.0)] == [waiting]


# The history of a task, in words


def told(farm: Recorder, task: TaskId) -> list[str]:
    return story(farm.task(task), farm.now)


def test_a_task_tells_how_long_it_waited_and_what_became_of_each_attempt(farm: Recorder) -> None:
    farm.join("w1")
    farm.resize("w1", 0)
    task = farm.submit()
    farm.after(3.0).expect()
    assert told(farm, task) == ["queued 3 s"]
    farm.resize("w1", 1)
    farm.expect(sent("w1", task))
    farm.now += 12.0
    assert told(farm, task) == ["queued 3 s", "sent to w1 12 s ago"]
    farm.leave("w1", "signal 9")
    farm.after(0.25).expect()
    lost = ["queued 3 s", "lost with w1 after 12 s (signal 9)"]
    assert told(farm, task) == [*lost, "queued again 250 ms"]
    farm.join("w2")
    farm.expect(sent("w2", task))
    farm.after(1.0).hand_back("w2", task)
    back = [*lost, "queued again 250 ms", "back from w2 after 1 s (recalled)"]
    assert told(farm, task) == [*back, "queued again 0 s"]
    farm.expect(sent("w2", task))
    farm.after(2.0).leave("w2", "it drained", drained=True)
    farm.expect()
    assert told(farm, task) == [
        *back,
        "queued again 0 s",
        "back from w2 after 2 s (it drained)",
        "queued again 0 s",
    ]


def test_of_a_long_story_the_last_steps_are_told(farm: Recorder) -> None:
    farm.join("w")
    task = farm.submit()
    for _ in range(10):
        farm.expect(sent("w", task))
        farm.after(1.0).hand_back("w", task)
    farm.expect(sent("w", task))
    steps = told(farm, task)
    assert len(steps) == 1 + STEPS_TOLD
    assert steps[0] == "14 earlier steps"
    assert steps[-3:] == [
        "back from w after 1 s (recalled)",
        "queued again 0 s",
        "sent to w 0 s ago",
    ]


def test_an_error_has_the_story_if_it_says_more_than_how_long_the_call_waited(
    farm: Recorder,
) -> None:
    farm.join("w")
    running, waiting = farm.submit_many(2)
    farm.expect(sent("w", running))
    farm.now += 2.0
    assert with_story("no", farm.task(waiting), farm.now) == "no"
    assert with_story("no", farm.task(running), farm.now) == (
        "no; what happened: queued 0 s, sent to w 2 s ago"
    )
