"""Calls of native clients that run as the rows of one request, with scripted peers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.call import Buffer, Call, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.dispatcher.partition import QUICK_RUN_S
from farm.errors import Cancelled, FarmError, InvalidOutput, ModelFailed, WorkerLost
from farm.scheduler.state import TaskId, WorkerId
from farm.scheduler.view import View
from farm.transports.begun import Begun
from farm.transports.identity import CLIENT_PREFIX
from farm.transports.native_client import (
    ANSWERS_A_MESSAGE,
    LEAST_ROWS,
    ROWS_A_RUN,
    NativeClient,
    NativeRows,
    Open,
)
from farm.wire import messages as wire
from farm.wire.groups import CallGroup
from farm.wire.messages import Kind, Outcome
from tests.support.coroutines import until
from tests.support.scripted_peers import CUBE, ONCE, Farm, Peer, value

ME = CLIENT_PREFIX.decode() + "me"
BULK = Hints(chain="")
ROW_S = 1e-5
BATCHES = ModelInfo("batches", CUBE.inputs, CUBE.outputs, max_batch=8)
KEEPS = ModelInfo("keeps", CUBE.inputs, CUBE.outputs, keeps_point=True)

pytestmark = pytest.mark.usefixtures("both_roads")


def calls(first: int, end: int, model: str = "cube") -> list[tuple[int, Call]]:
    """Calls with their id as their point."""
    return [
        (i, Call(model, Operation.EVALUATE, (np.array([float(i)]),))) for i in range(first, end)
    ]


def ask(
    client: Peer, some: list[tuple[int, Call]], hints: Hints = BULK, kind: Kind = Kind.CALLS
) -> None:
    client.send(wire.encode_calls(some, hints, kind=kind))


def result_of(call: Call, done: int | None = None, *, row_s: float = ROW_S) -> Result:
    """The answer of a worker to a call: all rows or the first `done`."""
    count = call.rows or 1
    if call.rows is not None and done is not None:
        count = min(count, done)
    y = call.inputs[0] ** 3 if call.rows is None else call.inputs[0][:count] ** 3
    return Result((y,), count * row_s, row_times_s=() if call.rows is None else (row_s,) * count)


@asynccontextmanager
async def known(*models: ModelInfo, **limits: int) -> AsyncIterator[tuple[Farm, Peer, Peer]]:
    """A farm, its worker, and a client that has had an answer from each model."""
    async with Farm.up(**limits) as farm:
        worker = await farm.worker("node1/1-a", *(models or (CUBE,)))
        client = farm.peer(ME)
        for model in models or (CUBE,):
            ask(client, calls(0, 1, model.name))
            if model is (models or (CUBE,))[0]:
                await client.hear(Kind.WELCOME)
            ((task_id, call),) = await worker.hear_calls()
            worker.answer((task_id, result_of(call)))
            await client.hear_answers()
        yield farm, worker, client


async def hear_work(worker: Peer) -> list[tuple[int, Call]]:
    """Return the calls of the next message; none are recalled, as if they had begun."""
    while (message := await worker.hear(Kind.CALLS, Kind.RECALL)).kind is Kind.RECALL:
        worker.say(Kind.RECALLED, [])
    _, some = wire.decode_calls(message)
    return [(task_id, call) for task_id, call in some if isinstance(call, Call)]


async def processed(client: Peer) -> None:
    """Wait until the farm has processed what the client has sent."""
    client.say(Kind.PROBE)
    await client.hear(Kind.WELCOME)


async def heard(client: Peer, count: int) -> dict[int, Outcome]:
    """Return the client's next answers, at least so many."""
    answers: dict[int, Outcome] = {}
    while len(answers) < count:
        for call_id, outcome in await client.hear_answers():
            assert call_id not in answers, "answered twice"
            answers[call_id] = outcome
    return answers


async def served(worker: Peer, client: Peer, count: int) -> dict[int, Outcome]:
    """Let the worker answer everything until the client has `count` answers."""

    async def work() -> None:
        while True:
            worker.answer(*[(i, result_of(call)) for i, call in await hear_work(worker)])

    working = asyncio.create_task(work())
    try:
        return await heard(client, count)
    finally:
        working.cancel()


