"""Keys: equal for the same question, different for any other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Array, Call, Derivative, ModelInfo, Operation, TensorInfo
from farm.record.key import keys_of, raw
from tests.record.entries import SQUARE, arrays, call, derivatives

GRADIENT = Call(
    "square",
    Operation.GRADIENT,
    (np.array([1.0, 2.0]),),
    derivative=Derivative(0, 0, sens=np.array([1.0])),
)


def key(asked: Call, version: str = "1", info: ModelInfo | None = SQUARE) -> bytes:
    (found,) = keys_of(asked, info, version)
    return found


def test_the_same_point_has_the_same_key() -> None:
    assert key(call(1.0, 2.0)) == key(call(1.0, 2.0))
    assert len(key(call(1.0, 2.0))) == 16


@pytest.mark.parametrize(
    "other",
    [
        call(1.0, 2.0 + 2**-51),
        call(2.0, 1.0),
        call(1.0, 2.0, config='{"a":1}'),
        call(1.0, 2.0, model="cube"),
        GRADIENT,
        replace(GRADIENT, operation=Operation.APPLY_JACOBIAN),
    ],
)
def test_another_question_has_another_key(other: Call) -> None:
    assert key(other) != key(call(1.0, 2.0))


def test_another_version_has_another_key() -> None:
    assert key(call(1.0, 2.0), "2") != key(call(1.0, 2.0), "1")


def test_minus_zero_counts_as_zero() -> None:
    assert key(call(0.0, -0.0)) == key(call(-0.0, 0.0)) == key(call(0.0, 0.0))
    minus = np.array([complex(-0.0, -0.0)])
    assert raw(minus) == raw(np.zeros(1, complex))
    assert raw(np.array([-0.0], np.float32)) == raw(np.zeros(1, np.float32))


def test_a_nan_is_found_again_and_is_no_number() -> None:
    assert key(call(np.nan, 1.0)) == key(call(np.nan, 1.0))
    assert key(call(np.nan, 1.0)) != key(call(0.0, 1.0))


def test_flat_and_shaped_inputs_and_other_types_are_the_same_point() -> None:
    table = replace(SQUARE, inputs=(TensorInfo("x", (2, 2)),))
    shaped = Call("square", Operation.EVALUATE, (np.array([[1.0, 2.0], [3.0, 4.0]]),))
    flat = replace(shaped, inputs=(np.arange(1.0, 5.0),))
    whole = replace(shaped, inputs=(np.arange(1, 5),))
    swapped = replace(shaped, inputs=(np.arange(1.0, 5.0).astype(">f8"),))
    assert key(shaped, info=table) == key(flat, info=table) == key(whole, info=table)
    assert key(swapped, info=None) == key(flat, info=None)


def test_inputs_cannot_be_moved_between_each_other() -> None:
    two = Call("m", Operation.EVALUATE, (np.array([1.0]), np.array([2.0, 3.0])))
    other = replace(two, inputs=(np.array([1.0, 2.0]), np.array([3.0])))
    assert key(two, info=None) != key(other, info=None)
    texts = [np.array([b"ab", b"c"], object), np.array([b"a", b"bc"], object)]
    first, second = (replace(two, inputs=(text,)) for text in texts)
    assert key(first, info=None) != key(second, info=None)


@given(st.data())
def test_each_argument_of_a_derivative_counts(data: st.DataObject) -> None:
    one, other = data.draw(derivatives), data.draw(derivatives)

    def shown(wrt: Derivative) -> object:
        vectors = [None if v is None else raw(v) for v in (wrt.sens, wrt.vec)]
        return wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2, vectors

    same = key(replace(GRADIENT, derivative=one)) == key(replace(GRADIENT, derivative=other))
    assert same == (shown(one) == shown(other))


@given(st.lists(st.lists(st.floats(), min_size=2, max_size=2), min_size=1, max_size=5))
def test_rows_of_a_bulk_call_have_the_keys_of_single_calls(rows: list[list[float]]) -> None:
    bulk = replace(call(), inputs=(np.array(rows),), rows=len(rows))
    assert keys_of(bulk, SQUARE, "1") == [key(call(*row)) for row in rows]


@given(st.lists(arrays(), max_size=2), st.integers(1, 3))
def test_rows_of_any_type_have_the_keys_of_single_calls(inputs: list[Array], rows: int) -> None:
    single = Call("m", Operation.EVALUATE, tuple(inputs))
    columns = []
    for array in inputs:
        column = np.empty((rows, *array.shape), array.dtype)
        column[:] = array
        columns.append(column)
    bulk = replace(single, inputs=tuple(columns), rows=rows)
    assert keys_of(bulk, None, "") == keys_of(single, None, "") * rows


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0xFF800001])
def test_no_nan_makes_a_warning(bits: int) -> None:
    point = np.array([bits], np.uint32).view(np.float32)
    assert key(replace(call(), inputs=(point,))) == key(replace(call(), inputs=(point.copy(),)))
