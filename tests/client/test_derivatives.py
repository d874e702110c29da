"""Converting points and vectors to derivative calls and back: shapes, one or many, refusals."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, repeat
from typing import Any

import numpy as np
import pytest

from farm.call import Call, Derivative, ModelInfo, Operation, Result, TensorInfo
from farm.client.derivatives import Derivatives
from farm.client.values import Values
from farm.errors import FarmError, InvalidInput, InvalidOutput, UnsupportedFeature
from tests.client.test_values import CONFIG, OPERATIONS, TWO

MATRIX = ModelInfo("matrix", (TensorInfo("x", (2, 3)),), (TensorInfo("y", (2,)),), OPERATIONS)
SCALAR = ModelInfo("scalar", (TensorInfo("x", (2,)),), (TensorInfo("y", (1,)),), OPERATIONS)
X = np.arange(24.0).reshape(4, 2, 3)

GRADIENT = Operation.GRADIENT
JACOBIAN = Operation.APPLY_JACOBIAN
HESSIAN = Operation.APPLY_HESSIAN
BOTH = Operation.VALUE_AND_GRADIENT


def derivatives(info: ModelInfo, operation: Operation, **about: Any) -> Derivatives:
    return Derivatives(Values(info, CONFIG), operation, **about)


def wrt_of(call: Call | FarmError) -> Derivative:
    assert isinstance(call, Call)
    assert call.derivative is not None
    return call.derivative


def sens_of(calls: Iterable[Call | FarmError]) -> list[list[float]]:
    found = []
    for call in calls:
        sens = wrt_of(call).sens
        assert sens is not None
        found.append(sens.tolist())
    return found


def test_outputs_and_inputs_have_names_or_positions() -> None:
    asked = derivatives(TWO, HESSIAN, out="v", wrt="n", wrt2="a", sens=[1.0], vec=[[1.0], [2.0]])
    call = asked.call({"a": [1, 2], "n": 3})
    assert (call.model, call.operation, call.config) == ("two", HESSIAN, CONFIG)
    wrt = wrt_of(call)
    assert (wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2) == (1, 1, 0)
    assert wrt.vec is not None
    assert wrt.vec.tolist() == [1.0, 2.0]
    wrt = wrt_of(derivatives(TWO, GRADIENT, wrt=np.int64(1), sens=[1, 2]).call([[1, 2], 3]))
    assert type(wrt.in_wrt) is int
    assert (wrt.in_wrt, wrt.in_wrt2, wrt.vec) == (1, 0, None)


def test_the_second_input_of_a_hessian_is_the_first_if_none_is_named() -> None:
    wrt = wrt_of(derivatives(TWO, HESSIAN, wrt="n", sens=[1, 2], vec=[1.0]).call([[1, 2], 3]))
    assert (wrt.in_wrt, wrt.in_wrt2) == (1, 1)


@pytest.mark.parametrize(
    "sens",
    [
        [1.0, 2.0],
        np.array([[1.0], [2.0]]),
        [[1.0, 2.0]] * 4,
        np.tile([1, 2], (4, 1)),
        iter([[1.0, 2.0]] * 4),
        repeat(np.array([1.0, 2.0])),
        (row for row in np.tile([1.0, 2.0], (4, 1))),
    ],
    ids=repr,
)
def test_a_vector_is_for_all_points_or_for_each(sens: Any) -> None:
    calls = derivatives(MATRIX, GRADIENT, sens=sens).table(X)
    assert sens_of(calls) == [[1.0, 2.0]] * 4


def test_each_point_has_its_own_vector() -> None:
    vec = X[::-1]
    for given in (vec, vec.tolist(), vec.reshape(4, 6), iter(vec), vec.astype(np.float32)):
        calls = list(derivatives(MATRIX, JACOBIAN, vec=given).calls(X.tolist()))
        for call, x, v in zip(calls, X, vec, strict=True):
            wrt = wrt_of(call)
            assert isinstance(call, Call)
            assert wrt.vec is not None
            assert wrt.sens is None
            assert np.array_equal(call.inputs[0], x)
            assert np.array_equal(wrt.vec, v.reshape(-1))


def test_sens_of_one_entry_is_one_unless_it_is_given() -> None:
    assert sens_of(derivatives(SCALAR, BOTH).table(np.ones((2, 2)))) == [[1.0], [1.0]]
    assert sens_of([derivatives(TWO, HESSIAN, out="v", vec=[1, 2]).call([[1, 2], 3])]) == [[1.0]]
    assert sens_of([derivatives(SCALAR, GRADIENT, sens=3).call([1, 2])]) == [[3.0]]
    assert sens_of(derivatives(SCALAR, GRADIENT, sens=[[3], [4]]).table(np.ones((2, 2)))) == [
        [3.0],
        [4.0],
    ]


@pytest.mark.parametrize(
    ("operation", "about", "text"),
    [
        (GRADIENT, {"out": "w"}, r"no output is named 'w'; the outputs are u \(2,\), v \(1,\)"),
        (GRADIENT, {"out": 2}, r"no output has position 2, counted from 0; the outputs are u"),
        (GRADIENT, {"wrt": -1}, r"no input has position -1, counted from 0; the inputs are a"),
        (HESSIAN, {"wrt2": "b"}, "no input is named 'b'"),
        (GRADIENT, {}, r"sens is missing; expected \(2,\), the shape of 'u', or \(N, 2\) for N po"),
        (GRADIENT, {"sens": [1.0]}, r"sens has shape \(1,\); expected \(2,\)"),
        (GRADIENT, {"sens": [[1.0], [2.0], [3.0]]}, r"sens has shape \(3, 1\); expected \(2,\)"),
        (GRADIENT, {"sens": ["a", "b"]}, "sens is <U1"),
        (GRADIENT, {"sens": [[1.0], [2.0, 3.0]]}, "sens is not an array of numbers"),
        (GRADIENT, {"sens": [1, 2], "vec": [1, 2]}, "gradient takes no vec"),
        (BOTH, {"sens": [1, 2], "vec": [1, 2]}, "value_and_gradient takes no vec"),
        (JACOBIAN, {"sens": [1, 2], "vec": [1, 2]}, "apply_jacobian takes no sens"),
        (HESSIAN, {"sens": [1, 2]}, "vec is missing"),
        (HESSIAN, {"sens": [1, 2], "wrt2": 1, "vec": [1, 2]}, r"vec has shape .*the shape of 'n'"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    operation: Operation, about: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        derivatives(TWO, operation, **about)


def test_an_operation_that_the_model_lacks_is_refused() -> None:
    value = ModelInfo("value", SCALAR.inputs, SCALAR.outputs)
    with pytest.raises(UnsupportedFeature, match="'value' does not offer value_and_gradient"):
        derivatives(value, BOTH)
    both = ModelInfo(
        "both", SCALAR.inputs, SCALAR.outputs, frozenset({Operation.EVALUATE, GRADIENT})
    )
    assert derivatives(both, BOTH).call([1, 2]).operation is BOTH


def test_one_point_has_one_vector() -> None:
    asked = derivatives(MATRIX, GRADIENT, sens=[[1, 2], [3, 4]])
    with pytest.raises(InvalidInput, match=r"sens has a vector for each .* expected one of shape"):
        asked.call(X[0])


def test_as_many_vectors_as_points() -> None:
    for points in (X, list(X)):
        asked = derivatives(MATRIX, GRADIENT, sens=np.ones((3, 2)))
        with pytest.raises(InvalidInput, match="sens has 3 vectors for 4 points"):
            asked.table(X) if points is X else asked.calls(points)
    # Neither is counted: the error stands where the vectors end.
    calls = list(derivatives(MATRIX, GRADIENT, sens=iter([[1, 2]])).calls(iter(X)))
    assert isinstance(calls[0], Call)
    assert [str(error) for error in calls[1:]] == [
        "sens has 1 vectors; expected one for each point"
    ] * 3
    nothing: list[Any] = [np.ones((0, 2)), []]
    for none in nothing:
        assert list(derivatives(MATRIX, GRADIENT, sens=none).table(X[:0])) == []


def test_a_wrong_point_or_vector_stands_at_its_place() -> None:
    sens = [[1.0, 2.0], [1.0], "ab", [3.0, 4.0]]
    points = [X[0], X[1], X[2], [1.0]]
    calls = list(derivatives(MATRIX, GRADIENT, sens=iter(sens)).calls(points))
    assert isinstance(calls[0], Call)
    wrong = [str(call) for call in calls[1:]]
    assert wrong[0] == "sens has length 1, expected 2 numbers, the length of output 0"
    assert wrong[1].startswith("sens is <U2")
    assert wrong[2].startswith("input 'x' has shape (1,)")


def test_endless_points_are_taken_one_by_one() -> None:
    calls = derivatives(MATRIX, GRADIENT, sens=[1, 2]).calls(repeat(X[0]))
    assert sens_of(islice(calls, 3)) == [[1.0, 2.0]] * 3


def test_an_array_of_points_needs_one_input_and_for_values_one_output() -> None:
    with pytest.raises(InvalidInput, match="needs a model with one input"):
        derivatives(TWO, GRADIENT, sens=[1, 2]).table(np.ones((3, 2)))
    outputs = (TensorInfo("u", (2,)), TensorInfo("v", (-1,)))
    info = ModelInfo("fork", SCALAR.inputs, outputs, OPERATIONS)
    assert len(list(derivatives(info, GRADIENT, sens=[1, 2]).table(np.ones((3, 2))))) == 3
    with pytest.raises(InvalidInput, match="one input and one output"):
        derivatives(info, BOTH, sens=[1, 2]).table(np.ones((3, 2)))
    with pytest.raises(InvalidInput, match="fixed sizes"):
        derivatives(info, JACOBIAN, out="v", vec=[1, 2]).table(np.ones((3, 2)))


def test_results_have_the_shape_of_what_they_are_like() -> None:
    came = np.arange(6.0)
    gradient = derivatives(MATRIX, GRADIENT, sens=[1, 2]).output(Result((came,)))
    assert gradient.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    came[:] = 0.0
    assert gradient.sum() == 15.0, "a copy"
    jacobian = derivatives(MATRIX, JACOBIAN, vec=X[0])
    assert jacobian.output(Result((np.ones(2),))).shape == (2,)
    value, gradient = derivatives(MATRIX, BOTH, sens=[1, 2]).output(
        Result((np.array([3.0, 4.0]), np.ones(6)))
    )
    assert (value.tolist(), gradient.shape) == ([3.0, 4.0], (2, 3))
    values, gradient = derivatives(TWO, BOTH, out="v", wrt="n").output(
        Result((np.ones(2), np.ones(1), np.array([5.0])))
    )
    assert (sorted(values), gradient.tolist()) == (["u", "v"], [5.0])


@pytest.mark.parametrize("outputs", [(), (np.ones(2),), (np.ones(6), np.ones(6))])
def test_results_that_do_not_fit_are_refused(outputs: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidOutput, match="expected one of 6"):
        derivatives(MATRIX, GRADIENT, sens=[1, 2]).output(Result(outputs))
    with pytest.raises(InvalidOutput):
        derivatives(MATRIX, BOTH, sens=[1, 2]).output(Result(outputs))


def test_results_fill_their_rows() -> None:
    asked = derivatives(MATRIX, BOTH, sens=[1, 2])
    room = asked.room(2)
    for index in (1, 0):
        asked.put(Result((np.full(2, index), np.full(6, 10.0 * index))), room, index)
    values, gradients = room
    assert values.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert gradients.tolist() == [[[0.0] * 3] * 2, [[10.0] * 3] * 2]
    assert gradients.dtype == np.float64
    asked = derivatives(MATRIX, JACOBIAN, vec=X[0])
    room = asked.room(1)
    asked.put(Result((np.array([7.0, 8.0]),)), room, 0)
    assert room.tolist() == [[7.0, 8.0]]
