"""The farm around a loop and a remote farm give the same answers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, Call, ModelInfo, Operation, Result
from farm.errors import InvalidInput, ModelNotFound, Unavailable
from farm.experiment.loop.evaluators import PointEvaluator, RemoteEvaluator
from tests.experiment.subjects import Bowl, dispatching
from tests.support.coroutines import LIMIT_S, until

CALL = Call("bowl", Operation.EVALUATE, (np.array([0.3]), np.array([0.2])))
RESULT = Result((np.array([-0.25]),))


async def check(evaluator: PointEvaluator, places: int) -> None:
    """Check the answers of an evaluator with the bowl alone."""
    assert await evaluator.places("bowl") == places
    assert [t.name for t in (await evaluator.describe("bowl", "{}")).inputs] == ["x", "y"]
    assert (await evaluator.submit(CALL, NO_HINTS)).outputs[0] == pytest.approx(-0.25)
    with pytest.raises(ModelNotFound):
        await evaluator.describe("ball", "{}")


async def test_the_farm_around() -> None:
    async with dispatching(Bowl(), 3) as around:
        await check(around, 3)
        assert await around.places("ball") == 1


async def test_a_farm_elsewhere() -> None:
    with farm.serve(Bowl(), workers=2) as client:
        await check(RemoteEvaluator(client), 2)


async def test_a_farm_that_was_started_anew_is_found_again() -> None:
    with farm.serve(Bowl(), workers=1) as first:
        remote = RemoteEvaluator(first, lambda: second)
        assert (await remote.submit(CALL, NO_HINTS)).outputs[0] == pytest.approx(-0.25)
    with farm.serve(Bowl(), workers=1) as second:
        with pytest.raises(Unavailable):
            await remote.submit(CALL, NO_HINTS)
        assert (await remote.submit(CALL, NO_HINTS)).outputs[0] == pytest.approx(-0.25)


def test_a_farm_that_does_not_answer_keeps_nobody() -> None:
    """The first worker of such a farm may wait in a queue: callers can leave."""
    asked, ended = threading.Event(), threading.Event()

    class Silent:
        line: Any

        def describe(self, model: str, config: str) -> ModelInfo:
            asked.set()
            ended.wait()
            raise Unavailable("away")

    async def leave() -> None:
        silent = Silent()
        silent.line = silent
        remote = RemoteEvaluator(silent)  # type: ignore[arg-type]  # only the used part of a client
        task = asyncio.create_task(remote.describe("bowl", "{}"))
        await until(asked.is_set)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    left = threading.Thread(target=asyncio.run, args=(leave(),), daemon=True)
    left.start()
    left.join(LIMIT_S)
    ended.set()
    assert not left.is_alive()


class Calls:
    """A client whose calls end as the test specifies."""

    def __init__(self) -> None:
        self.futures: list[Future[Result]] = []

    def submit(self, call: Call, hints: object) -> Future[Result]:
        self.futures.append(Future())
        return self.futures[-1]


async def test_a_connection_with_calls_in_it_is_kept() -> None:
    """If a call cannot reach the model behind one worker, the calls of others continue."""
    first, second = Calls(), Calls()
    reconnected: list[Any] = []

    def reconnect() -> Any:
        reconnected.append(second)
        return second

    remote = RemoteEvaluator(first, reconnect)  # type: ignore[arg-type]  # only the used part of a client
    long = asyncio.create_task(remote.submit(CALL, NO_HINTS))
    failing = asyncio.create_task(remote.submit(CALL, NO_HINTS))
    await until(lambda: len(first.futures) == 2)
    first.futures[1].set_exception(Unavailable("away"))
    with pytest.raises(Unavailable):
        await failing
    again = asyncio.create_task(remote.submit(CALL, NO_HINTS))
    await until(lambda: len(first.futures) == 3)
    assert not reconnected
    for future in first.futures[::2]:
        future.set_exception(Unavailable("away"))
    await asyncio.wait([long, again])
    later = asyncio.create_task(remote.submit(CALL, NO_HINTS))
    await until(lambda: len(second.futures) == 1)
    second.futures[0].set_result(RESULT)
    assert await later is RESULT


async def test_a_farm_that_is_not_there_yet_is_unavailable() -> None:
    lost = Calls()

    def reconnect() -> Any:
        raise InvalidInput("this is no farm")

    remote = RemoteEvaluator(lost, reconnect)  # type: ignore[arg-type]  # only the used part of a client
    calling = asyncio.create_task(remote.submit(CALL, NO_HINTS))
    await until(lambda: len(lost.futures) == 1)
    lost.futures[0].set_exception(Unavailable("away"))
    with pytest.raises(Unavailable, match="away"):
        await calling
    with pytest.raises(Unavailable, match="this is no farm"):
        await remote.submit(CALL, NO_HINTS)
