"""Futures over a line: pending until the outcome, cancelled as in the standard library."""

from __future__ import annotations

from concurrent.futures import CancelledError, wait

import pytest

from farm.call import Hints, Result
from farm.client.line import CallFuture, as_it_is, submit
from farm.errors import InvalidOutput, ModelFailed
from tests.support.scripted_lines import HandLine, cube_calls

HINTS = Hints("me", 3, 1.0)


@pytest.fixture
def line() -> HandLine:
    return HandLine()


def send(line: HandLine, x: int = 2) -> CallFuture[Result]:
    return submit(line, cube_calls(x + 1)[x], HINTS, as_it_is)


def test_a_future_resolves(line: HandLine) -> None:
    future = send(line)
    assert not future.done()
    assert not future.running()
    assert line.hints == [HINTS]
    line.answer(1)
    assert future.result(0).outputs[0].tolist() == [8.0]


def test_what_convert_makes_is_the_result(line: HandLine) -> None:
    future = submit(line, cube_calls(3)[2], HINTS, lambda result: float(result.outputs[0][0]))
    line.answer(1)
    assert future.result(0) == 8.0


def test_what_convert_raises_is_raised(line: HandLine) -> None:
    def refuse(result: Result) -> None:
        raise InvalidOutput("too long")

    future = submit(line, cube_calls(1)[0], HINTS, refuse)
    line.answer(1)
    with pytest.raises(InvalidOutput, match="too long"):
        future.result(0)


def test_an_error_is_raised_as_it_came(line: HandLine) -> None:
    future = send(line)
    error = ModelFailed("no", detail="traceback")
    line.answer(1, outcome=error)
    assert future.exception(0) is error


def test_cancelling_takes_the_call_back(line: HandLine) -> None:
    future = send(line)
    assert future.cancel()
    assert line.taken == [1]
    assert future.cancelled()
    assert wait([future], timeout=0).done == {future}
    with pytest.raises(CancelledError):
        future.result(0)
    assert future.cancel()  # still
    assert line.taken == [1]


def test_an_answered_call_cannot_be_cancelled(line: HandLine) -> None:
    future = send(line)
    line.answer(1)
    assert not future.cancel()
    assert line.taken == []


def test_an_answer_may_cross_with_the_cancelling(line: HandLine) -> None:
    """The line delivers the outcome of a call just as the call is cancelled."""
    future = send(line)
    key, call, receiver = line.waiting.pop(1)
    assert future.cancel()
    assert line.taken == []
    receiver.put(key, Result(call.inputs))
    receiver.flush()
    assert future.cancelled()
    assert wait([future], timeout=0).done == {future}