async def test_calls_of_a_map_run_in_runs_and_are_answered_one_by_one() -> None:
    async with known() as (farm, worker, client):
        ask(client, calls(1, 401))
        first = await worker.hear_calls()
        assert all((call.rows or 1) > 1 for _, call in first)
        worker.answer(*[(i, result_of(call)) for i, call in first])
        early = sum(call.rows or 1 for _, call in first)
        answers = await heard(client, early) | await served(worker, client, 400 - early)
        assert sorted(answers) == list(range(1, 401))
        for call_id, outcome in answers.items():
            assert value(outcome) == call_id**3
            assert isinstance(outcome, Result)
            assert outcome.worker == "node1/1-a"
            assert outcome.run_time_s == pytest.approx(ROW_S)
            assert outcome.outputs[0].shape == (1,)
        assert farm.dispatcher.statistics()["cube"].success.count == 401
        assert farm.dispatcher.snapshot()["done"] == 401
        assert farm.dispatcher.snapshot()["workers"][0]["done"] == 401
        assert farm.dispatcher.stages.calls_open() == 0


async def test_a_row_waits_for_those_before_it_in_its_run() -> None:
    async with known() as (_, worker, client):
        ask(client, calls(1, 1 + 4 * LEAST_ROWS))
        run = await worker.hear_calls()
        worker.answer(*[(i, result_of(call)) for i, call in run])
        outcomes = [o for _, o in sorted(await client.hear_answers()) if isinstance(o, Result)]
        rows = run[0][1].rows or 1
        waited = [outcome.queue_time_s for outcome in outcomes[:rows]]
        assert np.diff(waited) == pytest.approx([ROW_S] * (rows - 1))


@pytest.mark.parametrize("model", ["batches", "once", "keeps"])
async def test_calls_that_must_not_share_a_run_do_not(model: str) -> None:
    async with known(CUBE, BATCHES, ONCE, KEEPS) as (_, worker, client):
        ask(client, calls(1, 65, model))
        assert {call.rows for _, call in await worker.hear_calls()} == {None}


async def test_calls_that_are_callers_by_themselves_share_quick_runs_only() -> None:
    async with known() as (_, worker, client):
        ask(client, calls(1, 65), Hints())
        rows = [call.rows or 1 for _, call in await worker.hear_calls()]
        assert 1 < max(rows) <= QUICK_RUN_S / ROW_S


async def test_calls_that_someone_follows_run_alone() -> None:
    async with known() as (farm, worker, client):
        farm.dispatcher.on_answered.append(lambda task, outcome, now: None)
        ask(client, calls(1, 65))
        assert {call.rows for _, call in await worker.hear_calls()} == {None}


async def test_calls_of_unknown_or_long_run_time_run_alone() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker("node1/1-a", CUBE)
        client = farm.peer(ME)
        ask(client, calls(0, 64))
        some = await worker.hear_calls()
        assert {call.rows for _, call in some} == {None}
        worker.answer(*[(i, result_of(call, row_s=0.5)) for i, call in some])
        ask(client, calls(64, 128))
        assert {call.rows for _, call in await worker.hear_calls()} == {None}


async def test_calls_that_do_not_fit_the_model_have_their_own_errors() -> None:
    async with known() as (_, _, client):
        wrong = [
            (i, Call("cube", Operation.EVALUATE, (np.array([1.0, 2.0]),))) for i in range(1, 33)
        ]
        ask(client, wrong)
        outcomes = dict(await client.hear_answers())
        assert {str(outcome) for outcome in outcomes.values()} == {
            "input 0 ('x') has length 2, model 'cube' expects 1"
        }
        assert sorted(outcomes) == list(range(1, 33))


async def test_a_full_queue_refuses_what_it_has_no_room_for() -> None:
    async with known(max_queued=100) as (farm, _, client):
        for first in range(0, 1024, 128):
            ask(client, calls(1 + first, 129 + first))
        refused = await heard(client, 600)
        assert {type(outcome).__name__ for outcome in refused.values()} == {"Overloaded"}
        (row,) = farm.dispatcher.snapshot()["queues"]
        assert row["queued"] <= 100


