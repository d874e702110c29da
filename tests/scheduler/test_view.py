"""What others may read of a scheduler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.call import Operation
from farm.errors import ModelFailed
from farm.scheduler.state import TaskId
from farm.scheduler.view import CALLS_SHOWN, Load
from tests.support.scheduler_recorder import SHORT_S, Recorder, call, model, replied, sent


def test_a_call_is_found_by_its_number_and_by_its_id() -> None:
    farm = Recorder(first_task=7 << 32)
    farm.join("w")
    first, second = farm.submit_many(2)
    farm.expect(sent("w", first))
    view = farm.scheduler.view
    assert [view.number(first), view.number(second)] == ["1", "2"]
    assert view.call("2") is view.call(str(second)) is farm.task(second)
    farm.finish("w", first)
    farm.forget_actions()
    assert view.call("1") is None
    for name in ("", "x", "-1", "3", "²", "9" * 5000):
        assert view.call(name) is None


def test_waiting_calls_of_a_client_and_of_one_of_its_chains(farm: Recorder) -> None:
    farm.join("w", "m", "n")
    running = farm.begin("w", client="a", chain="1")
    one = farm.submit("n", client="a", chain="1")
    two = farm.submit(client="a", chain="2")
    alone = farm.submit(client="a", chain=None, priority=1)
    farm.submit(client="b", chain="1")
    view = farm.scheduler.view
    assert [task.id for task in view.waiting("a")] == [one, two, alone]
    assert [task.id for task in view.waiting("a", "1")] == [one]
    assert view.waiting("nobody") == []
    assert view.sent_of("a") is view.sent_of("a", "1") is farm.task(running)
    assert view.sent_of("a", "2") is view.sent_of("b") is None
    farm.scheduler.cancel(running)
    assert view.sent_of("a") is None


def test_open_calls_of_clients(farm: Recorder) -> None:
    farm.join("w1", "n")
    farm.join("w2", "m")
    farm.begin("w2", "m", client="a", chain="1")
    other = farm.begin("w1", "n", client="b")
    for chain in ("1", "2", None, None):
        farm.submit("n", client="a", chain=chain)
    farm.after(3.0).expect()
    clients = farm.scheduler.view.clients(farm.now)
    shown = {n: (c.callers, c.queued, c.running, c.busy_s) for n, c in clients.items()}
    assert shown == {"a": (4, 4, 1, 3.0), "b": (1, 0, 1, 3.0)}
    farm.answer("w1", other, 1.0, *(sent("w1", TaskId(other + 1)),))
    assert "b" not in farm.scheduler.view.clients(farm.now)


def test_the_calls_of_a_batch_share_its_seconds(farm: Recorder) -> None:
    farm.join("w", model(max_batch=4))
    first = farm.begin("w", client="a")
    batch = [farm.submit(client="a"), farm.submit(client="b")]
    farm.after(5.0).answer("w", first, 5.0, sent("w", *reversed(batch)))
    farm.after(4.0).expect()
    busy = {n: c.busy_s for n, c in farm.scheduler.view.clients(farm.now).items()}
    assert busy == pytest.approx({"a": 2.0, "b": 2.0})


def test_a_prefetched_call_runs_since_its_worker_was_free(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    one, two = farm.submit(client="a"), farm.submit(client="b")
    farm.expect(sent("w", one, two))
    farm.after(3.0).answer("w", one, 3.0)
    farm.after(2.0).forget_actions()
    assert farm.scheduler.view.clients(farm.now)["b"].busy_s == pytest.approx(2.0)


def rows_in(farm: Recorder, seconds: float, *, more: int = 0, name: str = "m") -> int:
    return farm.scheduler.view.rows_in(call(name), seconds, more=more)


def test_rows_that_run_in_some_time_are_known_after_a_run() -> None:
    farm = Recorder(max_queued=100)
    assert rows_in(farm, 1e3) == 1, "nobody has it"
    farm.join("w")
    assert rows_in(farm, 1e3) == 1, "it has not run"
    farm.run("w")
    assert rows_in(farm, 7.5) == rows_in(farm, 7.5, more=100) == 7
    assert rows_in(farm, 0.5) == 1
    assert rows_in(farm, 7.5, more=101) == 1, "more than may wait"
    farm.queue().counts.to_come = 60
    assert rows_in(farm, 7.5, more=41) == 1
    assert rows_in(farm, 7.5, more=40) == 7


@pytest.mark.parametrize(
    "kind", [{"max_batch": 2}, {"repeatable": False}, {"keeps_point": True}], ids=str
)
def test_rows_that_are_not_for_a_run(farm: Recorder, kind: dict[str, Any]) -> None:
    farm.join("w", model(**kind))
    farm.run("w")
    assert rows_in(farm, 1e3) == 1


# The snapshot

OF_M = {"id": "", "model": "m", "operation": "evaluate", "client": "", "chain": ""}


def test_snapshot_tells_of_workers_and_of_the_queues_in_use(farm: Recorder) -> None:
    farm.join("a", "m", "n", slots=2, ends_at=100.0)
    farm.join("b", "n")
    tasks = farm.submit_many(4)
    farm.expect(sent("a", *tasks[:2]))
    farm.after(2.0).finish("a", tasks[0], 2.0)
    farm.finish("a", tasks[1], ModelFailed("it raised"))
    farm.expect(
        replied(tasks[0], 2.0, "a"), replied(tasks[1], ModelFailed, "a"), sent("a", *tasks[2:])
    )
    waiting = farm.submit()
    farm.after(3.0).expect()
    state = farm.scheduler.view.snapshot(farm.now)
    assert json.loads(json.dumps(state)) == state
    busy, idle = state["workers"]
    assert busy == {
        "name": "a",
        "models": ["m", "n"],
        "phase": "open",
        "slots": 2,
        "in_flight": 2,
        "busy_s": 3.0,
        "running_s": 3.0,
        "running_p95_s": 2.0,
        "running": {"call": "3", **OF_M},
        "done": 1,
        "failed": 1,
        "ends_in_s": 95.0,
    }
    assert {key: value for key, value in idle.items() if value is not None} == {
        "name": "b",
        "models": ["n"],
        "phase": "open",
        **{"slots": 1, "in_flight": 0, "done": 0, "failed": 0},
    }
    assert idle.keys() == busy.keys()
    (queue,) = state["queues"]
    assert queue["round_trip_s"] > 0
    del queue["round_trip_s"]
    assert queue == {
        "model": "m",
        "operation": "evaluate",
        "queued": 1,
        "oldest_s": 3.0,
        "in_flight": 2,
        "done": 1,
        "failed": 1,
        "copies": 0,
        "run_time_mean_s": 2.0,
        "run_time_p50_s": 2.0,
        "run_time_p95_s": 2.0,
        "prefetch": 0,
    }
    assert waiting in farm.scheduler._open.by_id
    assert state["calls"][0] == {
        "call": "3",
        **OF_M,
        "phase": "sent",
        "age_s": 5.0,
        "story": ["queued 2 s", "sent to a 3 s ago"],
    }
    assert [row["phase"] for row in state["calls"]] == ["sent", "sent", "queued"]


def test_the_load_counts_what_the_snapshot_shows(farm: Recorder) -> None:
    assert farm.scheduler.view.load() == Load(0, 0, 0)
    farm.join("a", "m", "n", slots=2)
    farm.join("b", "n")
    tasks = farm.submit_many(4)
    farm.expect(sent("a", *tasks[:2]))
    assert farm.scheduler.view.load() == Load(workers=2, busy=1, queued=2)
    farm.after(2.0).answer("a", tasks[0], 2.0, sent("a", tasks[2]))
    assert farm.scheduler.view.load() == Load(workers=2, busy=1, queued=1)


def test_every_queue_that_was_used_has_its_row(farm: Recorder) -> None:
    farm.join("w", slots=9)
    tasks = [farm.submit(call(operation=operation)) for operation in Operation]
    farm.expect(sent("w", *tasks))
    farm.answer("w", tasks[0])
    farm.answer("w", tasks[1], ModelFailed("it raised"))
    farm.leave("w", drained=True)
    farm.expect()
    rows = farm.scheduler.view.snapshot(farm.now)["queues"]
    assert [row["operation"] for row in rows] == [operation.value for operation in Operation]
    assert [row["queued"] for row in rows] == [0, 0, *[1] * (len(Operation) - 2)]


def ages(farm: Recorder) -> list[tuple[float, str]]:
    return [(row["age_s"], row["phase"]) for row in farm.scheduler.view.snapshot(farm.now)["calls"]]


def test_of_many_calls_the_oldest_are_shown(farm: Recorder) -> None:
    farm.join("w")
    for _ in range(CALLS_SHOWN + 3):
        farm.after(1.0).submit()
    farm.forget_actions()
    assert ages(farm) == [(7.0, "sent"), *((float(age), "queued") for age in (6, 5, 4, 3))]


def test_calls_that_have_just_come_or_have_no_caller_are_not_shown(farm: Recorder) -> None:
    farm.join("w", slots=2)
    first = farm.begin("w")
    farm.after(0.1).begin("w")
    farm.after(0.95).expect()
    assert ages(farm) == [(1.05, "sent")]
    farm.scheduler.cancel(first)
    assert ages(farm) == []
    farm.after(9.0).expect()
    assert [phase for _, phase in ages(farm)] == ["sent"]


def losses_shown(farm: Recorder) -> list[int]:
    rows = farm.scheduler.view.snapshot(farm.now)["calls"]
    return [sum("lost with w" in step for step in row["story"]) for row in rows]


def test_calls_lost_most_often_are_shown_first_and_no_longer_when_they_end(
    farm: Recorder,
) -> None:
    farm.join("busy")
    farm.submit_many(CALLS_SHOWN)
    farm.forget_actions()
    tasks = []
    for name, losses in (("once", 1), ("thrice", 3), ("twice", 2)):
        farm.join("w", name)
        tasks.append(farm.submit(name))
        for _ in range(losses):
            farm.expect(sent("w", tasks[-1]))
            farm.leave("w")
            farm.join("w", name)
        farm.expect(sent("w", tasks[-1]))
        farm.leave("w", drained=True)
    farm.after(2.0).expect()
    assert losses_shown(farm) == [3, 2, 1, 0, 0]
    for task in tasks:
        farm.scheduler.cancel(task)
    farm.expect()
    assert losses_shown(farm) == [0] * CALLS_SHOWN


def test_rows_that_were_lost_before_stand_out_at_once(farm: Recorder) -> None:
    farm.join("w", slots=9)
    tasks = farm.submit_many(8)
    lost = farm.scheduler.submit(call(), lost_on=("v (signal 9)",), now=farm.now)
    farm.expect(sent("w", lost, *tasks))
    (row,) = farm.scheduler.view.snapshot(farm.now)["calls"]
    assert row["story"] == ["lost before with v (signal 9)", "queued 0 s", "sent to w 0 s ago"]
