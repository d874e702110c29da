"""The dispatcher's end of connections, tested with scripted peers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Hints, ModelInfo, Operation, Origin, Result, WorkerInfo
from farm.dispatcher.partition import QUICK_RUN_S
from farm.errors import InvalidInput, LossCause, TimeLimitExceeded, WorkerLost
from farm.scheduler.state import WorkerId
from farm.transports import peers as module
from farm.transports.agenda import STEPS_A_TURN
from farm.transports.stream import listener as stream_module
from farm.transports.zmq import listener as zmq_module
from farm.wire import messages as wire
from farm.wire.messages import Kind, Loss
from farm.wire.usage import Used
from tests.support.coroutines import until
from tests.support.scripted_peers import CUBE, ONCE, Farm, value

pytestmark = pytest.mark.usefixtures("both_roads")

W1, W2, SUPERVISOR = "node1/1-a", "node2/2-b", "supervisor:node1/1"


# Joining


async def test_worker_joins_answers_and_leaves() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        result = await farm.served_by(worker)
        assert (value(result), result.worker) == (8.0, W1)
        worker.say(Kind.LEAVE, ["drained", 1])
        await until(lambda: not farm.workers())
        assert farm.events("left", "lost") == ["drained"]


async def test_join_said_twice_is_one_join() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        waiting, task_id = await farm.sent_to(worker)
        worker.join()
        await worker.hear(Kind.WELCOME)
        worker.settle(task_id)
        await waiting
        assert farm.events("joined") == ["cube"]


async def test_join_of_another_life_makes_what_was_sent_void() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        waiting, first = await farm.sent_to(worker)
        worker.join(life="b")
        assert (await worker.hear(Kind.WELCOME)).data == "b"
        assert await worker.answer_next() == first
        await waiting


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
async def test_late_answer_is_used_once_and_its_worker_asked_to_join_again() -> None:
    async with Farm.up() as farm:
        given_up, supervisor = await farm.worker(W1), farm.peer(SUPERVISOR)
        waiting, task_id = await farm.sent_to(given_up)
        supervisor.tell(Loss(W1, "does not move", None))
        worker = await farm.worker(W2)
        assert await worker.hear_call() == task_id
        given_up.settle(task_id, 7.0)
        await given_up.hear(Kind.JOIN_AGAIN)
        assert value(await waiting) == 7.0
        worker.settle(task_id)
        second = farm.submit()
        assert await worker.answer_next(9.0) != task_id
        assert value(await second) == 9.0


async def test_who_leaves_need_not_join() -> None:
    async with Farm.up() as farm:
        stranger = farm.peer(W2)
        stranger.say(Kind.LEAVE)
        stranger.join()
        await stranger.hear(Kind.WELCOME)  # and no JOIN_AGAIN before


async def test_worker_on_a_host_called_client_is_a_worker() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker("client/12-a")
        assert (await farm.served_by(worker)).worker == "client/12-a"


# Malformed messages


def bad_messages() -> list[list[bytes]]:
    whole = bytes(wire.encode(Kind.PROBE)[0])
    bad = [
        [b""],
        [b"\1\1\0"],
        [os.urandom(100)],
        [bytes([wire.VERSION + 1]) + whole[1:]],
        [b"\1\xff" + bytes(2) + b"\4\0\0\0null"],
        [b""] * 1000,
        [bytes(10_000_000)],
    ]
    data: list[Any] = [None, 5, "x", [], {}, [[]], [None, None], [1, 2], [["x"]], {"a": 1}]
    data += [-1, 1.5, [-1], [2**64 - 1], [[[1, [], 0.1, -1]], []], [[], [[1, "E", "", ""]]]]
    data += [{"id": [], "what": "models"}, {"id": 1, "what": []}, [["c", 0, 0.0], [[[], 1]]]]
    bad += [[bytes(frame) for frame in wire.encode(kind, d)] for kind in Kind for d in data]
    return bad


@pytest.mark.parametrize("name", ["x", W2, "client:x", SUPERVISOR, "\x7f\xe9"])
async def test_whatever_a_peer_says_others_are_served(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        peer = farm.peer(name)
        for joined in (False, True):
            if joined:
                peer.send(wire.encode_join("a", WorkerInfo(name, ())))
            for frames in bad_messages():
                peer.send(list(frames))
            assert value(await farm.served_by(worker)) == 8.0
        # Replies come after all messages sent before.
        peer.say(Kind.JOIN, [["the last"], 0])
        peer.say(Kind.ASK, {"id": "the last", "what": "models"})
        while "the last" not in str((await peer.hear(*Kind)).data):
            pass
    assert "cannot be acted on" not in caplog.text  # each malformed message was expected


SLOTS: list[object] = [[0], [0, -1], [0, "x"], [1, 2, 3], "x", None, -1, 1.5]
GOODBYES: list[object] = [None, "drained", ["drained"], ["drained", 1.5], [3, 3]]
OF_ITSELF: list[Any] = [
    *({"slots": slots} for slots in (0, -2, 1.5, None)),
    {"ends_at": "soon"},
    {"labels": [1]},
    {"models": [{}]},
    {"models": 5},
    {"models": [{**CUBE.to_json(), "name": ["cube"]}]},
    {"models": [{**CUBE.to_json(), "max_batch": 0}]},
    {"models": [{**CUBE.to_json(), "inputs": [{"name": "x", "shape": [-2], "dtype": "f8"}]}]},
    {"models": [{**CUBE.to_json(), "inputs": [{"name": "x", "shape": [1], "dtype": "O"}]}]},
]


@pytest.mark.parametrize(
    ("kind", "said", "reason"),
    [
        *((Kind.RESIZE, said, "RESIZE expects a number of slots") for said in SLOTS),
        *((Kind.LEAVE, said, "expected a reason and a number") for said in GOODBYES),
        *((Kind.JOIN, change, "malformed JOIN") for change in OF_ITSELF),
        (Kind.PROBE, {"memory_bytes": "much"}, "memory_bytes"),
    ],
    ids=repr,
)
async def test_nonsense_of_a_worker_is_refused(kind: Kind, said: Any, reason: str) -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        if kind is Kind.JOIN:
            said = ["b", {**WorkerInfo(W1, (CUBE,)).to_json(), **said}]
        worker.say(kind, said)
        assert reason in (await worker.hear(Kind.REFUSED)).data
        assert farm.workers() == [W1]


async def test_call_that_cannot_be_sent_costs_no_other() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker(W1, slots=2)
        # The description for this config is unknown, so that nothing has checked the call yet.
        array = np.array([None])
        bad = farm.dispatcher.submit(Call("cube", Operation.EVALUATE, (array,), '{"n":1}'))
        bad_task, good = asyncio.create_task(bad), farm.submit()
        await worker.answer_next()
        assert value(await good) == 8.0
        with pytest.raises(InvalidInput, match="cannot be sent: arrays of object"):
            await bad_task


# Loss


async def test_call_of_a_worker_whose_connection_is_gone_runs_elsewhere() -> None:
    async with Farm.up() as farm:
        lost, other = await farm.worker(W1), await farm.worker(W2)
        tasks = [farm.submit(), farm.submit()]
        await lost.hear_call()
        lost.close()
        for _ in tasks:
            await other.answer_next()
        assert {(await task).worker for task in tasks} == {W2}
        assert farm.events() == ["its connection was lost"]


async def test_call_that_never_reached_a_lost_worker_counts_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zmq_module, "PROBE_EVERY_S", 1000.0)
    async with Farm.up(retries=0) as farm:
        lost, other = await farm.worker(W1), await farm.worker(W2)
        lost.close()
        await until(lambda: not farm.put(lost, Kind.PROBE))
        tasks = [farm.submit(i) for i in range(2)]
        for _ in tasks:
            await other.answer_next()
        assert {(await task).worker for task in tasks} == {W2}


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("first", "signal SIGKILL"),
        ("after the connection", "signal SIGKILL"),
        ("too late", "its connection was lost"),
    ],
)
async def test_word_of_the_supervisor(
    when: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "after the connection":
        monkeypatch.setattr(module, "SUPERVISOR_GRACE_S", 1000.0)
    async with Farm.up() as farm:
        worker, supervisor = await farm.worker(), farm.peer(SUPERVISOR)
        waiting, task_id = await farm.sent_to(worker)
        if when == "first":
            supervisor.tell(Loss(W1, reason, [task_id]))
            await until(lambda: not farm.workers())
            worker.close()
        else:
            worker.close()
            await until(lambda: farm.slots() == ([0] if when == "after the connection" else []))
            supervisor.tell(Loss(W1, "signal SIGKILL", [task_id]))
        await (await farm.worker(W2)).answer_next()
        await waiting
        assert farm.events() == [reason]


async def test_who_is_told_dead_and_still_runs_does_not_join_again() -> None:
    async with Farm.up() as farm:
        worker, supervisor = await farm.worker(), farm.peer(SUPERVISOR)
        supervisor.tell(Loss(W1, "restarted", []))
        await until(lambda: not farm.workers())
        worker.close()
        again = farm.peer(W1)
        again.join(life="b")
        waiting = farm.submit()
        await (await farm.worker(W2)).answer_next()
        assert (await waiting).worker == W2
        again.close()
        assert (farm.workers(), farm.events()) == ([W2], ["restarted"])


@pytest.mark.parametrize("guilty", [True, False])
async def test_only_what_ran_counts_as_tried(guilty: bool) -> None:
    async with Farm.up(retries=0) as farm:
        worker, supervisor = await farm.worker(), farm.peer(SUPERVISOR)
        waiting, task_id = await farm.sent_to(worker)
        supervisor.tell(Loss(W1, "died", [task_id] if guilty else []))
        other = await farm.worker(W2)
        if guilty:
            with pytest.raises(WorkerLost, match="died"):
                await waiting
        else:
            await other.answer_next()
            await waiting


async def test_call_that_was_killed_for_its_time_is_not_tried_again() -> None:
    async with Farm.up() as farm:
        worker, supervisor = await farm.worker(), farm.peer(SUPERVISOR)
        waiting, task_id = await farm.sent_to(worker)
        supervisor.tell(Loss(W1, "time limit of 2 s", [task_id], LossCause.TIME_LIMIT))
        with pytest.raises(TimeLimitExceeded, match="time limit of 2 s"):
            await waiting


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
async def test_worker_that_is_back_before_it_is_given_up_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SUPERVISOR_GRACE_S", 1000.0)
    async with Farm.up() as farm:
        worker = await farm.worker()
        first, task_id = await farm.sent_to(worker)
        worker.close()
        await until(lambda: farm.slots() == [0])
        again = farm.peer(W1, identity=worker.identity)
        await until(lambda: farm.slots() == [1])
        again.settle(task_id)
        await first
        await farm.served_by(again)
        assert farm.events("joined", "lost") == ["cube"]


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
@pytest.mark.parametrize("repeatable", [True, False])
async def test_call_that_was_lost_with_a_connection_that_came_back(
    repeatable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUPERVISOR_GRACE_S", 1000.0)
    async with Farm.up() as farm:
        model = CUBE if repeatable else ONCE
        worker = await farm.worker(W1, model)
        waiting, task_id = await farm.sent_to(worker, model=model.name)
        worker.close()
        again = farm.peer(W1, identity=worker.identity)
        number, *named = (await again.hear(Kind.CHECK)).data
        assert named == [task_id]
        again.say(Kind.MISSING, [number, task_id])
        if repeatable:
            assert await again.answer_next() == task_id
            await waiting
        else:
            with pytest.raises(WorkerLost, match="not repeatable"):
                await waiting


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
@pytest.mark.parametrize("model", [CUBE, ONCE])
async def test_call_that_was_recalled_and_sent_again_is_not_missing(model: ModelInfo) -> None:
    """The CHECK arrives while the worker does not hold the call, the answer after it does again."""
    async with Farm.up() as farm:
        worker = await farm.worker(W1, model)
        waiting, task_id = await farm.sent_to(worker, model=model.name)
        check = await worker.hear(Kind.CHECK)
        worker.say(Kind.RECALLED, [task_id])
        assert await worker.hear_call() == task_id
        worker.say(Kind.MISSING, check.data)
        worker.say(Kind.RESIZE, 2)
        await until(lambda: farm.slots() == [2])
        worker.settle(task_id)
        await waiting
        second = farm.submit(model=model.name)
        assert await worker.answer_next() == task_id + 1, "the first was not sent a third time"
        await second
        assert farm.events("missing") == []


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
async def test_answer_on_its_way_is_not_missing() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        waiting, task_id = await farm.sent_to(worker)
        check = await worker.hear(Kind.CHECK)
        worker.settle(task_id)
        worker.say(Kind.MISSING, [*check.data, 5])
        await waiting
        second = farm.submit()
        assert await worker.answer_next() == task_id + 1
        await second


async def test_draining_worker_may_go_on_with_its_sequences() -> None:
    """It offers slots to nothing else, and none while it cannot be reached."""
    async with Farm.up() as farm:
        worker = await farm.worker(W1)
        worker.say(Kind.RESIZE, [0, 2])

        def slots() -> list[tuple[int, int]]:
            workers = farm.dispatcher._scheduler._workers.values()
            return [(each.slots, each.last_slots) for each in workers]

        await until(lambda: slots() == [(0, 2)])
        worker.say(Kind.RESIZE, 1)
        await until(lambda: slots() == [(1, 0)])


async def test_draining_worker_gets_nothing_more_and_keeps_what_it_runs() -> None:
    async with Farm.up() as farm:
        draining = await farm.worker(W1)
        first, task_id = await farm.sent_to(draining)
        draining.say(Kind.RESIZE, 0)
        await until(lambda: farm.slots() == [0])
        second = farm.submit()
        question = asyncio.create_task(farm.dispatcher.describe("cube", '{"n":1}'))
        await asyncio.sleep(0)
        draining.settle(task_id)
        await first
        draining.say(Kind.LEAVE, ["drained", 1])
        await until(lambda: not farm.workers())
        other = await farm.worker(W2, slots=2)
        calls = await other.hear_calls()
        while len(calls) < 2:
            calls += await other.hear_calls()
        operations = {call.operation: task_id for task_id, call in calls}
        other.answer(
            (operations[Operation.EVALUATE], Result((np.array([8.0]),))),
            (operations[Operation.DESCRIBE], Result((), info=CUBE)),
        )
        await second
        assert await question == CUBE


async def test_call_that_crossed_the_goodbye_of_a_worker_runs_elsewhere() -> None:
    """The worker has returned one call, and all its messages have arrived."""
    async with Farm.up() as farm:
        leaving = await farm.worker(W1, ONCE)
        waiting, task_id = await farm.sent_to(leaving, model="once")
        leaving.say(Kind.RECALLED, [task_id])
        assert await leaving.hear_call() == task_id
        leaving.say(Kind.LEAVE, ["drained", 1])
        other = await farm.worker(W2, ONCE)
        assert await other.answer_next() == task_id
        await waiting


@pytest.mark.parametrize("road", ["zmq"], indirect=True)
async def test_call_whose_answer_was_lost_before_a_goodbye_does_not_run_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection lost the answer; only the goodbye arrives, on the next connection."""
    monkeypatch.setattr(module, "SUPERVISOR_GRACE_S", 1000.0)
    async with Farm.up() as farm:
        worker = await farm.worker(W1, ONCE)
        waiting = farm.submit(model="once")
        await worker.hear_call()
        worker.close()
        again = farm.peer(W1, identity=worker.identity)
        await again.hear(Kind.CHECK)
        again.say(Kind.LEAVE, ["drained", 1])
        await farm.worker(W2, ONCE)
        with pytest.raises(WorkerLost, match="may have run this call"):
            await waiting