async def test_a_row_that_fails_fails_alone() -> None:
    async with known() as (_, worker, client):
        ask(client, calls(1, 129))
        (task_id, call), *others = await worker.hear_calls()
        assert call.rows is not None
        assert call.rows > 4
        part = result_of(call, 3)
        failed = Result(part.outputs, part.run_time_s, failed=ModelFailed("diverged"))
        worker.answer((task_id, failed), *[(i, result_of(c)) for i, c in others])
        answers = await served(worker, client, 128)
        guilty = int(call.inputs[0][3, 0])
        assert [i for i, o in answers.items() if not isinstance(o, Result)] == [guilty]
        assert str(answers[guilty]) == "diverged"


async def test_only_the_row_that_kills_its_workers_fails() -> None:
    async with known(retries=1) as (farm, worker, client):
        ask(client, calls(1, 65))
        guilty = 0
        for life in range(2):
            run = await worker.hear_calls()
            if not guilty:
                (task_id, call), *_ = run
                guilty = int(call.inputs[0][2, 0])
                row = 2
            else:
                row = 0
                task_id = next(i for i, call in run if call.inputs[0].flat[0] == guilty)
            farm.dispatcher.worker_left(
                WorkerId("node1/1-a") if life == 0 else WorkerId("node1/2-b"),
                "signal 11",
                running=[TaskId(task_id)],
                row=row,
            )
            if life == 0:
                worker = await farm.worker("node1/2-b", CUBE)
        worker = await farm.worker("node1/3-c", CUBE)
        answers = await served(worker, client, 64)
        failed = {i: o for i, o in answers.items() if not isinstance(o, Result)}
        assert list(failed) == [guilty]
        assert isinstance(failed[guilty], WorkerLost)


async def test_cancelled_calls_get_no_answer_and_the_others_get_theirs() -> None:
    async with known() as (_, worker, client):
        ask(client, calls(1, 257))
        first = await worker.hear_calls()
        at_worker = sum(call.rows or 1 for _, call in first)
        cancelled = {2, 3, at_worker + 1, 100, 255, 256}
        client.say(Kind.CANCEL, sorted(cancelled))
        ask(client, calls(1000, 1001))
        await processed(client)
        worker.answer(*[(i, result_of(call)) for i, call in first])
        answers = await served(worker, client, 257 - len(cancelled))
        assert set(answers) == ({*range(1, 257), 1000} - cancelled)
        assert all(value(outcome) == i**3 for i, outcome in answers.items())


async def test_of_many_calls_those_that_wait_are_cancelled_and_each_is_answered() -> None:
    async with known() as (farm, worker, client):
        ask(client, calls(1, 801))
        first = await worker.hear_calls()
        client.say(Kind.CANCEL_WAITING, list(range(1, 801)))
        early = dict(await client.hear_answers())
        worker.answer(*[(i, result_of(call)) for i, call in first])
        late = await served(worker, client, 800 - len(early))
        assert not early.keys() & late.keys(), "answered twice"
        answers = early | late
        assert set(answers) == set(range(1, 801))
        ran = {i for i, outcome in answers.items() if isinstance(outcome, Result)}
        assert ran >= {int(x) for _, call in first for x in call.inputs[0].ravel()}
        assert len(ran) < 400, "most were not in a task yet"
        assert all(value(answers[i]) == i**3 for i in ran)
        assert {type(answers[i]) for i in answers.keys() - ran} == {Cancelled}
        await until(lambda: farm.dispatcher.stages.calls_open() == 0)
        (row,) = farm.dispatcher.snapshot()["queues"]
        assert row["queued"] == 0, "nor are rows to come"


@pytest.mark.parametrize("said", [(Kind.CANCEL, list(range(1, 2049))), (Kind.LEAVE,)])
async def test_a_client_that_cancels_all_or_leaves_leaves_nothing(said: tuple[Any, ...]) -> None:
    async with known() as (farm, worker, client):
        ask(client, calls(1, 2049))
        await worker.hear_calls()
        client.say(*said)
        await until(lambda: farm.dispatcher.stages.calls_open() == 0)
        await until(lambda: farm.dispatcher.view.queued() == 0)
        (row,) = farm.dispatcher.snapshot()["queues"]
        assert row["queued"] == 0, "nor are rows to come"


