"""Why a call waits: each rule is named when it decides, and never when it does not."""

from __future__ import annotations

import json

import pytest

from farm.scheduler.explanation import NAMED, explain
from farm.scheduler.state import TaskId
from tests.scheduler.recorder import SHORT_S, Recorder, model, replied, sent


def why(farm: Recorder, task: TaskId) -> list[tuple[str, int]]:
    """Return the rules that let a call wait, with the calls that each puts before it."""
    return [(reason.rule, reason.calls) for reason in explain(farm.task(task), farm.now)]


def text_of(farm: Recorder, task: TaskId, rule: str) -> str:
    (text,) = [r.text for r in explain(farm.task(task), farm.now) if r.rule == rule]
    return text


@pytest.fixture
def busy(farm: Recorder) -> tuple[Recorder, TaskId]:
    """Run times of a second are known; the only worker runs a call of client "a"."""
    farm.learn(1.0)
    farm.join("w", "m", "long")
    running = farm.submit(client="a")
    farm.expect(sent("w", running))
    return farm, running


def test_a_call_that_runs_waits_for_nothing(busy: tuple[Recorder, TaskId]) -> None:
    farm, running = busy
    assert why(farm, running) == []


def test_workers_that_are_busy_gone_or_draining(busy: tuple[Recorder, TaskId]) -> None:
    farm, _ = busy
    task = farm.submit()
    assert why(farm, task) == [("busy", 0)]
    assert text_of(farm, task, "busy") == "its only worker is busy, with calls of 'a' (1)"
    farm.resize("w", 0)
    assert "none of its 1 workers takes calls" in text_of(farm, task, "busy")
    farm.leave("w", drained=True)
    assert why(farm, task)[0] == ("no worker", 0)
    assert text_of(farm, task, "no worker") == "no worker serves model 'm' now"


def test_busy_with_calls_of_clients_without_a_name(farm: Recorder) -> None:
    farm.learn(1.0)
    farm.join("w", "m", "long")
    farm.expect(sent("w", farm.submit(client="")))
    task = farm.submit(client="b")
    assert text_of(farm, task, "busy").endswith("with calls of clients without a name (1)")


def test_free_workers_that_end_too_soon(farm: Recorder) -> None:
    farm.learn(100.0)
    farm.join("long", ends_at=farm.now + 1000.0)
    farm.resize("long", 0)
    farm.join("w", ends_at=farm.now + 110.0)
    task = farm.submit()
    farm.expect()
    assert why(farm, task) == [("too long", 0)]
    assert "100 s" in text_of(farm, task, "too long")


def test_older_calls_of_the_same_client(busy: tuple[Recorder, TaskId]) -> None:
    farm, _ = busy
    tasks = farm.submit_many(3, client="b")
    assert why(farm, tasks[0]) == [("busy", 0)]
    assert why(farm, tasks[2]) == [("busy", 0), ("older", 2)]
    assert text_of(farm, tasks[2], "older") == "2 calls of its client came earlier"


def test_calls_of_higher_priority(busy: tuple[Recorder, TaskId]) -> None:
    farm, _ = busy
    task = farm.submit()
    for _ in range(3):
        farm.submit(priority=2, client="b")
    assert why(farm, task) == [("busy", 0), ("priority", 3)]


def test_clients_that_hold_fewer_workers_or_have_used_less(
    busy: tuple[Recorder, TaskId],
) -> None:
    farm, _ = busy
    task = farm.submit(client="a")
    farm.submit_many(2, client="b")
    assert why(farm, task) == [("busy", 0), ("workers held", 2)]
    text = text_of(farm, task, "workers held")
    assert text == "clients 'b' (0 workers) go first; its own has 1 workers per caller"


def test_seconds_decide_between_clients_that_hold_as_many(busy: tuple[Recorder, TaskId]) -> None:
    farm, running = busy
    farm.resize("w", 0)
    farm.after(30.0).finish("w", running, 30.0)
    farm.expect(replied(running, 30.0, "w"))
    others = [farm.submit(client=name) for name in "bcde"]
    task = farm.submit(client="a")
    assert why(farm, task) == [("busy", 0), ("worker-seconds", 4)]
    assert f"and {4 - NAMED} more go first" in text_of(farm, task, "worker-seconds")
    assert why(farm, others[0]) == [("busy", 0)]


