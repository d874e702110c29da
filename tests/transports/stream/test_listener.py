"""The listener for local peers: whom it accepts, and that no peer delays the others."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.call import Buffer, Call, Operation, Result
from farm.errors import WorkerLost
from farm.machine.resources import allow_many_open_files
from farm.transports.stream import listener as module
from farm.transports.stream.listener import UnixListener
from farm.wire import messages as wire
from farm.wire.messages import Kind, Loss
from tests.support.coroutines import LoopTurns, on_loop, on_uvloop, until
from tests.support.scripted_peers import ONCE, Farm, value

W1, W2, SUPERVISOR = "node1/1-a", "node2/2-b", "supervisor:node1/1"
CALL = Call("cube", Operation.EVALUATE, (np.ones(1),))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Farm, "folder", tmp_path)


def unix(farm: Farm) -> UnixListener:
    assert isinstance(farm.listener, UnixListener)
    return farm.listener


def result(y: float = 8.0) -> Result:
    return Result((np.array([y]),), 0.001)


async def test_the_file_is_private_and_gone_at_the_end() -> None:
    async with Farm.up() as farm:
        path = unix(farm).place.path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await farm.worker()
    assert not path.exists()


async def test_another_user_is_not_let_in(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Farm.up() as farm:
        monkeypatch.setattr(module, "peer_uid", lambda accepted: os.getuid() + 1)
        stranger = farm.peer(W1)
        stranger.join()
        await until(lambda: stranger.line.receive() is None and stranger.line.ended())
        assert farm.workers() == []
        assert f"refused user {os.getuid() + 1} at" in caplog.text


async def test_an_answer_on_its_way_is_not_overtaken_by_the_loss() -> None:
    """The supervisor sees the death first, on its own line."""
    async with Farm.up(retries=0) as farm:
        worker, supervisor = await farm.worker(W1, ONCE), farm.peer(SUPERVISOR)
        waiting, task_id = await farm.sent_to(worker, model="once")
        # Both have arrived before the loop reads, and the supervisor's message is processed first.
        lines = unix(farm)._lines
        await until(lambda: farm.put(worker, Kind.PROBE) and farm.put(supervisor, Kind.PROBE))
        first, second = sorted(lines, key=lambda p: p.name != SUPERVISOR.encode())
        supervisor.tell(Loss(W1, "signal SIGKILL", [task_id]))
        worker.settle(task_id)
        worker.close()
        farm.dispatcher.turns.act_on(partial(unix(farm)._read_some, (first, second)))
        assert value(await waiting) == 8.0
        assert farm.workers() == []
        assert farm.events() == ["signal SIGKILL"]


async def test_the_supervisors_word_ends_a_line_that_a_child_of_the_model_holds_open() -> None:
    async with Farm.up(retries=0) as farm:
        worker, supervisor = await farm.worker(W1), farm.peer(SUPERVISOR)
        held = os.dup(worker.line.fileno())  # as a forked child has it
        waiting, task_id = await farm.sent_to(worker)
        worker.close()
        supervisor.tell(Loss(W1, "signal SIGKILL", [task_id]))
        with pytest.raises(WorkerLost, match="SIGKILL"):
            await waiting
        assert not farm.put(worker, Kind.PROBE)
        os.close(held)


@on_uvloop
async def test_many_peers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEERS_PER_TURN", 3)
    async with Farm.up() as farm:
        worker = await farm.worker()
        clients = [farm.peer(f"client:{number}") for number in range(40)]
        turn, reads = LoopTurns(), Counter[int]()
        turn.count()
        read = unix(farm)._read_some

        def counted(peers: Any) -> None:
            reads[turn.number] += len(peers)
            assert len(peers) <= 3
            read(peers)

        unix(farm)._read_some = counted  # type: ignore[method-assign]  # counts
        for client in clients:
            client.say(Kind.PROBE)
        for client in clients:
            await client.hear(Kind.WELCOME)
        turn.stop()
        assert max(reads.values()) <= 6  # some at once, and the next three of those that wait
        await farm.served_by(worker)


@on_uvloop
async def test_no_more_than_a_bounded_part_of_a_large_message_is_read_in_a_turn() -> None:
    async with Farm.up() as farm:
        worker, client = await farm.worker(), farm.peer("client:x")
        await until(lambda: farm.put(client, Kind.PROBE))
        (peer,) = [p for p in unix(farm)._lines if p.name == b"client:x"]
        reads: list[int] = []
        receive = peer.receive

        def counted(most: int | None = None) -> list[Buffer] | None:
            reads.extend([] if most is None else [most])
            return receive(most)

        peer.receive = counted  # type: ignore[method-assign]  # counts
        array = np.ones(4_000_000)
        call = Call("cube", Operation.EVALUATE, (array,), '{"n":4000000}')
        client.send(wire.encode_calls([(1, call)]))
        ((task_id, got),) = await worker.hear_calls()
        assert np.array_equal(got.inputs[0], array)
        assert len(reads) >= array.nbytes / module.BYTES_PER_TURN
        assert set(reads) == {module.BYTES_PER_TURN}
        worker.settle(task_id)
        await client.hear(Kind.WELCOME)
        await client.hear_answers()


async def test_a_worker_that_does_not_read_gets_nothing_more_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FULL_BYTES", 1_000_000)
    async with Farm.up() as farm:
        full = await farm.worker(W1, slots=4)
        array = np.ones(1_000_000)
        call = Call("cube", Operation.EVALUATE, (array,), '{"n":1000000}')
        large = asyncio.create_task(farm.dispatcher.submit(call))
        await until(lambda: any(peer.full for peer in unix(farm)._lines))
        other = await farm.worker(W2)
        for _ in range(3):
            assert (await farm.served_by(other)).worker == W2
        await full.answer_next()  # it reads at last
        await large
        held = [farm.submit() for _ in range(5)]  # as many as both have slots
        given: list[int] = []
        while len(given) < 4:
            given += [task_id for task_id, _ in await full.hear_calls()]
        full.answer(*[(task_id, result()) for task_id in given])
        await other.answer_next()
        assert sorted([(await call).worker for call in held]) == [W1] * 4 + [W2]


async def test_a_client_that_reads_no_answers_is_not_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FULL_BYTES", 1_000_000)
    async with Farm.up() as farm:
        worker, client = await farm.worker(), farm.peer("client:x")
        client.send(wire.encode_calls([(1, CALL)]))
        large = Result((np.ones(1_000_000),), 0.001)
        worker.answer((await worker.hear_call(), large))
        (peer,) = [p for p in unix(farm)._lines if p.name == b"client:x"]
        await until(lambda: peer.full)
        client.send(wire.encode_calls([(2, CALL)]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert farm.dispatcher.stages.calls_open() == 0
        await client.hear(Kind.WELCOME)
        await client.hear_answers()
        await worker.answer_next()
        ((call_id, _),) = await client.hear_answers()
        assert call_id == 2


async def test_no_turns_are_spent_while_files_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCEPT_AGAIN_S", 0.05)
    async with Farm.up() as farm:
        tries = 0

        class Full:
            def fileno(self) -> int:
                return real.fileno()

            def close(self) -> None:
                real.close()

            def accept(self) -> Any:
                nonlocal tries
                tries += 1
                if tries < 3:
                    raise OSError(24, "Too many open files")
                return real.accept()

        real = unix(farm).place.socket
        unix(farm).place.socket = Full()  # type: ignore[assignment]  # as if files had run out
        await farm.worker()
        assert tries < 10
        unix(farm).place.socket = real


def knocks(farm: Farm, count: int, *words: bytes) -> list[socket.socket]:
    """Open `count` connections to the farm's socket, each of which has sent these words."""
    dialed = []
    for _ in range(count):
        dialed.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        dialed[-1].connect(str(unix(farm).place.path))
        dialed[-1].sendall(b"".join(struct.pack("<Q", len(word)) + word for word in words))
    return dialed