async def test_calls_sent_again_are_not_run_twice() -> None:
    async with known() as (_, worker, client):
        ask(client, calls(1, 65))
        some = await worker.hear_calls()
        ask(client, calls(1, 65), kind=Kind.CALLS_AGAIN)
        ask(client, calls(33, 97))
        await processed(client)
        worker.answer(*[(i, result_of(call)) for i, call in some])
        answers = await served(worker, client, 96)
        assert sorted(answers) == list(range(1, 97))


async def test_the_deadline_of_the_calls_counts_from_their_arrival() -> None:
    async with known() as (_, _, client):
        ask(client, calls(1, 65), Hints(chain="", deadline_s=0.05))
        answers = await heard(client, 64)
        assert {type(outcome).__name__ for outcome in answers.values()} == {"DeadlineExceeded"}


async def test_two_clients_share_a_worker() -> None:
    async with known() as (farm, worker, client):
        other = farm.peer(ME + "2")
        ask(client, calls(1, 1025))
        first = await worker.hear_calls()
        ask(other, calls(5000, 5128))
        await other.hear(Kind.WELCOME)
        worker.answer(*[(i, result_of(call)) for i, call in first])
        before = 0
        while not any(call.inputs[0].flat[0] >= 5000 for _, call in first):
            first = await worker.hear_calls()
            before += sum((call.rows or 1) for _, call in first)
            worker.answer(*[(i, result_of(call)) for i, call in first])
        assert before <= 512, "one has the next turn, not the last one"


async def test_wide_answers_and_those_without_an_axis_come_in_shape() -> None:
    wide = ModelInfo("wide", CUBE.inputs, (TensorInfo("y", (5000,)), TensorInfo("z", ())))
    async with Farm.up() as farm:
        worker = await farm.worker("node1/1-a", wide)
        client = farm.peer(ME)
        ask(client, calls(0, 1, "wide"))
        ((task_id, _),) = await worker.hear_calls()
        worker.answer((task_id, Result((np.ones(5000), np.array(2.0)), ROW_S)))
        await client.hear(Kind.WELCOME)
        await client.hear_answers()
        ask(client, calls(1, 65, "wide"))
        answers: dict[int, Outcome] = {}
        while len(answers) < 64:
            some = await worker.hear_calls()
            for i, call in some:
                x = call.inputs[0]
                assert call.rows is not None
                y = np.repeat(x, 5000, axis=1)
                worker.answer((i, Result((y, x[:, 0]), ROW_S * call.rows)))
            answers |= await heard(client, sum(call.rows or 1 for _, call in some))
        for i, outcome in answers.items():
            assert isinstance(outcome, Result)
            y, z = outcome.outputs
            assert (y.shape, z.shape) == ((5000,), ())
            assert (y[-1], z.item()) == (i, i)
            assert outcome.run_time_s == pytest.approx(ROW_S)


@pytest.mark.parametrize("seed", range(4))
async def test_each_call_has_one_answer_whatever_happens(seed: int) -> None:
    """Workers answer some rows, fail a row, die or recall; the client cancels here and there."""
    chance = random.Random(seed)
    async with known(retries=1000) as (farm, worker, client):
        total = 600
        ask(client, calls(1, 1 + total))
        answers: dict[int, Outcome] = {}
        cancelled: set[int] = set()
        lives = 0
        done = asyncio.Event()

        async def listen() -> None:
            while len(answers.keys() | cancelled) < total:
                for call_id, outcome in await client.hear_answers():
                    assert call_id not in answers, "answered twice"
                    answers[call_id] = outcome
            done.set()

        async def work() -> None:
            nonlocal worker, lives
            while True:
                for task_id, call in await hear_work(worker):
                    rows = call.rows or 1
                    what = chance.random()
                    if what < 0.1 and lives < 20:
                        lives += 1
                        name = worker.name
                        worker = await farm.worker(f"node1/{lives}-x", CUBE)
                        row = chance.randrange(rows) if chance.random() < 0.5 else None
                        farm.dispatcher.worker_left(
                            WorkerId(name), "died", running=[TaskId(task_id)], row=row
                        )
                        break
                    if what < 0.2:
                        count = chance.randrange(rows)
                        part = result_of(call, count)
                        error = ModelFailed("diverged")
                        outputs = part.outputs if count else ()
                        failed = Result(outputs, count * ROW_S, failed=error)
                        worker.answer((task_id, failed if rows > 1 else error))
                    elif what < 0.4:
                        worker.answer((task_id, result_of(call, 1 + chance.randrange(rows))))
                    else:
                        worker.answer((task_id, result_of(call)))
                    if chance.random() < 0.2:
                        some = {chance.randrange(1, 1 + total) for _ in range(10)} - answers.keys()
                        cancelled.update(some)
                        client.say(Kind.CANCEL, sorted(some))
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(listen()), asyncio.create_task(work())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
            if task.done():
                task.result()
        assert done.is_set()
        for call_id, outcome in answers.items():
            if isinstance(outcome, Result):
                assert value(outcome) == call_id**3
            else:
                assert isinstance(outcome, ModelFailed)