def test_calls_of_another_model_that_are_due_earlier(busy: tuple[Recorder, TaskId]) -> None:
    farm, running = busy
    farm.finish("w", running)
    farm.expect(replied(running, 1.0, "w"))
    long = farm.submit("long", client="b")
    farm.expect(sent("w", long))
    farm.after(100.0).finish("w", long, 100.0)
    farm.expect(replied(long, 100.0, "w"))
    running = farm.submit(client="a")
    farm.expect(sent("w", running))
    task = farm.submit("long", client="b")
    short = farm.submit(client="c")
    assert why(farm, task) == [("busy", 0), ("due time", 1)]
    assert "evaluate calls of model 'm' are due" in text_of(farm, task, "due time")
    assert why(farm, short) == [("busy", 0)]
    mine = farm.submit(client="b")
    farm.scheduler.cancel(short)
    assert "of the same client" in text_of(farm, task, "due time")
    farm.scheduler.cancel(mine)


def test_a_client_that_has_used_much_more(busy: tuple[Recorder, TaskId]) -> None:
    farm, running = busy
    farm.finish("w", running)
    farm.expect(replied(running, 1.0, "w"))
    long = farm.submit("long", client="b")
    farm.expect(sent("w", long))
    farm.after(100.0).finish("w", long, 100.0)
    farm.expect(replied(long, 100.0, "w"))
    running = farm.submit(client="a")
    farm.expect(sent("w", running))
    farm.submit("long", client="d")
    task = farm.submit(client="c")
    assert why(farm, task) == [("busy", 0)]
    farm.account("c").usage.used_s = 1e6
    assert why(farm, task) == [("busy", 0), ("worker-seconds", 1)]
    assert "'c' has used 11 d 13 h more than 'd'" in text_of(farm, task, "worker-seconds")


def test_a_batch_that_waits_for_more_calls(farm: Recorder) -> None:
    farm.join("w", model(max_batch=8))
    running = farm.submit()
    farm.expect(sent("w", running))
    tasks = farm.submit_many(4)
    farm.after(1.0).finish("w", running, 1.0)
    farm.expect(replied(running, 1.0, "w"), sent("w", *tasks))
    farm.after(1.0)
    for task in tasks:
        farm.finish("w", task, 1.0)
    farm.expect(*(replied(task, 1.0, "w") for task in tasks))
    task = farm.submit()
    farm.expect()
    assert why(farm, task) == [("batch", 0)]
    farm.after(1.0).expect(sent("w", task))


def test_a_call_that_waits_at_its_worker(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    first, second = farm.submit_many(2)
    farm.expect(sent("w", first, second))
    assert why(farm, first) == []
    assert why(farm, second) == [("at worker", 1)]
    assert text_of(farm, second, "at worker").startswith("it waits at worker w behind 1 call")


def test_the_snapshot_has_the_oldest_call_of_each_client_that_waits(
    busy: tuple[Recorder, TaskId],
) -> None:
    farm, _ = busy
    old = farm.submit_many(3, client="b")
    farm.after(2.0)
    farm.submit(client="c")
    farm.after(2.0)
    state = farm.scheduler.snapshot(farm.now)
    waits = json.loads(json.dumps(state["waits"]))
    assert [(row["client"], row["calls"], row["age_s"]) for row in waits] == [
        ("b", 3, 4.0),
        ("c", 1, 2.0),
    ]
    assert waits[0]["why"] == [{"rule": "busy", "text": text_of(farm, old[0], "busy"), "calls": 0}]


def test_an_explanation_changes_nothing(busy: tuple[Recorder, TaskId]) -> None:
    farm, running = busy
    tasks = [farm.submit(client=name) for name in "bcdab"] + [farm.submit("long", client="e")]
    for task in tasks:
        explain(farm.task(task), farm.now)
        farm.scheduler.check()
    order = [
        task
        for task in tasks
        if explain(farm.task(task), farm.now) == explain(farm.task(task), farm.now)
    ]
    assert order == tasks
    farm.finish("w", running)
    farm.forget_actions()
    assert len(farm.worker("w").held) == 1
