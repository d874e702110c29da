"""The request for many evaluations: the client half with the server half."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import (
    DERIVATIVES,
    TAKE_SENS,
    TAKE_VEC,
    Array,
    Call,
    Derivative,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
)
from farm.errors import FarmError, InvalidOutput, InvalidRequest, ModelFailed
from farm.protocols.points.client import alike, decode_line, encode_points
from farm.protocols.points.codec import decode_points, encode_error_line, encode_result_line

MODEL = ModelInfo(
    "m",
    (TensorInfo("x", (2, 2)), TensorInfo("k", (1,), "int64")),
    (TensorInfo("y", (2,)), TensorInfo("z", ()), TensorInfo("t", (1, 2))),
)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def call(x: list[float], k: int, config: str = "{}") -> Call:
    inputs = (np.array(x).reshape(2, 2), np.array([k]))
    return Call("m", Operation.EVALUATE, inputs, config)


@given(st.lists(st.tuples(st.lists(NUMBERS, min_size=4, max_size=4), st.integers(-9, 9))))
def test_calls_arrive_as_they_were(points: list[tuple[list[float], int]]) -> None:
    calls = [call(x, k, '{"a":[1,2]}') for x, k in points] or [
        call([1.0, 2.0, 3.0, 4.0], 5, '{"a":[1,2]}')
    ]
    heard = decode_points(encode_points(calls))
    assert len(heard) == len(calls)
    for i, sent in enumerate(calls):
        got = heard.call(i, MODEL)
        assert (got.model, got.operation, got.config) == ("m", "evaluate", sent.config)
        for a, b in zip(got.inputs, sent.inputs, strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b, equal_nan=True)


def differentiated(
    operation: Operation, *, sens: Array | None = None, vec: Array | None = None, out: int = 1
) -> Call:
    second = 1 if operation is Operation.APPLY_HESSIAN else 0
    return replace(
        call([1.0, 2.0, 3.0, 4.0], 5),
        operation=operation,
        derivative=Derivative(out, 0, second, sens, vec),
    )


@pytest.mark.parametrize("operation", sorted(DERIVATIVES))
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=4), shared=st.booleans())
def test_derivatives_arrive_as_they_were(
    operation: Operation, numbers: list[float], shared: bool
) -> None:
    one = np.array([7.0, 8.0])
    vectors = [one if shared else np.array([number, 1.0]) for number in numbers]
    calls = [
        differentiated(
            operation,
            sens=vector if operation in TAKE_SENS else None,
            vec=vector if operation in TAKE_VEC else None,
        )
        for vector in vectors
    ]
    body = encode_points(calls)
    if shared:
        assert body.count(b"[7.0,8.0]") == (operation in TAKE_SENS) + (operation in TAKE_VEC)
    heard = decode_points(body)
    for i, sent in enumerate(calls):
        got = heard.call(i, MODEL)
        assert got.operation is operation
        wrt, expected = got.derivative, sent.derivative
        assert wrt is not None
        assert expected is not None
        assert (wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2) == (1, 0, expected.in_wrt2)
        for a, b in ((wrt.sens, expected.sens), (wrt.vec, expected.vec)):
            assert (a is None) == (b is None)
            assert a is None or b is None or np.array_equal(a, b, equal_nan=True)


def test_only_calls_of_one_kind_share_a_request() -> None:
    x = call([1.0, 2.0, 3.0, 4.0], 5)
    gradient = differentiated(Operation.GRADIENT, sens=np.ones(2))
    assert alike(x, call([0.0] * 4, 6))
    assert alike(gradient, differentiated(Operation.GRADIENT, sens=np.zeros(2)))
    for a, b in (
        (x, gradient),
        (gradient, differentiated(Operation.VALUE_AND_GRADIENT, sens=np.ones(2))),
        (gradient, differentiated(Operation.GRADIENT, sens=np.ones(2), out=0)),
        (x, replace(x, config='{"a":1}')),
        (x, replace(x, model="n")),
        (x, replace(x, rows=1)),
        (replace(x, rows=1), replace(x, rows=1)),
    ):
        assert not alike(a, b)
    cost = replace(x, operation=Operation.COST)
    assert not alike(cost, cost)


@given(st.lists(NUMBERS, min_size=7, max_size=7), st.integers(0, 3), st.booleans())
def test_results_arrive_as_they_were(numbers: list[float], index: int, both: bool) -> None:
    """both: the values with a gradient beside them."""
    outputs: list[Array]
    outputs = [np.array(numbers[:2]), np.array(numbers[2]), np.array([numbers[3:5]])]
    asked = call([1, 2, 3, 4], 1)
    if both:
        outputs.append(np.array(numbers[5:]))
        asked = differentiated(Operation.VALUE_AND_GRADIENT, sens=np.ones(2))
    points = decode_points(encode_points([asked] * 4))
    copied, reused = index == 1, index == 2
    result = Result(
        tuple(outputs), 0.25, worker="w/1", queue_time_s=0.5, copied=copied, reused=reused
    )
    got_index, got = decode_line(encode_result_line(points.form, index, MODEL, result))
    assert got_index == index
    assert isinstance(got, Result)
    assert (got.run_time_s, got.queue_time_s, got.worker) == (0.25, 0.5, "w/1")
    assert (got.copied, got.reused) == (copied, reused)
    for a, b in zip(got.outputs, outputs, strict=True):
        assert np.array_equal(a, np.atleast_1d(b), equal_nan=True)


@pytest.mark.parametrize("kind", FarmError.kinds.values())
def test_errors_arrive_as_they_were(kind: type[FarmError]) -> None:
    index, got = decode_line(encode_error_line(3, kind("what it is")))
    assert index == 3
    assert isinstance(got, FarmError)
    assert got.message == "what it is"


def test_an_error_of_an_unknown_class_is_the_models() -> None:
    line = b'{"index": 0, "status": "failed", "error": {"type": "New", "message": "it"}}'
    _, got = decode_line(line)
    assert isinstance(got, ModelFailed)
    assert got.message == "New: it"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"null",
        b'{"index": "0", "status": "done"}',
        b'{"index": 0, "status": "failed", "error": 1}',
        b'{"index": 0, "status": "done", "outputs": 5, "run_time_s": 1}',
        b'{"index": 0, "status": "done", "outputs": [], "run_time_s": "x"}',
    ],
)
def test_what_is_no_line_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_line(line)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (b'"outputs": [["a"]]', "output[0][0] is a string"),
        (b'"outputs": [[1]], "gradient": {"a": 1}', "gradient is an object"),
    ],
)
def test_outputs_that_are_no_numbers_fail_their_point_alone(members: bytes, text: str) -> None:
    times = b'"run_time_s": 1, "queue_time_s": 1, "worker": "w"'
    index, got = decode_line(b'{"index": 2, "status": "done", %b, %b}' % (members, times))
    assert index == 2
    assert isinstance(got, InvalidOutput)
    assert text in got.message


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_an_error(line: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_line(line)