# Without a farm


def test_a_message_has_a_bounded_number_of_answers() -> None:
    messages: list[list[Buffer]] = []

    def send(frames: list[Buffer]) -> bool:
        messages.append(frames)
        return True

    line: Any = SimpleNamespace(name=b"me", send=send)
    collected: list[NativeClient] = []
    client = NativeClient(line, 1, Begun(), collected)
    for first in range(0, 2000, 100):
        client.run_done(list(range(first, first + 100)), Result((np.ones((100, 1)),)))
    client.call_done(2000, ModelFailed("no"))
    assert collected == [client], "once, until they are sent"
    sent: list[int] = []
    while client.send_some({"sent": 0}):
        answers = wire.decode_some_answers(wire.decode(messages.pop()))
        ids = [call_id for some in answers for call_id, _ in some]
        assert 0 < len(ids) <= ANSWERS_A_MESSAGE
        sent += ids
    assert not client.answers
    assert not client.groups
    assert sorted(sent) == list(range(2001))


class Client(NativeClient):
    """Keeps what rows report."""

    def __init__(self) -> None:
        self.calls: dict[int, Open] = {}
        self.runs: list[tuple[list[int], Result]] = []
        self.outcomes: dict[int, Result | FarmError] = {}

    def run_done(self, ids: list[int], result: Result) -> None:
        self.runs.append((ids, result))

    def call_done(self, call_id: int, outcome: Result | FarmError) -> None:
        self.outcomes[call_id] = outcome


class Lengths(View):
    """Runs that may have `most` rows."""

    def __init__(self, most: int) -> None:
        self._most = most

    def rows_in(self, call: Call, seconds: float, *, more: int = 0) -> int:
        return self._most


def rows_of(count: int, *, most: int = 1000) -> tuple[NativeRows, Client]:
    client = Client()
    x = np.arange(float(count)).reshape(count, 1)
    call = Call("cube", Operation.EVALUATE, (x,), rows=count)
    rows = NativeRows(CallGroup(list(range(10, 10 + count)), call), client, Lengths(most))
    client.calls = dict.fromkeys(range(10, 10 + count), rows)
    return rows, client


@pytest.mark.parametrize(
    ("count", "most", "asked", "expected"),
    [(500, 1000, 400, ROWS_A_RUN), (50, 1000, 400, 50), (50, 7, 400, 7), (50, 7, 3, 3)],
)
def test_a_part_has_no_more_rows_than_wanted(
    count: int, most: int, asked: int, expected: int
) -> None:
    rows, _ = rows_of(count, most=most)
    part = rows.part(0, asked)
    assert (part.rows, len(part.inputs[0])) == (expected, expected)
    assert rows.part(count - 1, asked).rows == 1


def test_a_part_ends_at_a_cancelled_row() -> None:
    rows, client = rows_of(50)
    del client.calls[15]
    rows.has_gaps = True
    assert rows.part(0, 50).rows == 5
    assert rows.part(6, 50).rows == 44
    with pytest.raises(Cancelled):
        rows.part(5, 50)
    assert not rows.is_wanted(5, 6)
    assert rows.is_wanted(4, 6)


def test_outputs_of_another_number_of_rows_are_refused() -> None:
    rows, client = rows_of(50)
    for outputs in ((np.ones((3, 1)), np.ones((2, 1))), (np.ones(()),)):
        with pytest.raises(InvalidOutput, match="answer to 3 rows has the shape"):
            rows.done(0, 3, Result(outputs))
    assert client.runs == []
    rows.done(0, 3, Result((np.ones((3, 1)),)))
    assert [ids for ids, _ in client.runs] == [[10, 11, 12]]
