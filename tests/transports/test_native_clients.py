"""Native clients at the dispatcher's ROUTER, scripted."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.errors import (
    INTERNAL_ERROR,
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unavailable,
    WorkerLost,
)
from farm.transports import begun, native_client
from farm.transports import native_clients as module
from farm.transports.agenda import STEPS_A_TURN
from farm.transports.identity import CLIENT_PREFIX
from farm.transports.native_client import ANSWERS_A_MESSAGE
from farm.transports.zmq import listener as transport_module
from farm.wire import messages as wire
from farm.wire.bounds import LONGEST_JSON, MOST_LISTS, MOST_VALUES
from farm.wire.messages import Kind
from farm.wire.runs import A_PIECE
from tests.support.coroutines import LoopTurns, until
from tests.support.scripted_peers import CUBE, ONCE, Farm, Peer, value

pytestmark = pytest.mark.usefixtures("both_roads")

ME = CLIENT_PREFIX.decode() + "me"
BATCHES = ModelInfo("batches", CUBE.inputs, CUBE.outputs, max_batch=10_000, repeatable=False)


@asynccontextmanager
async def up(**limits: int) -> AsyncIterator[tuple[Farm, Peer, Peer]]:
    """A farm, a worker that has joined, and a client that it knows."""
    async with Farm.up(**limits) as farm:
        worker = await farm.worker("node1/1-a", CUBE, ONCE)
        yield farm, worker, await welcomed(farm)


async def welcomed(farm: Farm, name: str = ME) -> Peer:
    """A client that the farm knows."""
    client = farm.peer(name)
    client.say(Kind.PROBE)
    for _ in range(2):  # as it is new, and as it asks
        await client.hear(Kind.WELCOME)
    return client


def cube(x: float = 2.0, model: str = "cube") -> Call:
    return Call(model, Operation.EVALUATE, (np.array([x]),))


def ask(
    client: Peer, *calls: tuple[int, Call], hints: Hints | None = None, again: bool = False
) -> None:
    kind = Kind.CALLS_AGAIN if again else Kind.CALLS
    client.send(wire.encode_calls(calls, hints, kind=kind))


async def answer(worker: Peer) -> int:
    """Answer the calls of the next message; return their number."""
    calls = await worker.hear_calls()
    worker.answer(*[(i, Result((call.inputs[0] ** 3,), 0.001)) for i, call in calls])
    return len(calls)


async def answers(client: Peer, worker: Peer | None = None) -> dict[int, Any]:
    """Return the client's next answers, which `worker` may have to send first."""
    if worker is not None:
        await answer(worker)
    return dict(wire.decode_answers(await client.hear(Kind.ANSWERS)))


async def test_calls_are_answered_by_the_clients_own_numbers() -> None:
    async with up() as (farm, worker, _):
        client = farm.peer(CLIENT_PREFIX.decode() + "new")
        ask(client, (7, cube(2.0)))
        await client.hear(Kind.WELCOME)
        outcome = (await answers(client, worker))[7]
        assert value(outcome) == 8.0
        assert outcome.worker == "node1/1-a"


async def test_answers_of_one_turn_share_a_message() -> None:
    async with up() as (farm, worker, client):
        other = await farm.worker("node2/2-b", CUBE, slots=8)
        worker.say(Kind.RESIZE, 0)
        await until(lambda: farm.slots()[0] == 0)
        ask(client, *[(i, cube(i)) for i in range(8)])
        calls: list[tuple[int, Call]] = []
        while len(calls) < 8:
            calls += await other.hear_calls()
        other.answer(*[(i, Result((call.inputs[0],), 0.001)) for i, call in calls])
        assert sorted(await answers(client)) == list(range(8))


async def test_call_that_cannot_be_taken_is_answered_at_once() -> None:
    async with up(max_queued=1) as (_, worker, client):
        ask(client, (1, cube()), (2, cube(model="beam")), (3, Call("cube", Operation.EVALUATE)))
        outcomes = await answers(client)
        assert isinstance(outcomes[2], ModelNotFound)
        assert isinstance(outcomes[3], InvalidInput)
        task_id = await worker.hear_call()
        ask(client, (4, cube()), (5, cube()))
        assert isinstance((await answers(client))[5], Overloaded)
        worker.settle(task_id)
        assert value((await answers(client))[1]) == 8.0


