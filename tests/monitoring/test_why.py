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


async def test_only_the_calls_of_a_chain() -> None:
    dispatcher, _, _ = busy()
    for chain in ("1", "2"):
        asked(dispatcher, Hints("sampler", chain=chain))
    assert (await why(dispatcher, client="sampler", chain="2"))["call"] == "5"
    assert (await why(dispatcher, client="sampler", chain="7"))["phase"] is None


async def test_what_is_not_open() -> None:
    dispatcher, _, _ = busy()
    for arguments, text in (
        ({"call": "99"}, "call 99 is not open"),
        ({"client": "nobody"}, "client 'nobody' has no open call"),
    ):
        answer = await why(dispatcher, **arguments)
        assert (answer["phase"], answer["workers"]) == (None, None)
        assert answer["why"][0].startswith(text)
    with pytest.raises(InvalidInput, match="a call by its number"):
        await why(dispatcher)


async def test_a_call_by_the_id_of_its_request() -> None:
    dispatcher, worker, _ = busy()
    mine = asked(dispatcher, replace(CHAIN, call_id="abc-123"))
    for arguments in ({"call": "abc-123"}, {"of": "abc-123"}):
        answer = await why(dispatcher, **arguments)
        assert (answer["call"], answer["id"], answer["waiting"]) == ("4", "abc-123", 1)
        assert answer["why"][0].startswith(
            "call 4 with the id 'abc-123', evaluate of model 'cube', of client 'sampler' in chain"
        )
        assert answer["why"][1] == "it is next: no other call goes first"
    assert (await why(dispatcher, call="1"))["id"] == ""
    for _ in range(4):
        await worker.answer()
    await mine
    answer = await why(dispatcher, call="abc-123")
    assert answer["phase"] is None
    assert answer["why"][0].startswith("call abc-123 is not open: it was answered")


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


async def test_digits_are_a_number_before_a_client_and_a_client_before_an_id() -> None:
    dispatcher, _, _ = busy()
    asked(dispatcher, Hints("2", call_id="3"))
    asked(dispatcher, Hints("77", call_id="88"))
    asked(dispatcher, Hints("88", call_id="77"))
    await turns()
    found = [(await why(dispatcher, of=of))["call"] for of in ("2", "3", "4", "77", "88")]
    assert found == ["2", "3", "4", "5", "6"]
    answer = await why(dispatcher, of="9")
    assert answer["why"][0].startswith("call 9 is not open")
    answer = await why(dispatcher, of="no-such-id")
    assert answer["why"][0] == (
        "client 'no-such-id' has no open call, and no open call has this id"
    )


async def test_clients_without_a_name() -> None:
    dispatcher, _, _ = busy()
    asked(dispatcher, Hints())
    for arguments in ({"client": ""}, {"of": ""}, {"of": "(no name)"}):
        answer = await why(dispatcher, **arguments)
        assert (answer["call"], answer["client"]) == ("4", "")
        assert "evaluate of model 'cube', of a client without a name, has " in answer["why"][0]
    answer = await why(dispatcher, client="sweep")
    assert has(answer, "1 of a client without a name")
    asked(dispatcher, Hints("(no name)"))
    assert (await why(dispatcher, of="(no name)"))["call"] == "5"


async def test_who_asks_without_a_name_asks_about_their_own_calls() -> None:
    dispatcher, _, _ = busy()
    asked(dispatcher, CHAIN)
    await turns()
    for arguments in ({}, {"chain": "3"}):
        answer = await dispatcher.questions.ask("why", arguments, asker="sampler")
        assert answer["call"] == "4"
    answer = await dispatcher.questions.ask("why", {"asker": "sampler"}, asker="sweep")
    assert answer["client"] == "sweep"


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
