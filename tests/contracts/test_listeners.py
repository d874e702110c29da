"""The contract of listeners: what the local stream and ZeroMQ both promise, with real processes."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from farm.errors import WorkerLost
from tests.support.coroutines import LIMIT_S, until
from tests.support.scripted_peers import Farm, value

W1, W2 = "node1/1-a", "node2/2-b"

pytestmark = pytest.mark.parametrize(
    "listener", ["stream", pytest.param("zmq", marks=pytest.mark.slow)]
)


@pytest.fixture(autouse=True)
def folder(listener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Farm, "folder", tmp_path if listener == "stream" else None)


def up(*, heartbeat_s: float = 3 * LIMIT_S, **options: Any) -> AbstractAsyncContextManager[Farm]:
    """Run a farm. heartbeat_s: of ZeroMQ; the local stream needs none."""
    return Farm.up(**options) if Farm.folder else Farm.up(heartbeat_s=heartbeat_s, **options)


async def in_flight(farm: Farm) -> None:
    await until(lambda: farm.dispatcher.snapshot()["workers"][0]["in_flight"])


async def test_a_killed_process_is_found_long_before_its_heartbeat_is_missed(listener: str) -> None:
    async with up() as farm:
        process = await farm.process()
        waiting = farm.submit(1000.0, "sleep")
        await in_flight(farm)
        process.kill()
        process.wait()
        await until(lambda: not farm.workers(), LIMIT_S)
        waiting.cancel()


async def test_an_idle_killed_process_costs_the_next_calls_no_attempt(listener: str) -> None:
    async with up(retries=0) as farm:
        process = await farm.process(W1)
        await farm.process(W2)
        process.kill()
        process.wait()
        for i in range(10):
            assert value(await farm.submit(i)) == i**3


async def test_crash_is_survived(listener: str) -> None:
    async with up(retries=1) as farm:
        for name in (W1, W2):
            await farm.process(name)
        with pytest.raises(WorkerLost, match="lost 2 times"):
            await farm.submit(1.0, "crash")
        await farm.process("node3/3-c")
        assert value(await farm.submit(3.0)) == 27.0


async def test_a_frozen_process_that_was_given_up_joins_again(listener: str) -> None:
    async with up(heartbeat_s=0.5) as farm:
        process = await farm.process(W1)
        task = farm.submit(0.2, "sleep")
        await in_flight(farm)
        process.send_signal(signal.SIGSTOP)
        if listener == "stream":  # ZeroMQ misses its heartbeat
            farm.give_up(W1)
        await until(lambda: not farm.workers())
        await farm.process(W2)
        assert (await task).worker == W2
        process.send_signal(signal.SIGCONT)
        await until(lambda: sorted(farm.workers()) == [W1, W2])
        answers = await asyncio.gather(*[farm.submit(i) for i in range(100)])
        assert [value(a) for a in answers] == [i**3 for i in range(100)]


async def test_a_late_answer_of_a_frozen_process_is_used(listener: str) -> None:
    async with up(heartbeat_s=0.5, retries=0) as farm:
        process = await farm.process(W1)
        patient = farm.submit(0.2, "sleep")
        await in_flight(farm)
        process.send_signal(signal.SIGSTOP)
        farm.give_up(W1)
        assert not farm.workers()
        process.send_signal(signal.SIGCONT)
        assert value(await patient) == 0.2
        await until(lambda: farm.workers() == [W1])
        assert farm.dispatcher.snapshot()["done"] == 1


async def test_a_process_that_holds_the_interpreter_is_not_taken_for_dead(listener: str) -> None:
    async with up(heartbeat_s=0.4) as farm:
        await farm.process()
        assert value(await farm.submit(2.0, "hold")) == 2.0
        assert farm.events() == []
