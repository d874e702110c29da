"""Flows of many calls: order, limits, a full queue, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call, Hints, Result
from farm.client import flow as flow_module
from farm.client.flow import SEND_AT_ONCE, Flow
from farm.client.line import Outcome
from farm.errors import FarmError, InvalidInput, ModelFailed, Overloaded
from tests.support.coroutines import until
from tests.support.scripted_lines import HandLine, cube_calls
from tests.support.time_limits import scaled

HINTS = Hints("me")
LIMIT_S = scaled(10.0)


@pytest.fixture(scope="module", autouse=True)
def _unhurried() -> Iterator[None]:
    """Let a flow send all its calls before the first request, even on a slow machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_module, "START_S", LIMIT_S)
        yield


def value(outcome: Outcome) -> float:
    assert isinstance(outcome, Result), outcome
    return float(outcome.outputs[0][0])


def start(line: HandLine, count: int, **options: object) -> Flow:
    settings = {"ordered": True, "in_flight": 2000} | options
    return Flow(line, cube_calls(count), HINTS, **settings)  # type: ignore[arg-type]  # by name


@given(st.permutations(range(8)), st.booleans())
def test_outcomes_come_in_order_or_as_they_finish(order: list[int], ordered: bool) -> None:
    line = HandLine()
    flow = start(line, 8, ordered=ordered)
    for i in order:
        line.answer(i + 1)
    expected = range(8) if ordered else order
    assert [(i, value(y)) for i, y in flow] == [(i, float(i) ** 3) for i in expected]


def test_calls_leave_many_to_a_message_before_anybody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_module, "GATHER_S", LIMIT_S)
    line = HandLine()
    flow = start(line, 4 * SEND_AT_ONCE)
    sizes = [len(m) for m in line.messages]
    assert sizes[:3] == [1, 2, 4]
    assert max(sizes) == SEND_AT_ONCE
    assert set(line.hints) == {replace(HINTS, chain="")}, "all of them are one caller"
    line.answer_all()
    assert len(list(flow)) == 4 * SEND_AT_ONCE


def test_no_calls_no_outcomes() -> None:
    line = HandLine()
    assert list(start(line, 0)) == []
    assert line.messages == []


@pytest.mark.parametrize("ordered", [True, False])
def test_no_more_is_in_flight_than_allowed(ordered: bool) -> None:
    line = HandLine()
    taken: list[Call] = []

    def calls() -> Iterator[Call]:
        for call in cube_calls(100):
            taken.append(call)
            yield call

    flow = Flow(line, calls(), HINTS, ordered=ordered, in_flight=8)
    for count in range(1, 101):
        assert len(taken) <= count + 8
        if not line.waiting:
            pytest.fail("nothing was sent though there was room")
        line.answer(max(line.waiting) if not ordered else min(line.waiting))
        next(flow)
    assert len(taken) == 100


def test_what_waits_for_its_turn_counts_as_in_flight() -> None:
    line = HandLine()
    flow = start(line, 100, in_flight=8)
    line.answer(*range(2, 9))
    late = threading.Timer(0.2, line.answer, [1])
    late.start()
    assert next(flow)[0] == 0  # the first seven have arrived, and nothing more was sent
    late.join()
    assert len([call for message in line.messages for call in message]) == 8


def test_a_slow_source_holds_nothing_back() -> None:
    line = HandLine()

    def calls() -> Iterator[Call]:
        for call in cube_calls(3):
            yield call
            time.sleep(2 * flow_module.GATHER_S)

    flow = Flow(line, calls(), HINTS, ordered=True)
    assert [len(message) for message in line.messages] == [1, 1, 1]
    line.answer_all()
    assert len(list(flow)) == 3


def test_errors_have_their_place() -> None:
    line = HandLine()
    calls: list[Call | FarmError] = [*cube_calls(3)]
    calls[1] = InvalidInput("not a number")
    flow = Flow(line, calls, HINTS, ordered=True)
    line.answer(1)
    line.answer(2, outcome=ModelFailed("no"))
    outcomes = dict(flow)
    assert isinstance(outcomes[0], Result)
    assert outcomes[1] is calls[1]
    assert isinstance(outcomes[2], ModelFailed)


