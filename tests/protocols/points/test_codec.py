"""The request for many evaluations: points in order and by name, and its answer's lines."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import DERIVATIVES, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError, InvalidInput, InvalidOutput, InvalidRequest, ModelFailed
from farm.protocols.points.codec import (
    KEYS,
    Points,
    decode_points,
    encode_error_line,
    encode_result_line,
)
from farm.protocols.umbridge.codec import OPERATIONS

MODEL = ModelInfo(
    "beam",
    inputs=(TensorInfo("load", (2,)), TensorInfo("mesh", (2, 2)), TensorInfo("n", (1,), "int64")),
    outputs=(TensorInfo("w", (2,)), TensorInfo("field", (2, 2))),
    operations=frozenset(OPERATIONS.values()),
)
IN_ORDER = [[1, 2], [[1, 2], [3, 4]], [5]]
BY_NAME = {"n": 5, "load": [1, 2], "mesh": [1, 2, 3, 4]}


def decode(message: Any) -> Points:
    return decode_points(json.dumps(message).encode())


@pytest.mark.parametrize("point", [IN_ORDER, BY_NAME])
def test_points_come_in_order_or_by_name(point: object) -> None:
    points = decode({"inputs": [point, point], "config": {"b": 1, "a": 2}})
    assert len(points) == 2
    call = points.call(1, MODEL)
    assert (call.model, call.operation, call.rows) == ("beam", Operation.EVALUATE, None)
    assert call.config == '{"a":2,"b":1}'
    load, mesh, n = call.inputs
    assert load.tolist() == [1.0, 2.0]
    assert mesh.reshape(-1).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert n.dtype == np.int64
    assert n.tolist() == [5]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ([], "the body is a list; expected a JSON object"),
        ({}, "inputs is missing; expected a list of points"),
        ({"inputs": {}}, "inputs is an object"),
        (
            {"inputs": [], "input": []},
            "'input' is not a key of this request; the keys are 'inputs'",
        ),
        ({"inputs": [], "operation": "cost"}, "operation is 'cost'; expected evaluate"),
        ({"inputs": [], "operation": ["gradient"]}, "operation is a list"),
        ({"inputs": [], "non_finite": "zero"}, "non_finite is 'zero'; expected literal, null"),
        ({"inputs": [], "config": []}, "config is a list; expected an object"),
    ],
)
def test_a_request_that_cannot_be_is_refused_as_a_whole(message: Any, expected: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(message)
    assert caught.value.message.startswith(expected)
    with pytest.raises(InvalidRequest):
        decode_points(b'{"inputs": [')


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (None, "inputs[1] is null; expected a list or an object"),
        ([[1, 2]], "inputs[1] has 1 inputs; model 'beam' expects 3"),
        ({"load": [1, 2]}, "inputs[1] has the inputs 'load'; expected 'load', 'mesh', 'n'"),
        ([[1, None], [1, 2, 3, 4], [5]], "inputs[1][0][1] is null; expected a number"),
        (
            [[1, 2], [[1, 2], [3]], [5]],
            "inputs[1][1][1] has length 1, inputs[1][1][0] has length 2",
        ),
    ],
)
def test_a_point_that_cannot_be_is_refused_alone(point: Any, expected: str) -> None:
    points = decode({"inputs": [IN_ORDER, point, IN_ORDER]})
    with pytest.raises(InvalidInput) as caught:
        points.call(1, MODEL)
    assert caught.value.message.startswith(expected)
    assert points.call(2, MODEL).inputs[0].tolist() == [1.0, 2.0]


def gradient(**more: Any) -> dict[str, Any]:
    request = {"inputs": [IN_ORDER, BY_NAME], "operation": "gradient", "outWrt": 0, "inWrt": 1}
    return request | more


def sens(points: Points, index: int) -> list[float]:
    derivative = points.call(index, MODEL).derivative
    assert derivative is not None
    assert derivative.sens is not None
    return derivative.sens.tolist()  # type: ignore[no-any-return]  # numpy says Any


def test_derivatives_take_one_vector_for_all_or_one_for_each() -> None:
    shared = decode(gradient(sens=[1, 2]))
    assert [sens(shared, i) for i in (0, 1)] == [[1.0, 2.0], [1.0, 2.0]]
    each = decode(gradient(sens=[[1, 2], [3, 4]]))
    assert [sens(each, i) for i in (0, 1)] == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(InvalidInput, match="sens has 1 vectors for 2 points"):
        decode(gradient(sens=[[1, 2]])).call(0, MODEL)
    with pytest.raises(InvalidInput, match="sens is missing"):
        decode(gradient()).call(0, MODEL)


def test_lines_are_nested_like_the_outputs_in_the_form_of_the_inputs() -> None:
    outputs = (np.array([1.0, math.nan]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    result = Result(outputs, run_time_s=0.25, worker="node3/1-ab", queue_time_s=0.5)
    in_order = encode_result_line(decode({"inputs": [IN_ORDER]}).form, 0, MODEL, result)
    assert in_order == (
        b'{"index":0,"status":"done","outputs":[[1.0,NaN],[[1.0,2.0],[3.0,4.0]]],'
        b'"run_time_s":0.25,"queue_time_s":0.5,"worker":"node3/1-ab"}\n'
    )
    by_name = encode_result_line(decode({"inputs": [BY_NAME]}).form, 7, MODEL, result)
    assert by_name.startswith(b'{"index":7,"status":"done","outputs":{"w":[1.0,NaN],"field":[[1.0')


def test_the_line_of_a_derivative_holds_one_flat_vector_and_with_the_value_both() -> None:
    line = encode_result_line(decode(gradient(sens=[1, 2])).form, 1, MODEL, Result((np.ones(4),)))
    assert json.loads(line)["outputs"] == [[1.0, 1.0, 1.0, 1.0]]
    outputs = (np.array([1.0, 2.0]), np.ones((2, 2)), np.array([5.0, math.inf]))
    for inputs, expected in (
        ([IN_ORDER], [[1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]]]),
        ([BY_NAME], {"w": [1.0, 2.0], "field": [[1.0, 1.0], [1.0, 1.0]]}),
    ):
        asked = decode(gradient(inputs=inputs, sens=[1, 2], operation="value_and_gradient"))
        call = asked.call(0, MODEL)
        assert call.operation is Operation.VALUE_AND_GRADIENT
        assert call.derivative is not None
        assert call.derivative.sens is not None
        both = json.loads(encode_result_line(asked.form, 1, MODEL, Result(outputs)))
        assert (both["outputs"], both["gradient"]) == (expected, [5.0, math.inf])
    strict = gradient(inputs=[IN_ORDER], operation="value_and_gradient", non_finite="error")
    with pytest.raises(InvalidOutput, match=r"gradient\[1\] is inf"):
        encode_result_line(decode(strict).form, 0, MODEL, Result(outputs))


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ({}, "sens is missing"),
        ({"sens": [1, "a"]}, r"sens\[1\] is a string"),
        ({"sens": [[1, 2], "x"]}, "sens is a string"),
        ({"sens": [[[1, 2]], [[1, 2]]]}, r"sens\[0\] is a list"),
        ({"sens": {"a": 1}}, "sens is an object"),
        ({"sens": [1, 2], "outWrt": 0.5}, "outWrt is a number; expected a whole number"),
        ({"sens": [1, 2], "inWrt": True}, "inWrt is"),
    ],
)
def test_a_derivative_that_cannot_be_is_refused_at_each_point(
    about: dict[str, Any], text: str
) -> None:
    asked = decode(gradient(operation="value_and_gradient", **about))
    with pytest.raises(InvalidInput, match=text):
        asked.call(1, MODEL)


def test_the_request_chooses_how_non_finite_numbers_are_written() -> None:
    result = Result((np.array([1.0, math.inf]), np.zeros((2, 2))))
    as_null = decode({"inputs": [IN_ORDER], "non_finite": "null"})
    assert json.loads(encode_result_line(as_null.form, 0, MODEL, result))["outputs"][0] == [
        1.0,
        None,
    ]
    as_error = decode({"inputs": [BY_NAME], "non_finite": "error"})
    with pytest.raises(InvalidOutput, match=r"output 'w'\[1\] is inf"):
        encode_result_line(as_error.form, 0, MODEL, result)
    assert decode_points(b'{"inputs":[]}', non_finite=NonFinite.NULL).non_finite == "null"


def test_the_line_of_an_error_says_what_happened() -> None:
    line = encode_error_line(3, ModelFailed("no \udcff mesh", detail="Traceback"))
    assert json.loads(line) == {
        "index": 3,
        "status": "failed",
        "error": {"type": "ModelFailed", "message": "no ? mesh"},
    }
    assert line.endswith(b"}\n")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted(KEYS)), values) | values)
def test_any_json_gives_points_or_a_farm_error(message: Any) -> None:
    with contextlib.suppress(FarmError):
        points = decode(message)
        for index in range(len(points)):
            points.call(index, MODEL)


@given(
    st.lists(values, min_size=1), st.sampled_from([Operation.EVALUATE.value, *sorted(DERIVATIVES)])
)
def test_any_point_gives_a_call_or_a_farm_error(inputs: list[Any], operation: str) -> None:
    points = decode(gradient(inputs=inputs, sens=[1], operation=operation, inWrt1=0, inWrt2=0))
    for index in range(len(points)):
        with contextlib.suppress(FarmError):
            points.call(index, MODEL)
