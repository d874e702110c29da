"""The places of arrays in a message; whole messages are tested in test_messages.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import DERIVATIVES, Array, Call, Derivative, Operation
from farm.errors import InvalidRequest
from farm.wire import messages as wire
from farm.wire.arrays import (
    INLINE_BYTES,
    ArrayWriter,
    array_at,
    arrays_of,
    calls_of,
    column_at,
    form_of,
    have_form,
    wrt_of,
)
from farm.wire.runs import runs_of_calls
from tests.wire.test_messages import arrived, check_calls


def frame_of(writer: ArrayWriter, before: bytes = b"") -> bytes:
    data = before + b"".join(writer.inline)
    assert len(data) == len(before) + writer.length
    return data


def test_small_arrays_lie_at_multiples_of_eight() -> None:
    writer = ArrayWriter()
    arrays = [np.arange(3, dtype="i1"), np.arange(2.0), np.ones((2, 3), "<f4"), np.array(7.0)]
    places = [writer.put(array) for array in arrays]
    assert [at for _, _, at in places] == [0, 8, 24, 48]
    frame = frame_of(writer, b"8 bytes.")
    for array, place in zip(arrays, places, strict=True):
        read = array_at([frame], 8, [place[0], list(place[1]), place[2]])
        assert read.dtype == array.dtype
        assert np.array_equal(read, array)


def test_large_arrays_are_counted_from_one() -> None:
    writer = ArrayWriter()
    large = np.zeros(INLINE_BYTES // 8 + 1)
    assert [writer.put(large)[2], writer.put(large[:-1])[2], writer.put(large)[2]] == [-1, 0, -2]
    assert len(writer.large) == 2


def test_columns_lie_one_after_the_other() -> None:
    writer = ArrayWriter()
    writer.put(np.ones(1))
    arrays = [np.full((3,), k, "i2") for k in range(3)]
    place = writer.put_column(arrays)
    assert place == ["<i2", (3,), 8]
    after = writer.put(np.array([5.0]))
    assert after[2] == 32  # 18 bytes, padded
    read = column_at([frame_of(writer)], 0, ["<i2", [3], 8], 3)
    assert [row.tolist() for row in read] == [[k] * 3 for k in range(3)]
    assert all(row.shape == (3,) for row in read)


@pytest.mark.parametrize(
    ("where", "count"),
    [
        (["<f8", [], 0], 2),
        (["<f8", [0], 0], 2),
        (["<f8", [1], -1], 2),
        (["<f8", [2], 0], 3),
        (["<f8", [1], 0], 0),
        (["|O", [1], 0], 1),
    ],
)
def test_what_is_no_column_is_refused(where: Any, count: int) -> None:
    with pytest.raises((ValueError, LookupError)):
        column_at([bytes(32), bytes(32)], 0, where, count)


def test_only_small_arrays_with_entries_have_a_form() -> None:
    ones = np.ones(2)
    form = form_of([ones, np.ones((1, 2), "f4")])
    assert form == [((2,), np.dtype("f8")), ((1, 2), np.dtype("f4"))]
    without: list[list[Array]] = [
        [],
        [np.array(1.0)],
        [np.ones(0)],
        [ones, np.ones(INLINE_BYTES)],
        [np.array([None])],
    ]
    for arrays in without:
        assert form_of(arrays) is None


def test_arrays_have_the_form_of_their_like() -> None:
    form = form_of([np.ones(2), np.ones(3, "i4")])
    assert form is not None
    assert have_form([np.zeros(2), np.zeros(3, "i4")], form)
    assert not have_form([np.zeros(2)], form)
    assert not have_form([np.zeros(2), np.zeros(3, "i8")], form)
    assert not have_form([np.zeros((2, 1)), np.zeros(3, "i4")], form)


@pytest.mark.parametrize(
    "where",
    [
        ["bytes", [2], [["<u4", [2], 0], ["|u1", [4], 8]]],  # lengths 1 and 2 of 4 bytes
        ["bytes", [3], [["<u4", [2], 0], ["|u1", [3], 8]]],
        ["bytes", [10**12], [["<u4", [2], 0], ["|u1", [3], 8]]],
        ["bytes", [-2, -1], [["<u4", [2], 0], ["|u1", [3], 8]]],
        ["bytes", [1] * 99, [["<u4", [1], 0], ["|u1", [1], 8]]],
        ["bytes", [2], [["<i4", [2], 0], ["|u1", [3], 8]]],
        ["bytes", [2], [["<u4", [2], 0]]],
        ["bytes", [2], 0],
        ["bytes", [1], [["bytes", [1], []], ["|u1", [1], 8]]],
        ["bfloat16", [2], [["<u2", [3], 0]]],
        ["bfloat16", [2], [["<f4", [1], 0]]],
        ["bfloat16", [2], [["<u2", [2], 0], ["<u2", [2], 0]]],
        ["object", [1], []],
    ],
)
def test_what_are_no_bytes_is_refused(where: Any) -> None:
    frame = np.array([1, 2], "<u4").tobytes() + bytes(24)
    with pytest.raises((ValueError, LookupError, TypeError)):
        array_at([frame], 0, where)


def test_bytes_lie_where_they_are_told_to() -> None:
    frame = np.array([1, 2], "<u4").tobytes() + b"abc" + bytes(5)
    array = array_at([frame], 0, ["bytes", [2, 1], [["<u4", [2], 0], ["|u1", [3], 8]]])
    assert array.tolist() == [[b"a"], [b"bc"]]


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
    check_calls(sent, arrived(*sent))


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
