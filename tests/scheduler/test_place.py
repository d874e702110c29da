"""The place of a waiting call, and whose calls go before it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.scheduler.place import SHOWN, place, starts_in_s, waits
from farm.scheduler.state import TaskId
from tests.scheduler.recorder import SHORT_S, Recorder, replied, sent


@pytest.fixture
def busy(farm: Recorder) -> Recorder:
    """Runs take a second; the only worker runs a call of client "sweep"."""
    farm.learn(1.0)
    farm.join("w", "m", "other")
    farm.expect(sent("w", farm.submit(client="sweep")))
    return farm


def before(farm: Recorder, task: TaskId) -> tuple[int, dict[str, int]]:
    position, rows = place(farm.task(task))
    return position, {row.client: row.calls for row in rows}


def told(farm: Recorder, task: TaskId) -> dict[str, Any]:
    state = waits(farm.task(task), farm.scheduler.view, farm.now)
    assert json.loads(json.dumps(state)) == state
    return state


def test_earlier_calls_of_the_client_itself(busy: Recorder) -> None:
    first, second, third = busy.submit_many(3, client="sweep")
    assert before(busy, first) == (1, {})
    assert before(busy, second) == (2, {"sweep": 1})
    assert before(busy, third) == (3, {"sweep": 2})


def test_a_chain_is_before_the_sweep_that_holds_the_worker(busy: Recorder) -> None:
    waiting = busy.submit_many(10, client="sweep")
    chain = busy.submit(client="chain")
    assert before(busy, chain) == (1, {})
    # The chain has one call, so it goes before all of the sweep, once.
    assert before(busy, waiting[0]) == (2, {"chain": 1})
    assert before(busy, waiting[9]) == (11, {"chain": 1, "sweep": 9})


def test_clients_take_turns_as_they_have_callers(busy: Recorder) -> None:
    for chain in ("1", "2"):
        for _ in range(20):
            busy.submit(client="two", chain=chain)
    mine = [busy.submit(client="one") for _ in range(5)]
    _, rows = before(busy, mine[4])
    assert rows["one"] == 4
    assert rows["two"] == 8  # twice as many turns


def test_priority_goes_first_whole(busy: Recorder) -> None:
    mine = busy.submit(client="a")
    for _ in range(3):
        busy.submit(client="b", priority=2)
    assert before(busy, mine) == (4, {"b": 3})


def test_worker_seconds_count_as_runs(farm: Recorder) -> None:
    """A client whose run took five seconds waits for four runs of another, of 1.2 s each."""
    farm.learn(1.0)
    farm.join("w")
    long = farm.submit(client="long")
    farm.expect(sent("w", long))
    mine = farm.submit(client="long")
    waiting = farm.submit_many(9, client="sweep")
    farm.after(5.0).finish("w", long, 5.0)
    farm.expect(replied(long, 5.0, "w"), sent("w", waiting[0]))
    farm.resize("w", 0)
    farm.hand_back("w", waiting[0])
    farm.forget_actions()
    assert before(farm, mine) == (5, {"sweep": 4})


def test_calls_of_other_models_that_are_due_earlier(busy: Recorder) -> None:
    mine = busy.submit(client="a")
    short = busy.submit_many(3, "other", client="b")
    assert before(busy, mine) == (2, {"b": 1})  # its next one, then it is seen again
    assert before(busy, short[0])[0] == 1


def test_calls_at_a_worker(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    one, two = farm.submit(client="a"), farm.submit(client="b")
    farm.expect(sent("w", one, two))
    assert before(farm, one) == (0, {})
    assert before(farm, two) == (2, {"a": 1})


def test_many_clients_are_summed_up(busy: Recorder) -> None:
    for number in range(SHOWN + 5):
        busy.submit(client=f"c{number}", priority=1)
    mine = busy.submit(client="a")
    position, rows = place(busy.task(mine))
    assert position == SHOWN + 6
    assert len(rows) == SHOWN + 1
    assert rows[-1][:2] == ("(5 others)", 5)


def test_the_expected_start_follows_from_mean_and_slots(busy: Recorder) -> None:
    tasks = busy.submit_many(4, client="sweep")
    assert starts_in_s(busy.task(tasks[3]), 4) == pytest.approx(4.0)
    busy.scheduler.worker_resized(busy.worker("w").id, 2)
    busy.expect(sent("w", tasks[0]))
    assert starts_in_s(busy.task(tasks[3]), 3) == pytest.approx(1.5)
    assert starts_in_s(busy.task(tasks[3]), 0) is None
    unknown = busy.submit("other")
    assert starts_in_s(busy.task(unknown), 1) is None


def test_what_the_workers_do(busy: Recorder) -> None:
    busy.join("idle", "m")
    busy.resize("idle", 0)
    mine = busy.submit(client="chain", chain="3")
    busy.after(4.0).expect()
    state = told(busy, mine)
    assert (state["client"], state["chain"], state["position"]) == ("chain", "3", 1)
    assert [rule["rule"] for rule in state["rules"]] == ["busy"]
    workers = state["workers"]
    counts = {key: workers[key] for key in ("count", "busy", "idle", "shut", "full")}
    assert counts == {"count": 2, "busy": 1, "idle": 0, "shut": 1, "full": 0}
    assert workers["running"] == {"sweep": 1}
    first, second = workers["rows"]
    assert (first["name"], first["running_s"]) == ("w", 4.0)
    assert first["running"]["client"] == "sweep"
    assert (second["name"], second["phase"], second["running"]) == ("idle", "shut", None)


def test_a_call_without_workers(farm: Recorder) -> None:
    farm.join("w")
    farm.leave("w", drained=True)
    mine = farm.submit()
    state = told(farm, mine)
    assert state["workers"]["count"] == 0
    assert state["starts_in_s"] is None
