"""Calls of many rows, cut up and put together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call, Operation, Result
from farm.errors import FarmError, InvalidOutput, ModelFailed, Overloaded
from farm.scheduler.parts import Whole, cut, joined


def rows(count: int) -> Call:
    x = np.arange(2.0 * count).reshape(count, 2)
    return Call("m", Operation.EVALUATE, (x, -x[:, :1]), '{"a":1}', rows=count)


@given(st.integers(1, 300), st.integers(1, 70))
def test_the_parts_are_the_rows_in_their_order(count: int, most: int) -> None:
    call = rows(count)
    parts = cut(call, most)
    sizes = [part.rows or 0 for part in parts]
    assert len(parts) == -(-count // most), "no more parts than it takes"
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1, "no worker gets much less than another"
    for i, array in enumerate(call.inputs):
        assert np.array_equal(np.concatenate([part.inputs[i] for part in parts]), array)
        assert all(len(part.inputs[i]) == part.rows for part in parts)
    assert {(part.model, part.config, part.operation) for part in parts} == {
        ("m", '{"a":1}', Operation.EVALUATE)
    }


def answer(k: int, worker: str = "w") -> Result:
    outputs = (np.full((2, 3), float(k)), np.array([[b"a"], [b"b"]], object))
    return Result(outputs, 1.0 + k, worker=worker, queue_time_s=float(k), batch_rows=2 + k)


def test_answers_are_joined_in_the_order_of_the_parts() -> None:
    outcomes: list[Result | FarmError] = []
    whole = Whole([2, 2, 2], outcomes.append)
    for k in (2, 0, 1):
        assert outcomes == []
        whole.part(k)(answer(k))
    (result,) = outcomes
    assert isinstance(result, Result)
    assert result.outputs[0][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert result.outputs[1].tolist() == [[b"a"], [b"b"]] * 3
    assert (result.run_time_s, result.queue_time_s, result.batch_rows) == (6.0, 2.0, 4)
    assert result.worker == "w"


def test_the_first_error_is_the_outcome_and_nothing_follows() -> None:
    outcomes: list[Result | FarmError] = []
    whole = Whole([2, 2, 2], outcomes.append)
    whole.part(1)(answer(1))
    whole.part(0)(ModelFailed("diverged"))
    whole.part(2)(ModelFailed("again"))
    assert [str(outcome) for outcome in outcomes] == ["rows 0 to 1: diverged"]


def test_an_error_says_its_rows_where_they_are_what_is_wrong() -> None:
    for part, error, said in (
        (1, ModelFailed("diverged", detail="line 3"), "row 2: diverged"),
        (2, InvalidOutput("short"), "rows 3 to 6: short"),
        (2, Overloaded("later"), "later"),
    ):
        outcomes: list[Result | FarmError] = []
        Whole([2, 1, 4], outcomes.append).part(part)(error)
        (told,) = outcomes
        assert (type(told), str(told)) == (type(error), said)
        assert isinstance(told, FarmError)
        assert told.detail == error.detail


def test_outputs_that_are_no_array_together_are_told() -> None:
    outcomes: list[Result | FarmError] = []
    whole = Whole([1, 1], outcomes.append)
    whole.part(0)(Result((np.zeros((1, 1)), np.zeros((1, 3)))))
    whole.part(1)(Result((np.zeros((1, 1)), np.zeros((1, 2)))))
    (told,) = outcomes
    assert isinstance(told, InvalidOutput)
    assert "output 1 has rows of the shapes [2] and [3]" in told.message


def test_the_workers_of_the_parts() -> None:
    assert joined([answer(0, "a"), answer(1, "b"), answer(2, "a")]).worker == "2 workers"