async def test_call_that_cannot_be_read_is_answered() -> None:
    async with up() as (_, worker, client):
        client.say(Kind.CALLS, [None, [[1, "cube", "evaluate", [["<f8", [10**18], 0]]]]])
        assert isinstance((await answers(client))[1], InvalidRequest)
        ask(client, (2, cube()))
        assert value((await answers(client, worker))[2]) == 8.0


async def test_hints_hold_for_all_calls_of_a_message() -> None:
    async with up() as (_, worker, client):
        ask(client, (1, cube()))
        first = await worker.hear_call()
        ask(client, (2, cube(2.0)))
        ask(client, (3, cube(3.0)), hints=Hints(priority=5))
        ask(client, (4, cube(4.0)), hints=Hints(deadline_s=0.02))
        assert isinstance((await answers(client))[4], DeadlineExceeded)
        worker.settle(first)
        order: list[float] = []
        while len(order) < 2:
            order += [call.inputs[0][0] for _, call in await worker.hear_calls()]
        assert order == [3.0, 2.0]


async def test_cancelled_call_is_taken_back() -> None:
    async with up() as (farm, worker, client):
        ask(client, (1, cube(1.0)))
        first = await worker.hear_call()
        ask(client, (2, cube(2.0)), (3, cube(3.0)))
        client.say(Kind.CANCEL, [2, 99])
        worker.settle(first, 1.0)
        assert list(await answers(client)) == [1]
        assert list(await answers(client, worker)) == [3]
        assert farm.queued() == 0


async def test_calls_that_wait_are_cancelled_and_answered_and_one_that_runs_goes_on() -> None:
    async with up() as (farm, worker, client):
        ask(client, (1, cube(1.0)))
        first = await worker.hear_call()
        ask(client, (2, cube(2.0)), (3, cube(3.0, "once")), (4, cube(4.0)))
        client.say(Kind.CANCEL_WAITING, [1, 2, 3, 99])
        found = await answers(client)
        while len(found) < 2:
            found |= await answers(client)
        assert {i: type(outcome) for i, outcome in found.items()} == {2: Cancelled, 3: Cancelled}
        assert farm.dispatcher.beginning == {}
        worker.settle(first, 1.0)
        assert list(await answers(client)) == [1]
        assert list(await answers(client, worker)) == [4]
        client.say(Kind.CANCEL_WAITING, [1, 2, 3, 4])  # all have their answers
        ask(client, (5, cube(5.0)))
        assert list(await answers(client, worker)) == [5]


async def test_a_call_that_waits_for_its_model_is_cancelled_and_answered() -> None:
    async with Farm.up() as farm:
        client = await welcomed(farm)
        ask(client, (1, cube()), (2, cube()))
        client.say(Kind.CANCEL_WAITING, [1])
        ((call_id, outcome),) = (await answers(client)).items()
        assert (call_id, type(outcome)) == (1, Cancelled)
        worker = await farm.worker("node1/1-a", CUBE)
        assert list(await answers(client, worker)) == [2]


@pytest.mark.parametrize("goodbye", [True, False])
async def test_calls_of_a_client_that_is_gone_are_taken_back(goodbye: bool) -> None:
    async with up() as (farm, worker, client):
        ask(client, (1, cube(1.0)))
        first = await worker.hear_call()
        ask(client, *[(i, cube()) for i in range(2, 50)])
        await until(lambda: farm.queued() == 48)
        if goodbye:
            client.say(Kind.LEAVE)
        else:
            client.close()
        await until(lambda: farm.queued() == 0)
        worker.settle(first, 1.0)  # its client is gone
        other = await welcomed(farm, CLIENT_PREFIX.decode() + "other")
        ask(other, (1, cube()))
        assert value((await answers(other, worker))[1]) == 8.0


# After a lost connection


async def test_who_was_forgotten_or_meets_another_farm_sees_another_number() -> None:
    numbers: list[int] = []
    for _ in range(2):
        async with up() as (_, _, client):
            for _ in range(2):
                client.say(Kind.PROBE)
            first, same = [(await client.hear(Kind.WELCOME)).data for _ in range(2)]
            assert first == same
            client.say(Kind.LEAVE)
            client.say(Kind.PROBE)
            numbers += [first, (await client.hear(Kind.WELCOME)).data]
    assert len(set(numbers)) == 4


async def test_call_said_again_runs_once_unless_its_answer_was_lost() -> None:
    async with up() as (_, worker, client):
        for again in (False, True, True):
            ask(client, (1, cube()), again=again)
        assert list(await answers(client, worker)) == [1]
        for again in (False, True):
            ask(client, (2, cube()), again=again)
            assert list(await answers(client, worker)) == [2]


