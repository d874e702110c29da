"""The results of a call one by one, and cancellation when the client leaves."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import ResultStream
from farm.errors import FarmError, ModelFailed
from tests.dispatcher.test_dispatcher import Recorder, cube, served, turns

EVALUATE, STREAM = Operation.EVALUATE, Operation.STREAM
MODEL = ModelInfo("m", (), (), frozenset({EVALUATE, STREAM}))


async def asked(
    operation: Operation, *outcomes: Result | FarmError
) -> tuple[ResultStream, Recorder]:
    """Return the results of a call for which its worker has these outcomes."""
    dispatcher, transport = served(MODEL)
    answers = ResultStream(dispatcher, Call("m", operation), NO_HINTS)
    worker, task_id, _ = await transport.next()
    for outcome in outcomes:
        dispatcher.finished(worker, [(task_id, outcome)])
        await turns()
    return answers, transport


def answer(value: float, *, more: bool = True) -> Result:
    return Result((np.array([value]),), 0.5, more=more)


@pytest.mark.parametrize(
    ("operation", "outcomes", "values"),
    [
        (STREAM, [answer(1.0), answer(2.0), Result((), 0.5)], [1.0, 2.0]),
        (EVALUATE, [answer(3.0, more=False)], [3.0]),
    ],
    ids=["a stream", "another call"],
)
async def test_a_call_has_its_answers_and_an_end_that_is_none_of_a_stream(
    operation: Operation, outcomes: list[Result], values: list[float]
) -> None:
    answers, transport = await asked(operation, *outcomes)
    assert [float(result.outputs[0][0]) async for result in answers] == values
    assert answers.end is not None
    assert answers.end.run_time_s == 0.5
    assert [result async for result in answers] == []
    answers.close()
    await turns()
    assert transport.ended == []
    assert transport.dispatcher.snapshot()["done"] == 1
    assert transport.dispatcher.statistics()["m"].executions == 1


async def test_an_error_is_raised_behind_the_answers_that_came() -> None:
    answers, _ = await asked(STREAM, answer(1.0), ModelFailed("diverged"))
    assert float((await anext(answers)).outputs[0][0]) == 1.0
    with pytest.raises(ModelFailed, match="diverged"):
        await anext(answers)
    answers.close()
    assert answers.end is None


async def test_who_leaves_early_takes_the_call_back() -> None:
    answers, transport = await asked(STREAM, answer(1.0))
    await anext(answers)
    for _ in range(2):
        answers.close()
        assert transport.dispatcher.stages.calls_open() == 0
    await turns()
    assert len(transport.ended) == 1


async def test_an_answer_may_come_just_when_the_wait_is_given_up() -> None:
    dispatcher, transport = served()
    waiting = asyncio.create_task(dispatcher.submit(cube()))
    worker, task_id, _ = await transport.next()
    waiting.cancel()
    dispatcher.turns.act_on(lambda: dispatcher.finished(worker, [(task_id, Result(()))]))
    with pytest.raises(asyncio.CancelledError):
        await waiting