@pytest.mark.parametrize("reported", [False, True])
async def test_what_ran_when_the_machine_of_a_draining_worker_went_counts_no_attempt(
    reported: bool,
) -> None:
    """SLURM cancels or preempts a job, and kills processes that have not finished in time."""
    async with Farm.up(retries=0) as farm:
        draining = await farm.worker(W1)
        waiting, task_id = await farm.sent_to(draining)
        draining.say(Kind.RESIZE, 0)
        await until(lambda: farm.slots() == [0])
        if reported:
            farm.peer(SUPERVISOR).tell(Loss(W1, "stopped by its supervisor", [task_id]))
        else:
            draining.close()
        await until(lambda: not farm.workers())
        assert await (await farm.worker(W2)).answer_next() == task_id
        await waiting


async def test_at_the_end_of_its_time_what_a_draining_worker_ran_counts_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that is too long for any job must not be retried for ever."""
    monkeypatch.setattr(module, "ENDS_ABOUT_S", 1000.0)
    async with Farm.up(retries=0) as farm:
        draining = farm.peer(W1)
        info = WorkerInfo(W1, (CUBE,), ends_at=time.time() + 100)
        draining.send(wire.encode_join("a", info))
        await draining.hear(Kind.WELCOME)
        waiting = farm.submit()
        await draining.hear_call()
        draining.say(Kind.RESIZE, 0)
        draining.close()
        with pytest.raises(WorkerLost):
            await waiting


async def test_tasks_are_taken_back_from_a_worker() -> None:
    async with Farm.up() as farm:
        busy = await farm.worker(W1)
        for _ in range(20):  # so short that more are prefetched, but not as rows of one task
            waiting, task_id = await farm.sent_to(busy)
            busy.settle(task_id, run_time_s=QUICK_RUN_S)
            await waiting
        tasks = [farm.submit() for _ in range(10)]
        held = [task_id for task_id, _ in await busy.hear_calls()]
        assert len(held) > 1
        idle = await farm.worker(W2)
        back = wire.decode_ids(await busy.hear(Kind.RECALL))
        assert set(back) < set(held)
        busy.say(Kind.RECALLED, back)
        moved = [task_id for task_id, _ in await idle.hear_calls()]
        assert set(moved) <= set(back) | (set(range(held[0], held[0] + 10)) - set(held))
        for task in tasks:
            task.cancel()


async def test_a_worker_or_supervisor_is_asked_by_name_and_forgotten_when_gone() -> None:
    async with Farm.up() as farm:
        supervisor, other = farm.peer(SUPERVISOR), farm.peer("supervisor:node2/2")
        for peer in (supervisor, other):
            peer.say(Kind.LOST)
        await until(lambda: len(farm.transport._supervisors) == 2)
        one, two = await farm.worker(W1), await farm.worker("node2/2")
        assert farm.transport.restart(W1, "node1/1")
        assert (await supervisor.hear(Kind.RESTART)).data == [W1]
        assert not farm.transport.restart(W1, "node3/3")
        two.say(Kind.RESIZE, 0)
        await until(lambda: 0 in farm.slots())
        assert farm.transport.drain("node2/2")
        assert not farm.transport.drain("node3/3")  # it is gone
        await two.hear(Kind.STOP)
        call = farm.submit()
        await one.hear(Kind.CALLS)  # and nothing before
        call.cancel()
        assert other.line.receive() in (None, [wire.encode(Kind.PROBE)[0]])
        other.close()
        await until(lambda: len(farm.transport._supervisors) == 1)
        farm.transport.stop_workers()
        await supervisor.hear(Kind.STOP)
        await one.hear(Kind.STOP)


async def test_ids_of_calls_go_to_workers() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        call = Call("cube", Operation.EVALUATE, (np.array([2.0]),))
        waiting = asyncio.ensure_future(farm.dispatcher.submit(call, Hints("anna", call_id="a-1")))
        ((task_id, heard),) = await worker.hear_calls()
        assert isinstance(heard, Call)
        assert heard.origin == Origin("a-1", "anna")
        worker.settle(task_id)
        await waiting


# Reports of use


async def test_what_a_worker_uses_is_passed_on() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        heard: list[tuple[str, Used]] = []
        farm.dispatcher.on_used.append(lambda *used: heard.append(used))
        worker.say(Kind.PROBE)  # as a worker does that hears nothing
        worker.say(Kind.PROBE, {"memory_bytes": 7, "processor": 0.5})
        await until(lambda: heard)
        assert heard == [(W1, Used(7, 0.5))]


async def test_short_messages_that_had_to_wait_count_as_work_like_others() -> None:
    async with Farm.up() as farm:
        await farm.worker()
        steps: list[int] = []
        agenda, line = farm.transport._agenda, farm.transport._workers[WorkerId(W1)].line
        frames = wire.encode_answers([(10**9, Result((np.array([8.0]),)))])  # of no open call

        def receive() -> None:
            for _ in range(3 * STEPS_A_TURN):
                farm.transport.received(line, frames)

        farm.dispatcher.turns.act_on(receive)
        while line.name in farm.transport.behind:
            steps.append(len(agenda.waiting[line.name]))
            await asyncio.sleep(0)
        done = [before - after for before, after in zip(steps, [*steps[1:], 0], strict=True)]
        assert 0 < max(done) <= STEPS_A_TURN, done


async def test_one_talkative_peer_does_not_hold_up_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for listener in (stream_module, zmq_module):
        monkeypatch.setattr(listener, "MESSAGES_PER_TURN", 3)
    async with Farm.up() as farm:
        worker, client = await farm.worker(), farm.peer("client:x")
        reads: list[int] = []
        act_on, received = farm.dispatcher.turns.act_on, farm.transport.received

        def reading(read: Callable[[], None]) -> None:
            reads.append(0)
            act_on(read)

        def counted(line: Any, frames: Any) -> None:
            reads[-1] += line.name == b"client:x"
            received(line, frames)

        monkeypatch.setattr(farm.dispatcher.turns, "act_on", reading)
        monkeypatch.setattr(farm.transport, "received", counted)
        for _ in range(100):
            client.say(Kind.PROBE)
        for _ in range(101):
            await client.hear(Kind.WELCOME)
        assert max(reads) == 3
        await farm.served_by(worker)
