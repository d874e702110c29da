"""Which tasks run out of time, and when; and that forgotten deadlines do not accumulate."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from farm.scheduler.outcomes import Deadlines
from farm.scheduler.state import Task, TaskId
from tests.scheduler.recorder import Recorder, sent


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
    for i in range(100_000):
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