async def test_call_said_again_that_must_not_run_twice_is_given_up() -> None:
    """It may have begun: by an earlier front door, or here, so that its answer was lost."""
    async with up() as (_, worker, client):
        ask(client, (2, cube(model="once")))  # such calls may overtake those before them
        assert list(await answers(client, worker)) == [2]
        client.say(Kind.PROBE, 0)
        number = (await client.hear(Kind.WELCOME)).data
        ask(client, (1, cube(model="once")), again=True)
        assert isinstance((await answers(client))[1], WorkerLost)
        client.say(Kind.PROBE, number)
        await client.hear(Kind.WELCOME)
        calls = [(i, cube(model="once")) for i in (1, 2, 3)]
        for _ in range(2):  # the third has not begun, and is under way then
            ask(client, *calls, again=True)
            outcomes = await answers(client)
            assert list(outcomes) == [1, 2]
            assert {type(outcome) for outcome in outcomes.values()} == {WorkerLost}
            assert "not repeatable" in outcomes[2].message
        assert list(await answers(client, worker)) == [3]


@pytest.mark.parametrize("kept", [True, False])
async def test_the_next_front_door_starts_what_has_not_begun(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a keeper it does not know what that is, so every call may have run."""
    files: dict[str, int] = {}
    keeper = SimpleNamespace(take_file=files.get, hand=files.__setitem__) if kept else None
    monkeypatch.setattr(begun, "keeper", lambda: keeper)
    calls = [(i, cube(model="once")) for i in (1, 2, 3)]
    async with up() as (_, worker, client), Farm.up() as farm:
        next_worker = await farm.worker("node1/1-a", ONCE)
        client.say(Kind.PROBE)
        client.say(Kind.PROBE, (await client.hear(Kind.WELCOME)).data)
        await client.hear(Kind.WELCOME)
        ask(client, *calls)
        await answer(worker)
        await client.hear(Kind.ANSWERS)
        await worker.hear_calls()  # the second one
        farm.transport._clients._begun = begun.Begun()  # that front door starts now
        client = await welcomed(farm)
        ask(client, *calls, again=True)
        lost = await answers(client)
        assert sorted(lost) == ([1, 2] if kept else [1, 2, 3])
        assert {type(outcome) for outcome in lost.values()} == {WorkerLost}
        assert "not repeatable" in lost[2].message
        if kept:
            assert value((await answers(client, next_worker))[3]) == 8.0
        ask(client, (4, cube(model="once")))
        assert value((await answers(client, next_worker))[4]) == 8.0


@pytest.mark.parametrize("error", [Unavailable, Overloaded, ModelNotFound])
async def test_a_call_that_has_run_is_no_refused_one(error: type[FarmError]) -> None:
    """A client would send it again."""
    async with up() as (_, worker, client):
        ask(client, (1, cube(model="once")))
        task_id = await worker.hear_call()
        worker.send(wire.encode_answers([(task_id, error("a farm that the model uses is full"))]))
        outcome = (await answers(client))[1]
        assert isinstance(outcome, WorkerLost)
        assert "uses is full; it may have run" in outcome.message
        ask(client, (1, cube(model="once")))
        assert isinstance((await answers(client))[1], WorkerLost)


async def test_calls_that_end_in_the_queue_leave_nothing() -> None:
    async with up() as (farm, worker, client):
        ask(client, (1, cube(model="once")), (2, cube(model="once")))
        ask(client, (3, cube(model="once")), hints=Hints(deadline_s=0.01))
        assert isinstance((await answers(client))[3], DeadlineExceeded)
        assert len(farm.dispatcher.beginning) == 1
        client.say(Kind.CANCEL, [2])
        await until(lambda: farm.dispatcher.beginning == {})
        assert list(await answers(client, worker)) == [1]


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
async def test_client_whose_connection_broke_unnoticed_gets_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport_module, "PROBE_EVERY_S", 1000.0)
    async with up() as (farm, worker, client):
        ask(client, (1, cube()))
        client.close()
        again = farm.peer(ME)
        ask(again, (1, cube()), again=True)
        assert value((await answers(again, worker))[1]) == 8.0


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
async def test_answers_are_kept_for_a_client_that_is_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_client, "PATIENCE_PROBES", 1000)
    async with up() as (farm, worker, client):
        ask(client, (1, cube(model="once")))
        client.close()
        await until(lambda: not farm.put(client, Kind.PROBE))
        await answer(worker)
        await until(lambda: farm.dispatcher.snapshot()["done"] == 1)
        again = farm.peer(ME)
        ask(again, (1, cube(model="once")), again=True)
        assert value((await answers(again))[1]) == 8.0


# Questions


async def test_models_and_status_are_told() -> None:
    async with up() as (_, _, client):
        client.say(Kind.ASK, {"id": 5, "what": "models"})
        told = (await client.hear(Kind.TELL)).data
        models = json.loads(json.dumps([CUBE.to_json(), ONCE.to_json()]))
        assert told == {"id": 5, "models": models}
        client.say(Kind.ASK, {"id": 6, "what": "status"})
        told = (await client.hear(Kind.TELL)).data
        assert told["id"] == 6
        assert told["status"]["workers"][0]["name"] == "node1/1-a"


async def test_one_question_is_answered_in_a_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with up() as (farm, _, client):
        turn, asked_in = LoopTurns(), []
        turn.count()

        def snapshot() -> dict[str, int]:
            asked_in.append(turn.number)
            return {}

        monkeypatch.setattr(farm.dispatcher, "snapshot", snapshot)
        for number in range(100):
            client.say(Kind.ASK, {"id": number, "what": "status"})
        told = [(await client.hear(Kind.TELL)).data["id"] for _ in range(100)]
        monkeypatch.undo()
        turn.stop()
        assert told == list(range(100))
        assert len(set(asked_in)) == 100


async def test_a_question_is_answered_or_refused_by_name() -> None:
    async def slow(arguments: Mapping[str, str]) -> dict[str, str]:
        await asyncio.sleep(0)
        return dict(arguments)

    async with up() as (farm, _, client):
        farm.dispatcher.questions.offer("slow", slow)
        farm.dispatcher.questions.offer("broken", lambda arguments: 1 / 0)
        farm.dispatcher.questions.offer("odd", lambda arguments: object())
        for number, what in enumerate(("slow", "snow", "broken", "odd")):
            client.say(Kind.ASK, {"id": number, "what": what, "with": {"a": "b"}})
        told = {}
        for _ in range(4):
            data = (await client.hear(Kind.TELL)).data
            told[data.pop("id")] = data
        assert told[0] == {"slow": {"a": "b"}}
        assert told[1]["error"][:2] == [
            "UnsupportedFeature",
            "this farm has no question 'snow'; it has: broken, cancel, odd, slow",
        ]
        assert told[2]["error"][:2] == told[3]["error"][:2] == ["FarmError", INTERNAL_ERROR]


@pytest.mark.parametrize(
    ("kind", "data", "complaint"),
    [
        (Kind.ASK, {"id": 1, "what": 7}, "ASK expects an id, the name of a question"),
        (Kind.ASK, {"id": 1, "what": "log", "with": {"lines": 3}}, "ASK expects an id"),
        (Kind.ASK, None, "ASK expects an id"),
        (Kind.CANCEL, [[]], "malformed CANCEL"),
        (Kind.CANCEL, "all", "malformed CANCEL"),
        (Kind.CANCEL_WAITING, "all", "malformed CANCEL_WAITING"),
        (Kind.CALLS, [None, [[None]]], "malformed CALLS"),
        (Kind.CALLS_AGAIN, [["c", 0, "soon"], []], "malformed CALLS_AGAIN"),
        (Kind.JOIN, None, "a client does not send JOIN"),
    ],
)
async def test_nonsense_is_refused_with_a_reason(kind: Kind, data: Any, complaint: str) -> None:
    async with up() as (_, _, client):
        client.say(kind, data)
        assert complaint in (await client.hear(Kind.REFUSED)).data


# The end


async def test_answers_of_the_last_moment_still_leave() -> None:
    async with up() as (farm, worker, client):
        ask(client, (1, cube()))
        task_id = await worker.hear_call()
        closing = asyncio.create_task(farm.dispatcher.close(grace_s=20.0))
        await asyncio.sleep(0)
        worker.settle(task_id)
        assert value((await answers(client))[1]) == 8.0
        await worker.hear(Kind.STOP)
        worker.say(Kind.LEAVE, ["drained", 1])
        await closing


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
async def test_clients_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "PROBE_EVERY_S", 0.01)
    async with up() as (_, _, client):
        await client.hear(Kind.PROBE)


async def most_a_turn(count: Callable[[], int], end: int) -> int:
    """Return by how much a count changes at most in a turn of the loop, until it is `end`."""
    seen = [count()]
    while seen[-1] != end:
        await asyncio.sleep(0)
        seen.append(count())
    return max(abs(after - before) for before, after in itertools.pairwise(seen))


async def test_a_message_of_very_many_calls_is_taken_in_over_many_turns() -> None:
    async with up(max_queued=100_000) as (farm, _, client):
        count = 20 * STEPS_A_TURN
        tasks = farm.dispatcher.stages.tasks
        ask(client, *[(number, cube()) for number in range(count)])
        ask(client, (count, cube()))
        assert await most_a_turn(lambda: len(tasks.open), count + 1) <= 2 * STEPS_A_TURN
        client.say(Kind.CANCEL, list(range(count)))
        client.say(Kind.ASK, {"id": 1, "what": "status"})
        most = STEPS_A_TURN // module.CANCEL_STEPS * A_PIECE
        assert await most_a_turn(lambda: len(tasks.open), 1) <= 2 * most
        told = await client.hear(Kind.TELL)
        assert told.data["status"]["queues"][0]["queued"] <= 1


async def test_very_many_messages_of_one_call_are_taken_in_over_many_turns() -> None:
    async with up(max_queued=100_000) as (farm, _, _):
        (known,) = farm.transport._clients._clients.values()
        messages = [wire.encode_calls([(number, cube())]) for number in range(20 * STEPS_A_TURN)]

        def come() -> None:
            for frames in messages:
                farm.transport.received(known.line, frames)

        farm.dispatcher.turns.act_on(come)
        calls_open = farm.dispatcher.stages.calls_open
        assert calls_open() <= STEPS_A_TURN
        assert await most_a_turn(calls_open, len(messages)) <= 2 * STEPS_A_TURN


async def test_very_many_answers_leave_in_many_messages() -> None:
    async with up(max_queued=1) as (_, _, client):
        count = 4 * ANSWERS_A_MESSAGE
        ask(client, *[(number, cube(model="beam")) for number in range(count)])
        got: dict[int, Any] = {}
        while len(got) < count:
            some = await answers(client)
            assert len(some) <= ANSWERS_A_MESSAGE
            got |= some
        assert all(isinstance(outcome, ModelNotFound) for outcome in got.values())


@pytest.mark.parametrize("road", ["stream"], indirect=True)  # ZeroMQ may deliver the loss first
async def test_what_a_lost_worker_answered_before_counts_before_its_loss() -> None:
    async with up(max_queued=100_000) as (farm, _, client):
        once = await farm.worker("node2/2-b", BATCHES)
        supervisor = farm.peer("supervisor:node2/1")
        supervisor.send(wire.encode(Kind.LOST))
        ask(client, (0, cube(0.0, "batches")))
        first = await once.hear_call()
        count = 3 * STEPS_A_TURN
        ask(client, *[(number, cube(number, "batches")) for number in range(1, count)])
        await until(lambda: len(farm.dispatcher.stages.tasks.open) == count)
        once.answer((first, Result((np.zeros(1),), 0.001)))
        calls = await once.hear_calls()
        assert len(calls) == count - 1
        once.answer(*[(i, Result((call.inputs[0] ** 3,), 0.001)) for i, call in calls])
        loss = wire.Loss("node2/2-b", "signal SIGKILL", [calls[0][0]])
        supervisor.send(wire.encode_loss(loss))
        got: dict[int, Any] = {}
        while len(got) < count:
            got |= await answers(client)
        assert [value(got[number]) for number in range(count)] == [
            float(number) ** 3 for number in range(count)
        ]


@pytest.mark.parametrize(
    "what",
    [["x" * LONGEST_JSON], [1] * (MOST_VALUES + 2), [[]] * (MOST_LISTS + 1)],
    ids=["bytes", "values", "lists"],
)
async def test_a_message_that_takes_long_to_read_is_refused(what: list[Any]) -> None:
    async with up() as (_, worker, client):
        ask(client, (1, cube()))
        await answers(client, worker)
        client.say(Kind.CANCEL, what)
        refused = await client.hear(Kind.REFUSED)
        assert "send fewer calls a message" in refused.data
        ask(client, (2, cube()))
        assert value((await answers(client, worker))[2]) == 8.0
