"""Outcomes of many calls on an event loop: order, limits, a full queue, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace

import pytest

from farm.call import Call, Hints, Result
from farm.client import flow as flows
from farm.client.flow import outcomes_in_turn
from farm.errors import FarmError, InvalidInput, ModelFailed, Overloaded, Unavailable
from tests.support.coroutines import on_loop, until
from tests.support.scripted_lines import HandLine, cube_calls

HINTS = Hints("me")


def first(result: Result) -> float:
    return float(result.outputs[0][0])


def start(
    line: HandLine, calls: Iterable[Call | FarmError], in_flight: int = 2000
) -> AsyncGenerator[float | FarmError]:
    return outcomes_in_turn(line, iter(calls), HINTS, first, in_flight=in_flight)


async def taken(flow: AsyncGenerator[float | FarmError], into: list[float | FarmError]) -> None:
    async for outcome in flow:
        into.append(outcome)


@on_loop
async def test_outcomes_come_in_the_order_of_the_calls() -> None:
    line = HandLine()
    got: list[float | FarmError] = []
    task = asyncio.create_task(taken(start(line, cube_calls(5)), got))
    await until(lambda: len(line.waiting) == 5)
    line.answer(3, 2, 5)
    await asyncio.sleep(0)
    assert got == []
    line.answer(1)
    await until(lambda: len(got) == 3)
    line.answer(4)
    await task
    assert got == [0.0, 1.0, 8.0, 27.0, 64.0]


@on_loop
async def test_calls_leave_many_to_a_message_and_are_one_caller() -> None:
    line = HandLine()
    got: list[float | FarmError] = []
    task = asyncio.create_task(taken(start(line, cube_calls(600)), got))
    await until(lambda: len(line.waiting) == 600)
    assert len(line.messages) < 100
    assert set(line.hints) == {replace(HINTS, chain="")}
    line.answer_all()
    await task
    assert len(got) == 600


@on_loop
async def test_no_calls_no_outcomes() -> None:
    line = HandLine()
    assert [outcome async for outcome in start(line, [])] == []
    assert line.messages == []


@on_loop
async def test_no_more_is_in_flight_than_allowed() -> None:
    line = HandLine()
    read: list[Call] = []

    def calls() -> Iterator[Call]:
        for call in cube_calls(100):
            read.append(call)
            yield call

    flow = start(line, calls(), in_flight=8)
    for count in range(100):
        asked = asyncio.ensure_future(anext(flow))
        await until(lambda: line.waiting)
        line.answer(min(line.waiting))
        assert await asked == float(count) ** 3
        assert len(read) <= count + 1 + 8
    assert await anext(flow, None) is None


@on_loop
async def test_an_error_stands_in_place_of_its_call() -> None:
    line = HandLine()
    one, two = cube_calls(2)
    flow = start(line, [one, InvalidInput("no point"), two])
    asked = asyncio.ensure_future(anext(flow))
    await until(lambda: len(line.waiting) == 2)
    line.answer(1, outcome=ModelFailed("no"))
    line.answer(2)
    assert isinstance(await asked, ModelFailed)
    assert isinstance(await anext(flow), InvalidInput)
    assert await anext(flow) == 1.0


@on_loop
async def test_a_full_queue_is_waited_for() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows, "PAUSE_S", 0.001)
        line = HandLine()
        got: list[float | FarmError] = []
        task = asyncio.create_task(taken(start(line, cube_calls(4)), got))
        await until(lambda: len(line.waiting) == 4)
        messages = len(line.messages)
        line.answer(1, 2, 4, outcome=Overloaded("full"))
        line.answer(3)
        await until(lambda: len(line.waiting) == 3)
        assert len(line.messages) == messages + 1, "sent again together"
        line.answer_all()
        await task
        assert got == [0.0, 1.0, 8.0, 27.0]


@on_loop
async def test_cancelling_the_task_cancels_the_calls() -> None:
    line = HandLine()
    task = asyncio.create_task(taken(start(line, cube_calls(5)), []))
    await until(lambda: len(line.waiting) == 5)
    line.answer(2, 3, outcome=ModelFailed("no"))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert sorted(line.taken) == [1, 4, 5]
    del task
    gc.collect()  # the errors that nobody asked for are no errors of the loop


@on_loop
async def test_leaving_the_loop_cancels_the_calls() -> None:
    line = HandLine()
    flow = start(line, cube_calls(5))
    asked = asyncio.ensure_future(anext(flow))
    await until(lambda: len(line.waiting) == 5)
    line.answer(1)
    await asked
    await flow.aclose()
    assert sorted(line.taken) == [2, 3, 4, 5]


@on_loop
async def test_an_error_of_the_points_themselves_is_raised() -> None:
    line = HandLine()

    def calls() -> Iterator[Call]:
        yield from cube_calls(1)
        raise LookupError("no more points")

    flow = start(line, calls())
    with pytest.raises(LookupError):
        await anext(flow)
    assert line.taken == [1]


@on_loop
async def test_a_closed_line_says_so() -> None:
    class Closed(HandLine):
        def send(self, *args: object) -> list[int]:
            raise Unavailable("the client is closed")

    with pytest.raises(Unavailable):
        await anext(start(Closed(), cube_calls(3)))
