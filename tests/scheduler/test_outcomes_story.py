"""The history of a task, in words."""

from __future__ import annotations

from farm.scheduler.outcomes import STEPS_TOLD, story, with_story
from farm.scheduler.state import TaskId
from tests.scheduler.recorder import Recorder, call, sent


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


def test_losses_from_before_the_task_come_first(farm: Recorder) -> None:
    farm.join("w")
    lost_on = ("u (signal 9)", "v (signal 11)")
    task = farm.scheduler.submit(call(), lost_on=lost_on, now=farm.now)
    farm.expect(sent("w", task))
    farm.after(1.0).leave("w", "killed")
    farm.expect()
    assert told(farm, task) == [
        "lost before with u (signal 9)",
        "lost before with v (signal 11)",
        "queued 0 s",
        "lost with w after 1 s (killed)",
        "queued again 0 s",
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
