"""Why a call waits, in data and in lines of text."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from farm.call import Hints, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import InvalidInput
from farm.monitoring import why as why_module
from farm.monitoring.why import Why
from tests.dispatcher.test_dispatcher import CUBE, W1, W2, Recorder, cube, turns, up
from tests.support.expected import Expected

SWEEP, CHAIN = Hints("sweep", chain=""), Hints("sampler", chain="3")


def asked(dispatcher: Dispatcher, hints: Hints) -> asyncio.Task[Result]:
    return asyncio.create_task(dispatcher.submit(cube(), hints))


def busy(**limits: Any) -> tuple[Dispatcher, Recorder, Why]:
    """A farm of one worker that runs the first of three calls of a sweep."""
    dispatcher, worker = up(**limits)
    worker.join()
    for _ in range(3):
        dispatcher.start_call(cube(), SWEEP, lambda outcome: None)
    return dispatcher, worker, Why(dispatcher)


async def why(dispatcher: Dispatcher, **arguments: str) -> dict[str, Any]:
    await turns()
    answer: dict[str, Any] = await dispatcher.questions.ask("why", arguments)
    assert json.loads(json.dumps(answer)) == answer
    return answer


def has(answer: dict[str, Any], text: str) -> bool:
    return any(text in line for line in answer["why"])


async def test_a_chain_behind_a_sweep() -> None:
    dispatcher, worker, _ = busy()
    mine = asked(dispatcher, CHAIN)
    answer = await why(dispatcher, client="sampler")
    assert (answer["call"], answer["phase"], answer["position"]) == ("4", "queued", 1)
    assert answer["workers"]["rows"][0]["running"]["client"] == "sweep"
    assert answer["jobs"] == []
    assert answer["why"][0].startswith(
        "call 4, evaluate of model 'cube', of client 'sampler' in chain '3', has waited "
    )
    assert answer["why"][1:3] == [
        "it is next: no other call goes first",
        "its only worker is busy, with calls of 'sweep' (1); "
        "one of model 'cube' has an unknown end",
    ]
    assert has(answer, "the longest run is call 1 of 'sweep' on worker node1/1-a, for ")
    assert has(answer, "; it has an unknown end")
    for _ in range(4):
        await worker.answer()
    await mine


async def test_the_sweep_itself_and_one_of_its_calls() -> None:
    dispatcher, _, _ = busy()
    asked(dispatcher, CHAIN)
    answer = await why(dispatcher, client="sweep")
    assert (answer["call"], answer["waiting"], answer["position"]) == ("2", 2, 2)
    assert answer["before"][0]["client"] == "sampler"
    assert has(answer, "it is the oldest of 2 calls that wait")
    assert has(answer, "its place is 2; before it go about 1 of 'sampler' (it holds fewer workers")
    answer = await why(dispatcher, call="3")
    assert {row["client"]: row["count"] for row in answer["before"]} == {"sampler": 1, "sweep": 1}
    answer = await why(dispatcher, call="1")
    assert (answer["phase"], answer["position"], answer["before"]) == ("sent", 0, [])
    assert "runs: it was sent to worker node1/1-a" in answer["why"][0]


OTHERS = [
    replace(CHAIN, call_id="abc-123"),
    Hints("sampler", chain="4"),
    Hints("2", call_id="3"),
    Hints("77", call_id="88"),
    Hints("88", call_id="77"),
    Hints(),
]
"""Who asks for calls 4 to 9, behind those of the sweep."""

NAMED = "call 4 with the id 'abc-123', evaluate of model 'cube', of client 'sampler' in chain '3', "
NAMELESS = "call 9, evaluate of model 'cube', of a client without a name, has waited"
UNKNOWN = "client 'no-such-id' has no open call, and no open call has this id"


@pytest.mark.parametrize(
    ("arguments", "asker", "call", "first_line"),
    [
        ({"client": "sampler"}, "", "4", NAMED),
        ({"client": "sampler", "chain": "4"}, "", "5", "call 5, "),
        ({"client": "sampler", "chain": "7"}, "", None, "client 'sampler' has no open call in"),
        ({"call": "1"}, "", "1", "call 1, "),
        ({"call": "99"}, "", None, "call 99 is not open: it was answered"),
        ({"client": "nobody"}, "", None, "client 'nobody' has no open call"),
        ({"call": "abc-123"}, "", "4", NAMED),
        ({"of": "abc-123"}, "", "4", NAMED),
        # Digits are a number before they are a client, and a client before they are an id.
        ({"of": "2"}, "", "2", "call 2, "),
        ({"of": "3"}, "", "3", "call 3, "),
        ({"of": "77"}, "", "7", "call 7 with the id '88', "),
        ({"of": "88"}, "", "8", "call 8 with the id '77', "),
        ({"of": "10"}, "", None, "call 10 is not open"),
        ({"of": "no-such-id"}, "", None, UNKNOWN),
        ({"client": ""}, "", "9", NAMELESS),
        ({"of": ""}, "", "9", NAMELESS),
        ({"of": "(no name)"}, "", "9", NAMELESS),
        ({}, "sampler", "4", NAMED),
        ({"chain": "4"}, "sampler", "5", "call 5, "),
        ({"asker": "sampler"}, "sweep", "2", "call 2, "),
    ],
    ids=str,
)
async def test_which_call_is_meant(
    arguments: dict[str, str], asker: str, call: str | None, first_line: str
) -> None:
    dispatcher, _, _ = busy()
    for hints in OTHERS:
        dispatcher.start_call(cube(), hints, lambda outcome: None)
    await turns()
    answer = await dispatcher.questions.ask("why", arguments, asker=asker)
    assert answer.get("call") == call
    assert answer["why"][0].startswith(first_line)
    assert (answer["phase"] is None) == (answer["workers"] is None) == (call is None)
    with pytest.raises(InvalidInput, match="a call by its number"):
        await why(dispatcher)


async def test_a_client_may_be_called_as_those_without_a_name() -> None:
    dispatcher, _, _ = busy()
    asked(dispatcher, Hints())
    asked(dispatcher, Hints("(no name)"))
    assert (await why(dispatcher, of="(no name)"))["call"] == "5"
    assert has(await why(dispatcher, client="sweep"), "1 of a client without a name")


async def test_one_id_for_several_calls_means_the_oldest_that_waits() -> None:
    dispatcher, worker, _ = busy()
    asking = [asked(dispatcher, replace(CHAIN, call_id="trace")) for _ in range(2)]
    answer = await why(dispatcher, call="trace")
    assert (answer["call"], answer["phase"], answer["waiting"]) == ("4", "queued", 2)
    # The chain is next: its first call runs now. Runs are so long that none is sent ahead.
    await worker.answer(run_time_s=60.0)
    answer = await why(dispatcher, call="trace")
    assert (answer["call"], answer["phase"], answer["waiting"]) == ("5", "queued", 1)
    asking[1].cancel()
    await turns()
    answer = await why(dispatcher, call="trace")
    assert (answer["call"], answer["phase"], answer["waiting"]) == ("4", "sent", 0)


async def test_requests_that_wait_for_the_first_model() -> None:
    dispatcher, _ = up(first_worker_s=60.0)
    Why(dispatcher)
    dispatcher.first_worker.when_known(lambda: None)
    answer = await why(dispatcher, client="me")
    assert answer["why"][1] == (
        "1 requests wait until models are known: the farm waits for its first worker"
    )
    dispatcher.first_worker.close()


async def test_a_full_queue() -> None:
    dispatcher, _, _ = busy(max_queued=6, max_queued_per_client=3)
    await turns()
    dispatcher.start_call(cube(), SWEEP, lambda outcome: None)
    asked(dispatcher, CHAIN)
    answer = await why(dispatcher, client="sweep")
    assert has(answer, "3 calls of client 'sweep' wait, the most that one client may have")
    assert not has(await why(dispatcher, client="sampler"), "the most that")
    for _ in range(2):
        asked(dispatcher, CHAIN)
    assert has(await why(dispatcher, client="sampler"), "6 calls wait, the most that the farm")


async def test_workers_that_drain_and_what_happened_before() -> None:
    dispatcher, worker, _ = busy()
    await turns()
    worker.join(W2)
    dispatcher.worker_resized(W2, 0)
    dispatcher.worker_left(W1, "signal 9")
    answer = await why(dispatcher, call="1")
    assert answer["workers"]["shut"] == 1
    assert has(answer, "none of its 1 workers takes calls: they drain, are unreachable")
    assert has(answer, "what happened so far: queued ")
    assert has(answer, "lost with node1/1-a after ")


KIND = {
    "name": "small",
    "models": ["cube"],
    "max_jobs": 2,
    "pending": 2,
    "running": 0,
    "problem": "",
    "next_try_in_s": None,
}
JOB = {
    "id": "8",
    "kind": "small",
    "phase": "pending",
    "state": "PENDING",
    "reason": "Resources",
    "starts_at": None,
    "workers": 0,
}


async def test_a_full_partition() -> None:
    dispatcher, _ = up()
    Why(dispatcher)
    dispatcher.expect([CUBE])
    starts_at = time.mktime((2125, 11, 25, 8, 0, 0, 0, 0, -1))
    jobs = [
        {**JOB, "starts_at": starts_at},
        {**JOB, "id": "9", "phase": "starting", "state": "RUNNING"},
        {**JOB, "id": "10", "kind": "other"},
        {**JOB, "id": "11", "phase": "serving", "workers": 2},
    ]
    cluster = {"system": "SLURM", "problem": "", "kinds": [KIND], "jobs": jobs}
    dispatcher.add_part("cluster", lambda: cluster)
    asked(dispatcher, CHAIN)
    answer = await why(dispatcher, client="sampler")
    assert [job["id"] for job in answer["jobs"]] == ["8", "9"]
    assert answer["workers"]["count"] == 0
    assert answer["why"][-3:] == [
        "SLURM job 8 of kind 'small' is pending (PENDING Resources), "
        "expected to start 2125-11-25 08:00",
        "SLURM job 9 of kind 'small' is starting (RUNNING)",
        "kind 'small' has 2 of at most 2 jobs",
    ]
    jobs += [{**JOB, "id": f"1{number}"} for number in range(5)]
    assert has(await why(dispatcher, client="sampler"), "and 4 more jobs of kind 'small'")


async def test_a_kind_that_is_paused_and_one_without_jobs() -> None:
    dispatcher, _ = up()
    Why(dispatcher)
    dispatcher.expect([CUBE])
    paused = {**KIND, "pending": 0, "problem": "job 7: FAILED", "next_try_in_s": 30.0}
    none = {**KIND, "name": "big", "pending": 0}
    cluster = {"system": "PBS", "problem": "qstat fails", "kinds": [paused, none], "jobs": []}
    dispatcher.add_part("cluster", lambda: cluster)
    asked(dispatcher, CHAIN)
    answer = await why(dispatcher, client="sampler")
    assert has(answer, "kind 'small': qstat fails; job 7: FAILED; the farm is paused and tries in")
    assert has(answer, "no job of kind 'big' has been submitted yet")
    assert Operation.EVALUATE.value == answer["operation"]


async def test_other_farms_say_why_a_model_has_no_worker() -> None:
    expected = Expected()
    dispatcher, _ = up(expected=expected)
    Why(dispatcher)
    dispatcher.expect([CUBE])
    asked(dispatcher, CHAIN)
    answer = await why(dispatcher, client="sampler")
    assert has(answer, "no worker serves model 'cube' now")
    assert answer["why"][-1] == "the farm expects no other worker: add one with `farm worker`"
    expected.may_come = True
    assert "starts its workers again" in (await why(dispatcher, client="sampler"))["why"][-1]
    expected.whys["cube"] = "cube is being built"
    assert (await why(dispatcher, client="sampler"))["why"][-1] == "cube is being built"


async def test_a_call_that_hangs_is_compared_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher, worker, _ = busy()
    await turns()
    told = await why(dispatcher, call="1")
    assert not has(told, "such calls"), "no run is known yet"
    await worker.answer()
    await turns()
    explained, now = Why(dispatcher), [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(why_module, "time", clock)
    told = explained.answer({"call": "2"})
    assert has(told, "of such calls before, 95 % ran at most ")
    assert not has(told, "it may hang")
    now[0] += 3600.0
    told = explained.answer({"call": "2"})
    assert has(told, "so it may hang: `farm logs node1/1-a` shows what its worker prints")
    assert has(told, "`farm restart node1/1-a` ends it")
    for _ in range(2):
        await worker.answer()


async def test_a_call_is_compared_with_others_of_its_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A config may choose a level whose runs take a thousand times as long."""
    dispatcher, worker = up()
    worker.join()
    explained, now = Why(dispatcher), [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(why_module, "time", clock)
    waiting = [asyncio.create_task(dispatcher.submit(cube())) for _ in range(20)]
    for _ in waiting:
        await worker.answer(run_time_s=1e-6)
    fine = asyncio.create_task(dispatcher.submit(cube(config='{"level":1}')))
    await turns()
    now[0] += 3600.0
    told = explained.answer({"call": "21"})
    assert not has(told, "of such calls")
    assert not has(told, "it may hang")
    (row,) = dispatcher.snapshot()["workers"]
    assert row["running_p95_s"] is None
    await worker.answer(run_time_s=600.0)
    await fine
    dispatcher.start_call(cube(config='{"level":1}'), SWEEP, lambda outcome: None)
    await turns()
    assert not has(explained.answer({"call": "22"}), "it may hang")
    (row,) = dispatcher.snapshot()["workers"]
    assert row["running_p95_s"] == pytest.approx(600.0, rel=0.1)
    now[0] += 7200.0
    assert has(explained.answer({"call": "22"}), "it may hang")
