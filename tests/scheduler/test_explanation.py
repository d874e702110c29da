"""Why a call waits: each rule is named when it decides, and never when it does not.

And its place: whose calls go before it, and when it may begin.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.call import Call, Operation
from farm.scheduler.explanation import NAMED, SHOWN, explain, place, waits
from farm.scheduler.state import TaskId
from tests.support.scheduler_recorder import SHORT_S, Recorder, call, model, sent


def why(farm: Recorder, task: TaskId) -> list[tuple[str, int]]:
    """Return the rules that let a call wait, with the calls that each puts before it."""
    return [(reason.rule, reason.calls) for reason in explain(farm.task(task), farm.now)]


def text_of(farm: Recorder, task: TaskId, rule: str) -> str:
    (text,) = [r.text for r in explain(farm.task(task), farm.now) if r.rule == rule]
    return text


RUNNING = TaskId(21)


@pytest.fixture
def swept(farm: Recorder) -> Recorder:
    """Runs take a second; the only worker runs a call of client "sweep", `RUNNING`."""
    farm.learn(1.0)
    farm.join("w", "m", "other")
    farm.begin("w", client="sweep")
    return farm


def test_workers_that_are_busy_gone_or_draining(farm: Recorder) -> None:
    farm.learn(1.0)
    farm.join("w", "m", "long")
    farm.begin("w", client="")
    task = farm.submit()
    assert why(farm, task) == [("busy", 0)]
    assert text_of(farm, task, "busy") == (
        "its only worker is busy, with calls of clients without a name (1); "
        "one of model 'm' may end in about 1 s"
    )
    farm.resize("w", 0)
    assert "none of its 1 workers takes calls" in text_of(farm, task, "busy")
    farm.leave("w", drained=True)
    assert why(farm, task)[0] == ("no worker", 0)
    assert text_of(farm, task, "no worker") == "no worker serves model 'm' now"
    state = told(farm, task)
    assert (state["workers"]["count"], state["starts_in_s"]) == (0, None)


def test_free_workers_that_end_too_soon(farm: Recorder) -> None:
    farm.learn(100.0)
    farm.join("long", ends_at=farm.now + 1000.0)
    farm.resize("long", 0)
    farm.join("w", ends_at=farm.now + 110.0)
    task = farm.submit()
    farm.expect()
    assert why(farm, task) == [("too long", 0)]
    assert "100 s" in text_of(farm, task, "too long")


def test_clients_that_hold_fewer_workers(swept: Recorder) -> None:
    task = swept.submit(client="sweep")
    swept.submit_many(2, client="b")
    # The second one of "b" has its turn after it: then "b" holds the worker.
    assert why(swept, task) == [("busy", 0), ("workers held", 1)]
    text = text_of(swept, task, "workers held")
    assert text == "before it 1 call of 'b': it holds fewer workers per caller"


def test_seconds_decide_between_clients_that_hold_as_many(swept: Recorder) -> None:
    swept.resize("w", 0)
    swept.after(30.0).answer("w", RUNNING, 30.0)
    others = [swept.submit(client=name) for name in "bcde"]
    task = swept.submit(client="sweep")
    assert why(swept, task) == [("busy", 0), ("worker-seconds", 4)]
    assert f"and {4 - NAMED} more: it has used fewer" in text_of(swept, task, "worker-seconds")
    assert why(swept, others[0]) == [("busy", 0)]


@pytest.fixture
def two_models(swept: Recorder) -> Recorder:
    """The only worker runs a call of client "a"; a run of model "other" takes 100 s."""
    swept.answer("w", RUNNING)
    swept.run("w", "other", 100.0, client="b")
    swept.begin("w", client="a")
    return swept


def test_calls_of_another_model_that_are_due_earlier(two_models: Recorder) -> None:
    farm = two_models
    task = farm.submit("other", client="b")
    short = farm.submit_many(3, client="c")
    assert why(farm, task) == [("busy", 0), ("due time", 1)]
    assert "evaluate calls of model 'm' are due" in text_of(farm, task, "due time")
    assert why(farm, short[0]) == [("busy", 0)]
    assert before(farm, task) == (2, {"c": 1})  # its next one, then it is seen again
    assert before(farm, short[0]) == (1, {})
    farm.submit(client="b")
    for each in short:
        farm.scheduler.cancel(each)
    assert "before it 1 call of 'b': " in text_of(farm, task, "due time")


def test_a_client_that_has_used_much_more(two_models: Recorder) -> None:
    farm = two_models
    farm.submit("other", client="d")
    task = farm.submit(client="c")
    assert why(farm, task) == [("busy", 0)]
    farm.account("c").usage.used_s = 1e6
    assert why(farm, task) == [("busy", 0), ("worker-seconds", 1)]
    text = "1 call of 'd': evaluate calls of model 'other' are of a client that has used 11 d 13 h"
    assert f"{text} less" in text_of(farm, task, "worker-seconds")


def test_a_batch_that_waits_for_more_calls(farm: Recorder) -> None:
    farm.join("w", model(max_batch=8))
    farm.answer_all("w", farm.begin_many("w", 4), 1.0)
    task = farm.submit()
    farm.expect()
    assert why(farm, task) == [("batch", 0)]
    farm.after(1.0).expect(sent("w", task))


def test_a_derivative_that_waits_for_the_worker_of_its_point(farm: Recorder) -> None:
    known = model(keeps_point=True)
    for name in "vw":
        farm.join(name, known)
        farm.resize(name, 0)
    for name in ("v", "w"):
        farm.resize(name, 1)
        farm.run(name, call(operation=Operation.GRADIENT), 10.0)
        farm.resize(name, 0)
    farm.resize("v", 1)
    farm.begin("v")
    farm.resize("w", 1)
    task = farm.submit(call(operation=Operation.GRADIENT))
    farm.expect()
    assert why(farm, task) == [("same point", 0)]
    farm.after(1.5).expect(sent("w", task))


def test_a_call_that_waits_at_its_worker(farm: Recorder) -> None:
    farm.learn(SHORT_S)
    farm.join("w")
    first, second = farm.submit(client="a"), farm.submit(client="b")
    farm.expect(sent("w", first, second))
    assert (why(farm, first), before(farm, first)) == ([], (0, {}))
    assert (why(farm, second), before(farm, second)) == ([("at worker", 1)], (2, {"a": 1}))
    assert text_of(farm, second, "at worker") == (
        "before it 1 call of 'a': sent to worker w earlier"
    )
    assert starts_in_s(farm, first) is None
    assert starts_in_s(farm, second) == pytest.approx(SHORT_S)
    assert starts_in_s(farm, farm.submit()) == pytest.approx(2 * SHORT_S)


def test_the_snapshot_has_the_oldest_call_of_each_client_that_waits(swept: Recorder) -> None:
    old = swept.submit_many(3, client="b")
    swept.after(2.0)
    swept.submit(client="c")
    swept.after(2.0)
    waits = json.loads(json.dumps(swept.scheduler.view.snapshot(swept.now)["waits"]))
    assert [(row["client"], row["calls"], row["age_s"]) for row in waits] == [
        ("b", 3, 4.0),
        ("c", 1, 2.0),
    ]
    text = text_of(swept, old[0], "busy")
    assert waits[0]["why"] == [{"rule": "busy", "text": text, "calls": 0}]


# Its place


def before(farm: Recorder, task: TaskId) -> tuple[int, dict[str, int]]:
    position, rows = place(farm.task(task))
    return position, {row.client: row.calls for row in rows}


def told(farm: Recorder, task: TaskId) -> dict[str, Any]:
    state = waits(farm.task(task), farm.scheduler.view, farm.now)
    assert json.loads(json.dumps(state)) == state
    return state


def test_earlier_calls_of_the_client_itself(swept: Recorder) -> None:
    first, second, third = swept.submit_many(3, client="sweep")
    assert (why(swept, first), before(swept, first)) == ([("busy", 0)], (1, {}))
    assert before(swept, second) == (2, {"sweep": 1})
    assert why(swept, third) == [("busy", 0), ("older", 2)]
    assert before(swept, third) == (3, {"sweep": 2})
    assert text_of(swept, third, "older") == (
        "before it 2 calls of 'sweep': earlier calls of the same client"
    )


def test_a_chain_is_before_the_sweep_that_holds_the_worker(swept: Recorder) -> None:
    waiting = swept.submit_many(10, client="sweep")
    chain = swept.submit(client="chain")
    assert before(swept, chain) == (1, {})
    # The chain has one call, so it goes before all of the sweep, once.
    assert before(swept, waiting[0]) == (2, {"chain": 1})
    assert before(swept, waiting[9]) == (11, {"chain": 1, "sweep": 9})


def test_clients_take_turns_as_they_have_callers(swept: Recorder) -> None:
    for chain in ("1", "2"):
        swept.submit_many(20, client="two", chain=chain)
    mine = swept.submit_many(5, client="one")
    _, rows = before(swept, mine[4])
    assert (rows["one"], rows["two"]) == (4, 8)  # twice as many turns


def test_priority_goes_first_whole(swept: Recorder) -> None:
    mine = swept.submit(client="a")
    swept.submit_many(3, client="b", priority=2)
    assert why(swept, mine) == [("busy", 0), ("priority", 3)]
    assert before(swept, mine) == (4, {"b": 3})


def test_worker_seconds_count_as_runs(farm: Recorder) -> None:
    """A client whose run took five seconds waits for four runs of another, of 1.2 s each."""
    farm.learn(1.0)
    farm.join("w")
    long = farm.begin("w", client="long")
    mine = farm.submit(client="long")
    waiting = farm.submit_many(9, client="sweep")
    farm.after(5.0).answer("w", long, 5.0, sent("w", waiting[0]))
    farm.resize("w", 0)
    farm.hand_back("w", waiting[0])
    farm.forget_actions()
    assert before(farm, mine) == (5, {"sweep": 4})


def test_many_clients_are_summed_up(swept: Recorder) -> None:
    for number in range(SHOWN + 5):
        swept.submit(client=f"c{number}", priority=1)
    mine = swept.submit(client="a")
    position, rows = place(swept.task(mine))
    assert position == SHOWN + 6
    assert len(rows) == SHOWN + 1
    assert rows[-1][:2] == ("(5 others)", 5)


def starts_in_s(farm: Recorder, task: TaskId) -> Any:
    return told(farm, task)["starts_in_s"]


def test_the_expected_start_follows_from_what_runs_and_what_goes_first(swept: Recorder) -> None:
    tasks = swept.submit_many(4, client="sweep")
    assert starts_in_s(swept, tasks[0]) == pytest.approx(1.0)
    swept.after(0.5)
    assert starts_in_s(swept, tasks[3]) == pytest.approx(0.5 + 3.0)
    swept.scheduler.worker_resized(swept.worker("w").id, 2)
    swept.expect(sent("w", tasks[0]))
    assert starts_in_s(swept, tasks[1]) == pytest.approx(0.5)
    assert starts_in_s(swept, tasks[3]) == pytest.approx((0.5 + 1.0 + 2.0) / 2)
    other = swept.submit("other", client="new")
    behind = swept.submit("other", client="new")
    assert starts_in_s(swept, behind) is None, "its run times are not known, nor those before it"
    swept.scheduler.cancel(behind)
    assert starts_in_s(swept, other) == pytest.approx(0.5)


def test_a_call_that_runs_longer_than_others_did_has_no_known_end(swept: Recorder) -> None:
    mine = swept.submit(client="chain")
    swept.after(10.0).expect()
    assert starts_in_s(swept, mine) is None
    assert "has an unknown end" in text_of(swept, mine, "busy")
    assert told(swept, mine)["workers"]["rows"][0]["ends_in_s"] is None


@pytest.mark.parametrize(
    ("slow", "named"),
    [(call("slow"), "slow"), (call(config='{"level":1}'), "m")],
    ids=["of another model", "of another level, which a config may choose"],
)
def test_a_fast_call_waits_for_a_slow_run(farm: Recorder, slow: Call, named: str) -> None:
    """Behind it the call does not begin after a fast one's time."""
    farm.learn(1e-3, count=200)
    farm.join("w", "m", "slow")
    running = farm.begin("w", slow, client="a")
    mine = farm.submit(client="b")
    farm.after(20.0).expect()
    assert f"with calls of 'a' (1); one of model '{named}' has an" in text_of(farm, mine, "busy")
    assert starts_in_s(farm, mine) is None, "no run of that kind is known"
    farm.after(40.0).answer("w", running, 60.0, sent("w", mine))
    running = farm.submit(slow, client="a")
    farm.answer("w", mine, 1e-3, sent("w", running))
    mine = farm.submit(client="b")
    farm.after(20.0).expect()
    assert f"one of model '{named}' may end in about 40 s" in text_of(farm, mine, "busy")
    state = told(farm, mine)
    assert (state["position"], state["starts_in_s"]) == (1, pytest.approx(40.0))
    (row,) = state["workers"]["rows"]
    assert row["running"]["model"] == named
    assert (row["running_s"], row["ends_in_s"]) == pytest.approx((20.0, 40.0))


def test_what_the_workers_do(swept: Recorder) -> None:
    swept.join("idle", "m")
    swept.resize("idle", 0)
    mine = swept.submit(client="chain", chain="3")
    swept.after(4.0).expect()
    state = told(swept, mine)
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