def test_a_full_queue_makes_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_module, "PAUSE_S", 0.05)
    monkeypatch.setattr(flow_module, "GATHER_S", LIMIT_S)
    line = HandLine()
    flow = start(line, 4, in_flight=3)
    line.answer(1, 2, outcome=Overloaded("full"))
    line.answer(3)

    def later() -> None:
        limit = time.monotonic() + LIMIT_S
        while len(line.messages) < 3:
            assert time.monotonic() < limit, "what was refused was not sent again"
            time.sleep(0.01)
        line.answer_all()
        while len(line.messages) < 4:
            assert time.monotonic() < limit, "the rest was not sent"
            time.sleep(0.01)
        line.answer_all()

    farm = threading.Thread(target=later)
    farm.start()
    assert [(i, value(y)) for i, y in flow] == [(0, 0.0), (1, 1.0), (2, 8.0), (3, 27.0)]
    farm.join()
    assert [len(m) for m in line.messages] == [1, 2, 2, 1]


def test_closing_takes_back_what_is_under_way() -> None:
    line = HandLine()
    flow = start(line, 5)
    line.answer(1, 2)
    next(flow)
    flow.close()
    assert line.taken == [3, 4, 5]
    assert list(flow) == []


def test_a_dropped_flow_takes_back_what_is_under_way() -> None:
    line = HandLine()
    flow = start(line, 5)
    del flow
    assert line.taken == [1, 2, 3, 4, 5]


def test_an_error_of_the_source_takes_back_what_is_under_way() -> None:
    line = HandLine()

    def calls() -> Iterator[Call]:
        yield from cube_calls(2)
        time.sleep(2 * flow_module.GATHER_S)
        raise KeyError("the user's own")

    with pytest.raises(KeyError, match="the user's own"):
        list(Flow(line, calls(), HINTS, ordered=True))
    assert not line.waiting


async def on_the_loop(line: HandLine, count: int) -> AsyncGenerator[float]:
    async with contextlib.aclosing(start(line, count, eager=False).on_loop()) as outcomes:
        async for _, outcome in outcomes:
            yield value(outcome)


async def flowing(line: HandLine, count: int) -> asyncio.Task[list[float]]:
    """Take the outcomes of so many calls in a task; return it once all calls are sent."""

    async def take() -> list[float]:
        return [outcome async for outcome in on_the_loop(line, count)]

    task = asyncio.create_task(take())
    await until(lambda: len(line.waiting) == count)
    return task


async def test_a_full_queue_is_waited_for_on_a_loop() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_module, "PAUSE_S", 0.001)
        line = HandLine()
        task = await flowing(line, 4)
        messages = len(line.messages)
        line.answer(1, 2, 4, outcome=Overloaded("full"))
        line.answer(3)
        await until(lambda: len(line.waiting) == 3)
        assert len(line.messages) == messages + 1, "sent again together"
        line.answer_all()
        assert await task == [0.0, 1.0, 8.0, 27.0]


async def test_cancelling_the_task_cancels_the_calls() -> None:
    line = HandLine()
    task = await flowing(line, 5)
    line.answer(2, 3, outcome=ModelFailed("no"))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert sorted(line.taken) == [1, 4, 5]
    del task
    gc.collect()  # the errors that nobody asked for are no errors of the loop


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_counts_that_comes_with_an_outcome(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "PAUSE_S", LIMIT_S)
    line = HandLine()
    task = await flowing(line, 3)
    line.answer(1, outcome=Overloaded("full"))
    await asyncio.sleep(0.01)
    line.answer(2)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=LIMIT_S)
    assert task.cancelled()
    assert sorted(line.taken) == [3]


async def test_leaving_the_loop_cancels_the_calls() -> None:
    line = HandLine()
    flow = on_the_loop(line, 5)
    asked = asyncio.ensure_future(anext(flow))
    await until(lambda: len(line.waiting) == 5)
    line.answer(1)
    await asked
    await flow.aclose()
    assert sorted(line.taken) == [2, 3, 4, 5]
