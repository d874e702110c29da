"""The outcome of a task that was lost with its worker."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Result
from farm.errors import FarmError, LossCause, TimeLimitExceeded, WorkerLost
from farm.scheduler.outcomes import STEPS_TOLD, Deadlines, story, with_story
from farm.scheduler.state import Task, TaskId
from tests.support.scheduler_recorder import Recorder, call, model, sent

Outcomes = list[FarmError | Result]


def lost(
    farm: Recorder,
    task: TaskId,
    cause: LossCause = LossCause.UNKNOWN,
    *,
    reason: str = "signal 9",
    **how: Any,
) -> Outcomes:
    """Lose "w" with its call, a second after it began; return what is replied."""
    before = len(farm.replies)
    farm.after(1.0).leave("w", reason, running=[task], cause=cause, **how)
    farm.forget_actions()
    return [reply.outcome for reply in farm.replies[before:]]


@pytest.mark.parametrize(
    ("max_batch", "cause", "kind", "row"),
    [
        (1, LossCause.UNKNOWN, WorkerLost, 4),
        (1, LossCause.TIME_LIMIT, TimeLimitExceeded, 4),
        (16, LossCause.TIME_LIMIT, TimeLimitExceeded, None),
    ],
    ids=["lost", "took too long", "one batch"],
)
def test_a_run_of_rows_ends_with_the_row_that_ran_and_names_it(
    farm: Recorder, max_batch: int, cause: LossCause, kind: type[FarmError], row: int | None
) -> None:
    farm.join("w", model(max_batch=max_batch))
    (error,) = lost(farm, farm.begin("w", call(rows=9)), cause, row=4)
    assert isinstance(error, WorkerLost | TimeLimitExceeded)
    assert (type(error), error.row) == (kind, row)
    assert kind is TimeLimitExceeded or error.message == "w (signal 9)"
    assert len(farm.scheduler) == 0


@pytest.mark.parametrize(("rows", "max_batch"), [(None, 1), (1, 1), (9, 16)])
def test_what_is_evaluated_at_once_goes_back_to_its_queue(
    farm: Recorder, rows: int | None, max_batch: int
) -> None:
    farm.join("w", model(max_batch=max_batch))
    task = farm.begin("w", call(rows=rows))
    assert lost(farm, task, row=0) == []
    assert farm.task(task).past.lost_on == ("w (signal 9)",)


def test_a_crash_is_tried_once_more_and_tells_the_last_output(farm: Recorder) -> None:
    farm.join("w")
    task = farm.begin("w")
    assert lost(farm, task, LossCause.CRASH, reason="signal 11", detail="first") == []
    farm.join("w")
    farm.expect(sent("w", task))
    (error,) = lost(farm, task, LossCause.CRASH, reason="signal 11", detail="Segmentation fault")
    assert isinstance(error, WorkerLost)
    assert error.message.startswith("the call was lost 2 times, with w (signal 11), w (")
    assert error.detail == "Segmentation fault"


def test_a_call_may_be_allowed_no_retry_after_a_crash() -> None:
    farm = Recorder(retries=0)
    farm.join("w")
    (error,) = lost(farm, farm.begin("w"), LossCause.CRASH)
    assert isinstance(error, WorkerLost)


def test_losses_before_count() -> None:
    farm = Recorder(retries=1)
    farm.join("w")
    (error,) = lost(farm, farm.begin("w", lost_on=("v (signal 9)",)))
    assert isinstance(error, WorkerLost)
    assert error.message == (
        "the call was lost 2 times, with v (signal 9), w (signal 9); what happened: "
        "lost before with v (signal 9), queued 0 s, lost with w after 1 s (signal 9)"
    )


def in_a_job(
    farm: Recorder,
    began: float,
    ended: float,
    cause: LossCause = LossCause.UNKNOWN,
    *,
    calls: int = 1,
    rows: int | None = None,
) -> Outcomes:
    """Lose the calls that a worker of a job from 0 to 60 s begins and ends at these times."""
    farm.join("w", model(max_batch=1 if calls == 1 else 4), ends_at=60.0)
    tasks = farm.submit_many(calls, call(rows=rows))
    farm.after(began).expect(sent("w", *tasks))
    farm.now = ended
    farm.leave("w", "it was stopped", running=tasks, cause=cause)
    farm.forget_actions()
    return [reply.outcome for reply in farm.replies]


@pytest.mark.parametrize("cause", [LossCause.UNKNOWN, LossCause.STOPPED])
def test_a_call_that_outlasts_its_job_is_not_tried_in_another_one(
    farm: Recorder, cause: LossCause
) -> None:
    (error,) = in_a_job(farm, 2.0, 70.0, cause)
    assert isinstance(error, TimeLimitExceeded)
    assert error.message == (
        "the call needs more than 68 s: it ran that long on worker w until the time limit of "
        "its job, which leaves a worker about 60 s; raise the limit (`time` in the file of "
        "--cluster, --time of sbatch); what happened: queued 2 s, lost with w after 68 s (it "
        "was stopped)"
    )


@pytest.mark.parametrize(
    ("began", "ended", "cause", "calls"),
    [
        (20.0, 62.0, LossCause.UNKNOWN, 1),  # a new job has more time for it
        (0.0, 49.0, LossCause.UNKNOWN, 1),  # before the end of the job
        (0.0, 60.0, LossCause.RECLAIMED, 1),
        (0.0, 60.0, LossCause.CRASH, 1),
        (0.0, 60.0, LossCause.UNKNOWN, 2),  # one may fit alone
    ],
)
def test_other_calls_lost_with_a_job_run_again(
    farm: Recorder, began: float, ended: float, cause: LossCause, calls: int
) -> None:
    assert in_a_job(farm, began, ended, cause, calls=calls) == []
    assert len(farm.scheduler) == calls


def test_rows_of_a_run_that_outlasts_its_job_are_tried_alone(farm: Recorder) -> None:
    (error,) = in_a_job(farm, 0.0, 60.0, rows=9)
    assert isinstance(error, WorkerLost)
    assert error.message == "w (it was stopped)"


def test_a_call_lost_at_the_end_of_its_job_waits_for_one_with_more_time(farm: Recorder) -> None:
    in_a_job(farm, 20.0, 60.0)
    farm.join("long", ends_at=120.0)
    farm.join("short", ends_at=100.0)
    farm.expect(sent("long", TaskId(1)))


# Deadlines


def tasks_of(count: int) -> dict[TaskId, Task]:
    farm = Recorder()
    farm.join("w")
    ids = farm.submit_many(count)
    return {task_id: farm.task(task_id) for task_id in ids}


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
