"""The results of a call one by one, and cancellation when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher, ResultStream
from farm.errors import FarmError, ModelFailed
from farm.scheduler.state import TaskId

EVALUATE, STREAM = Call("m", Operation.EVALUATE), Call("m", Operation.STREAM)


class Backend:
    """A backend whose outcomes the test decides."""

    def __init__(self) -> None:
        self.cancelled: list[TaskId] = []

    def start_call(
        self, call: Call, hints: Hints, on_done: Callable[[Result | FarmError], None]
    ) -> TaskId:
        self.tell = on_done
        return TaskId(7)

    def cancel(self, task_id: TaskId) -> None:
        self.cancelled.append(task_id)


def answer(value: float) -> Result:
    return Result((np.array([value]),), more=True)


async def test_a_stream_has_its_answers_and_an_end_that_is_none() -> None:
    backend: Any = Backend()
    answers = ResultStream(backend, STREAM, NO_HINTS)
    for outcome in (answer(1.0), answer(2.0), Result((), 0.5)):
        backend.tell(outcome)
    assert [float(result.outputs[0][0]) async for result in answers] == [1.0, 2.0]
    assert answers.end is not None
    assert answers.end.run_time_s == 0.5
    assert [result async for result in answers] == []
    answers.close()
    assert backend.cancelled == []


async def test_any_other_call_has_one_answer() -> None:
    backend: Any = Backend()
    answers = ResultStream(backend, EVALUATE, NO_HINTS)
    backend.tell(Result((np.array([3.0]),)))
    assert [float(result.outputs[0][0]) async for result in answers] == [3.0]
    answers.close()
    assert backend.cancelled == []


async def test_an_error_is_raised_behind_the_answers_that_came() -> None:
    backend: Any = Backend()
    answers = ResultStream(backend, STREAM, NO_HINTS)
    backend.tell(answer(1.0))
    backend.tell(ModelFailed("diverged"))
    assert float((await anext(answers)).outputs[0][0]) == 1.0
    with pytest.raises(ModelFailed, match="diverged"):
        await anext(answers)
    answers.close()
    assert (answers.end, backend.cancelled) == (None, [])


async def test_who_leaves_early_takes_the_call_back() -> None:
    backend: Any = Backend()
    answers = ResultStream(backend, STREAM, NO_HINTS)
    backend.tell(answer(1.0))
    await anext(answers)
    answers.close()
    answers.close()
    assert backend.cancelled == [7]


async def test_who_gives_up_the_wait_cancels_the_call() -> None:
    backend: Any = Backend()
    waiting = asyncio.create_task(Dispatcher.submit(backend, EVALUATE))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert backend.cancelled == [7]
    backend.tell(Result(()))  # too late, and no error