@pytest.mark.parametrize("words", [(), (b"client:x",), (b"client:x", b"PROBE?")])
async def test_peers_that_come_and_go_do_not_pile_up(
    words: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Farm.up() as farm:
        listener, most, greeted = unix(farm), 0, 0
        greet = UnixListener._greet

        def counted(self: UnixListener, accepted: socket.socket) -> None:
            nonlocal most, greeted
            greet(self, accepted)
            most, greeted = max(most, len(self._lines)), greeted + 1

        monkeypatch.setattr(UnixListener, "_greet", counted)
        monkeypatch.setattr(module, "FEW_CALLS", -1)  # as while many calls are open
        turns, look = itertools.count(), UnixListener._look

        def seldom(self: UnixListener) -> None:  # as while other work takes the loop's time
            if next(turns) % 8 == 7:
                look(self)
            else:
                self._loop.call_soon(self._look)

        monkeypatch.setattr(UnixListener, "_look", seldom)
        for dialed in knocks(farm, 500, *words):
            dialed.close()
        await until(lambda: greeted == 500 and not listener._lines)
        assert most <= 3 * module.PEERS_PER_TURN
        worker = await farm.worker()
        assert (await farm.served_by(worker)).worker == W1


async def test_peers_that_do_not_say_who_they_are_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_NAMELESS", 10)
    async with Farm.up() as farm:
        worker = await farm.worker()
        silent = knocks(farm, 50)
        await until(lambda: len(unix(farm)._lines) == 11)
        await farm.served_by(worker)
        assert silent[0].recv(1) == b"", "the oldest was dropped"
        for dialed in silent:
            dialed.close()


async def test_peers_leave_files_to_other_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARE_OF_FILES", allow_many_open_files() // 10)
    async with Farm.up() as farm:
        await farm.worker()
        here = knocks(farm, 60, b"client:x")
        await until(lambda: len(unix(farm)._lines) >= 10)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(unix(farm)._lines) <= 11
        assert farm.workers() == [W1]
        for dialed in here:
            dialed.close()
        await until(lambda: len(unix(farm)._lines) == 1)
        await farm.worker(W2)


async def ask_from_many() -> None:
    async with Farm.up() as farm:
        worker = await farm.worker()
        clients = [farm.peer(f"client:{i}") for i in range(4 * module.PEERS_PER_TURN)]
        for client in clients:
            client.send(wire.encode_calls([(1, CALL)]))
        answered = 0
        while answered < len(clients):
            calls = await worker.hear_calls()
            worker.answer(*[(task_id, result()) for task_id, _ in calls])
            answered += len(calls)
        for client in clients:
            await client.hear(Kind.WELCOME)
            assert len(await client.hear_answers()) == 1


@pytest.mark.parametrize("on", [on_loop, on_uvloop])
def test_many_peers_that_speak_at_once_are_read_in_turn(on: Callable[[Any], Any]) -> None:
    on(ask_from_many)()


async def test_nothing_is_sent_to_a_worker_that_only_runs() -> None:
    """Probes would fill the socket of a model that holds the interpreter for minutes."""
    async with Farm.up() as farm:
        worker = await farm.worker()
        waiting, task_id = await farm.sent_to(worker)
        await asyncio.sleep(0.5)
        assert worker.line.receive() is None
        worker.settle(task_id)
        await waiting
