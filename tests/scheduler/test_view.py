"""What others may read of a scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from farm.scheduler.state import TaskId, WorkerId
from tests.scheduler.recorder import SHORT_S, Recorder, call, model, replied, sent


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
    running = farm.submit(client="a", chain="1")
    farm.expect(sent("w", running))
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
    running = farm.submit("m", client="a", chain="1")
    farm.expect(sent("w2", running))
    other = farm.submit("n", client="b")
    farm.expect(sent("w1", other))
    for chain in ("1", "2", None, None):
        farm.submit("n", client="a", chain=chain)
    farm.after(3.0).expect()
    clients = farm.scheduler.view.clients(farm.now)
    shown = {n: (c.callers, c.queued, c.running, c.busy_s) for n, c in clients.items()}
    assert shown == {"a": (4, 4, 1, 3.0), "b": (1, 0, 1, 3.0)}
    farm.finish("w1", other)
    farm.expect(replied(other, 1.0, "w1"), *(sent("w1", TaskId(other + 1)),))
    assert "b" not in farm.scheduler.view.clients(farm.now)


def test_the_calls_of_a_batch_share_its_seconds(farm: Recorder) -> None:
    farm.join("w", model(max_batch=4))
    first = farm.submit(client="a")
    farm.expect(sent("w", first))
    batch = [farm.submit(client="a"), farm.submit(client="b")]
    farm.after(5.0).finish("w", first, 5.0)
    farm.expect(replied(first, 5.0, "w"), sent("w", *reversed(batch)))
    farm.after(4.0).expect()
    busy = {n: c.busy_s for n, c in farm.scheduler.view.clients(farm.now).items()}
    assert busy == pytest.approx({"a": 2.0, "b": 2.0})


def test_a_prefetched_call_runs_since_its_worker_was_free(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    one, two = farm.submit(client="a"), farm.submit(client="b")
    farm.expect(sent("w", one, two))
    farm.after(3.0).finish("w", one, 3.0)
    farm.forget_actions()
    farm.after(2.0).forget_actions()
    assert farm.scheduler.view.clients(farm.now)["b"].busy_s == pytest.approx(2.0)


def rows_in(farm: Recorder, seconds: float, *, more: int = 0, name: str = "m") -> int:
    return farm.scheduler.view.rows_in(call(name), seconds, more=more)


def ran(farm: Recorder) -> None:
    """Let a call run for `SHORT_S`."""
    task = farm.submit()
    farm.after(0.0)
    farm.scheduler.actions(farm.now)
    farm.finish("w", task)
    farm.scheduler.actions(farm.now)


def test_rows_that_run_in_some_time_are_known_after_a_run() -> None:
    farm = Recorder(max_queued=100)
    assert rows_in(farm, 1.0) == 1, "nobody has it"
    farm.join("w")
    assert rows_in(farm, 1.0) == 1, "it has not run"
    ran(farm)
    mean_s = farm.queue().run_times.mean
    assert mean_s > 0
    assert rows_in(farm, 7.5 * mean_s) == 7
    assert rows_in(farm, 0.5 * mean_s) == 1
    assert rows_in(farm, 7.5 * mean_s, more=100) == 7
    assert rows_in(farm, 7.5 * mean_s, more=101) == 1, "more than may wait"
    farm.queue().counts.to_come = 60
    assert rows_in(farm, 7.5 * mean_s, more=41) == 1
    assert rows_in(farm, 7.5 * mean_s, more=40) == 7


@pytest.mark.parametrize(
    "kind", [{"max_batch": 2}, {"repeatable": False}, {"keeps_point": True}], ids=str
)
def test_rows_that_are_not_for_a_run(kind: dict[str, Any]) -> None:
    farm = Recorder()
    farm.scheduler.worker_joined(WorkerId("w"), [model(**kind)], now=farm.now)
    ran(farm)
    assert farm.queue().run_times.count == 1
    assert rows_in(farm, 1e3) == 1
