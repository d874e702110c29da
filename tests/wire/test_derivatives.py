"""Derivative calls that differ only in their numbers travel as a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import DERIVATIVES, Array, Call, Derivative, Operation
from farm.errors import InvalidRequest
from farm.wire import messages as wire
from farm.wire.derivatives import arrays_of, calls_of, wrt_of
from farm.wire.runs import runs_of_calls

ONE, TWO = np.array([1.0]), np.array([1.0, 2.0])


def call(
    value: float,
    operation: Operation = Operation.GRADIENT,
    *,
    wrt: tuple[int, int, int] = (0, 1, 0),
    sens: Array | None = ONE,
    vec: Array | None = None,
    inputs: int = 2,
) -> Call:
    arrays = tuple(np.array([value, k]) for k in range(inputs))
    return Call("m", operation, arrays, '{"k":1}', Derivative(*wrt, sens, vec))


def same(a: Call, b: Call | InvalidRequest) -> bool:
    assert isinstance(b, Call), b
    plain = (a.model, a.operation, a.config, a.rows) == (b.model, b.operation, b.config, b.rows)
    arrays = zip(arrays_of(a), arrays_of(b), strict=True)
    return plain and wrt_of(a) == wrt_of(b) and all(np.array_equal(x, y) for x, y in arrays)


vectors = st.sampled_from([None, ONE, TWO])
indices = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))


@given(
    st.lists(
        st.builds(
            call,
            st.floats(-5, 5),
            st.sampled_from(sorted(DERIVATIVES)),
            wrt=indices,
            sens=vectors,
            vec=vectors,
            inputs=st.integers(0, 2),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 300),
)
def test_derivatives_come_back_in_their_order(kinds: list[Call], repeated: int) -> None:
    sent = [each for each in kinds for _ in range(repeated)]
    frames = wire.encode_calls(enumerate(sent))
    _, decoded = wire.decode_calls(wire.decode([bytes(frame) for frame in frames]))
    assert [task_id for task_id, _ in decoded] == list(range(len(sent)))
    assert all(same(a, b) for a, (_, b) in zip(sent, decoded, strict=True))


def test_calls_of_one_derivative_are_together() -> None:
    other = [
        call(0, Operation.VALUE_AND_GRADIENT),
        call(0, wrt=(1, 1, 0)),
        call(0, wrt=(1, 0, 0)),
        call(0, sens=TWO),
        call(0, sens=None, vec=ONE),
        call(0, sens=ONE, vec=ONE),
        Call("m", Operation.GRADIENT, (np.zeros(2), np.zeros(2)), '{"k":1}'),
    ]
    sent = [call(1), call(2, sens=np.array([3.0])), *other]
    runs = [[task_id for task_id, _ in run] for run in runs_of_calls(enumerate(sent))]
    assert runs == [[0, 1], *[[k] for k in range(2, 9)]]
    (frame,) = wire.encode_calls(enumerate([call(k) for k in range(1000)]))
    assert len(frame) < 1000 * (5 * 8 + 5) + 100


def column(*arrays: Any) -> list[Array]:
    return [np.array(array, float) for array in arrays]


@pytest.mark.parametrize(
    "wrt",
    [
        [0],
        [0, 0, 0, True],
        [0, 0, 0, True, True, 1],
        ["0", 0, 0, True, False],
        [0.5, 0, 0, True, False],
        [0, None, 0, True, False],
        [0, 0, True, True, False],
    ],
)
def test_what_is_no_derivative_is_refused(wrt: list[Any]) -> None:
    columns = [column([1], [2]), column([3], [4])]
    with pytest.raises((ValueError, TypeError)):
        calls_of("m", Operation.GRADIENT, "{}", columns, wrt)
    group = [[1, 2], "m", "gradient", [["<f8", [1], 0], ["<f8", [1], 16]], "{}", *wrt]
    message = wire.Message(wire.Kind.CALLS, [None, [group]], [bytes(32)])
    _, decoded = wire.decode_calls(message)
    assert [type(call) for _, call in decoded] == [InvalidRequest, InvalidRequest]


def test_more_vectors_than_arrays_are_refused() -> None:
    for columns in ([], [column([1], [2])]):
        with pytest.raises(IndexError):
            calls_of("m", Operation.APPLY_HESSIAN, "{}", columns, (0, 0, 0, True, True))


def test_vectors_follow_the_inputs() -> None:
    columns = [column([1], [2]), column([3], [4]), column([5], [6])]
    one, two = calls_of("m", Operation.APPLY_HESSIAN, "{}", columns, (0, 1, 2, True, True))
    assert [array.tolist() for array in arrays_of(one)] == [[1], [3], [5]]
    assert [array.tolist() for array in arrays_of(two)] == [[2], [4], [6]]
    assert wrt_of(two) == (0, 1, 2, True, True)
