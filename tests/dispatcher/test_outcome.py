"""Waiting for an outcome: a result, an error, and a wait that is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from farm.call import Result
from farm.dispatcher.outcome import outcome_of
from farm.errors import WorkerLost
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId


class Calls:
    """Starts one call, and knows whether it was cancelled."""

    def __init__(self) -> None:
        self.done: Callable[[Outcome], None] = lambda outcome: None
        self.cancelled: list[TaskId] = []

    def start(self, done: Callable[[Outcome], None]) -> TaskId:
        self.done = done
        return TaskId(7)

    async def asked(self) -> asyncio.Task[Result]:
        waiting = asyncio.create_task(outcome_of(self.start, self.cancelled.append))
        await asyncio.sleep(0)
        return waiting


def test_a_result_is_returned_and_an_error_is_raised() -> None:
    async def talk() -> None:
        calls = Calls()
        waiting = await calls.asked()
        calls.done(result := Result(()))
        assert await waiting is result
        waiting = await calls.asked()
        calls.done(WorkerLost("gone"))
        with pytest.raises(WorkerLost, match="gone"):
            await waiting
        assert calls.cancelled == []

    asyncio.run(talk())


def test_who_gives_up_the_wait_cancels_the_call() -> None:
    async def talk() -> None:
        calls = Calls()
        waiting = await calls.asked()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert calls.cancelled == [7]
        calls.done(Result(()))  # too late, and no error

    asyncio.run(talk())
