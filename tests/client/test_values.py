"""Converting users' values to calls and back: shapes, copies, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from farm.call import ModelInfo, Operation, Result, TensorInfo
from farm.client.values import Values, each_of
from farm.errors import InvalidInput, InvalidOutput, UnsupportedFeature

OPERATIONS = frozenset(Operation) - {Operation.DESCRIBE}
ONE = ModelInfo("one", (TensorInfo("x", (2, 3)),), (TensorInfo("y", (2,)),), OPERATIONS)
SCALAR = ModelInfo("scalar", (TensorInfo("x", ()),), (TensorInfo("y", ()),))
TWO = ModelInfo(
    "two",
    (TensorInfo("a", (2,)), TensorInfo("n", (1,), "int64")),
    (TensorInfo("u", (2,)), TensorInfo("v", (1,), "float32")),
    OPERATIONS,
)
NONE = ModelInfo("none", (), (TensorInfo("y", (1,)),))
CONFIG = '{"k":1}'


def given_to(info: ModelInfo, point: Any) -> list[Any]:
    call = Values(info, CONFIG).call(point)
    assert (call.model, call.operation, call.config) == (info.name, Operation.EVALUATE, CONFIG)
    for array, tensor in zip(call.inputs, info.inputs, strict=True):
        assert array.dtype == tensor.dtype
        assert array.shape == tensor.shape
        assert array.flags.c_contiguous
    return [array.tolist() for array in call.inputs]


@given(arrays.arrays(np.float64, (2, 3)))
def test_every_form_of_a_point_is_the_same_point(x: np.ndarray[Any, Any]) -> None:
    expected = np.array([x])
    for point in (x, x.T.copy().T, x.reshape(-1), x.tolist(), (x,), [x.tolist()], {"x": x}):
        got = np.array(given_to(ONE, point))
        assert np.array_equal(got, expected, equal_nan=True)


def test_numbers_and_lists_of_one_are_vectors_of_one() -> None:
    info = ModelInfo("m", (TensorInfo("x", (1,)),), ())
    for point in (2, 2.0, [2.0], [[2.0]], np.float32(2), np.array([2.0]), {"x": 2.0}):
        assert given_to(info, point) == [[2.0]]
    for point in (2.0, [2.0], np.array(2.0)):
        assert given_to(SCALAR, point) == [2.0]


def test_several_inputs_come_in_order_or_by_name() -> None:
    for point in ([[1, 2], 3], ((1.0, 2.0), [3]), {"n": np.int32(3), "a": [1, 2]}):
        assert given_to(TWO, point) == [[1.0, 2.0], [3]]
    assert given_to(NONE, []) == given_to(NONE, {}) == []


def test_arrays_are_copied() -> None:
    x = np.zeros((2, 3))
    call = Values(ONE, CONFIG).call(x)
    calls = Values(ONE, CONFIG).table(x[None])
    x[:] = 1.0
    assert not call.inputs[0].any()
    assert not next(calls).inputs[0].any()


@pytest.mark.parametrize(
    ("info", "point", "text"),
    [
        (ONE, np.ones((3, 2)), r"input 'x' has shape \(3, 2\), model 'one' expects \(2, 3\)"),
        (ONE, np.ones(5), r"has shape \(5,\), model 'one' expects \(2, 3\)"),
        (ONE, [[1, 2], [3]], "input 'x' is not an array of numbers"),
        (ONE, None, "input 'x' is object"),
        (ONE, ["1"] * 6, "input 'x' is <U1, expected numbers of type float64"),
        (ONE, {"y": 1}, r"the point has 'y'; model 'one' has x \(2, 3\)"),
        (TWO, [[1.0, 2.0]], r"a list of 1; model 'two' has 2 inputs, a \(2,\), n \(1,\): pass a"),
        (TWO, 1.0, "the point is a float; model 'two' has 2 inputs"),
        (TWO, {"a": [1, 2], "n": 0.5}, "input 'n' is float64, expected numbers of type int64"),
        (TWO, {"a": [1, 2]}, r"the point has 'a'; model 'two' has a \(2,\), n \(1,\)"),
    ],
)
def test_what_does_not_fit_is_refused(info: ModelInfo, point: object, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Values(info, CONFIG).call(point)


def test_tables_become_a_call_a_row() -> None:
    table = np.arange(12.0).reshape(2, 6)
    for points in (table, table.reshape(2, 2, 3), table.astype(np.float32)):
        calls = list(Values(ONE, CONFIG).table(points))
        rows = np.array([call.inputs[0] for call in calls])
        assert np.array_equal(rows, table.reshape(2, 2, 3))


@pytest.mark.parametrize(
    ("info", "points", "text"),
    [
        (ONE, np.ones((3, 2)), r"has shape \(3, 2\); for input 'x' of .* expected \(N, 2, 3\)"),
        (ONE, np.array(["a"]), "the array of points is <U1"),
        (ONE, np.array(1.0), r"has shape \(\)"),
        (TWO, np.ones((3, 2)), r"inputs a \(2,\), n \(1,\).*pass a list of points"),
    ],
)
def test_an_array_that_is_no_table_of_points_is_refused(
    info: ModelInfo, points: Any, text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        Values(info, CONFIG).table(points)


def test_a_model_that_does_not_evaluate_says_so() -> None:
    info = ModelInfo("g", ONE.inputs, ONE.outputs, frozenset({Operation.GRADIENT}))
    with pytest.raises(UnsupportedFeature, match="does not offer evaluate; it offers gradient"):
        Values(info, CONFIG).call(np.ones((2, 3)))
    with pytest.raises(UnsupportedFeature, match="does not offer evaluate"):
        Values(info, CONFIG).table(np.ones((1, 2, 3)))


def test_outputs_are_private_arrays_in_their_declared_form() -> None:
    came = np.array([1.0, 2.0])
    out = Values(ONE, CONFIG).output(Result((came,)))
    came[:] = 0.0
    assert out.tolist() == [1.0, 2.0]
    both = Values(TWO, CONFIG).output(Result((np.ones(2), np.array(2.0))))
    assert {name: (y.dtype, y.shape) for name, y in both.items()} == {
        "u": (np.float64, (2,)),
        "v": (np.float32, (1,)),
    }
    assert Values(SCALAR, CONFIG).output(Result((np.array([3.0]),))).shape == ()


def test_outputs_fill_their_row() -> None:
    values = Values(ONE, CONFIG)
    room = values.room(2)
    values.put(Result((np.array([1.0, 2.0]),)), room, 0)
    values.put(Result((np.array([[3.0], [4.0]]),)), room, 1)
    assert room.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(InvalidOutput):
        values.put(Result((np.ones(1),)), room, 0)


@pytest.mark.parametrize("outputs", [(), (np.ones(3),), (np.ones(2), np.ones(2))])
def test_answers_that_do_not_fit_are_refused(outputs: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidOutput, match="model 'one' declares"):
        Values(ONE, CONFIG).output(Result(outputs))


def test_the_bytes_of_an_evaluation_are_known() -> None:
    assert Values(ONE, CONFIG).nbytes == 8 * 6 + 8 * 2
    assert Values(TWO, CONFIG).nbytes == 16 + 8 + 16 + 4


VARYING = ModelInfo(
    "m", (TensorInfo("x", (-1,)), TensorInfo("t", (1,), "bytes")), (TensorInfo("y", (-1,)),)
)


def test_sizes_that_vary_and_texts() -> None:
    values = Values(VARYING, "{}")
    call = values.call({"x": [1, 2, 3], "t": ["é"]})
    assert call.inputs[0].tolist() == [1.0, 2.0, 3.0]
    assert call.inputs[1].tolist() == ["é".encode()]
    with pytest.raises(InvalidInput, match=r"shape \(1, 2\)"):
        values.call({"x": [[1, 2]], "t": ["a"]})
    with pytest.raises(InvalidInput, match="a int"):
        values.call({"x": [1], "t": [1]})
    assert values.output(Result((np.arange(4.0),))).tolist() == [0.0, 1.0, 2.0, 3.0]
    one = ModelInfo("m", (TensorInfo("x", (-1,)),), (TensorInfo("y", (1,)),))
    with pytest.raises(InvalidInput, match="fixed sizes"):
        Values(one, "{}").table(np.ones((3, 2)))


def test_points_are_several() -> None:
    with pytest.raises(InvalidInput, match="the points are a float; expected a list"):
        each_of(3.0)  # type: ignore[arg-type]  # this is the mistake
    with pytest.raises(InvalidInput, match=r"are a DataFrame, .* frame.to_dict\('records'\)"):
        each_of(pd.DataFrame({"x": [1.0]}))
    assert list(each_of([1.0, 2.0])) == [1.0, 2.0]
