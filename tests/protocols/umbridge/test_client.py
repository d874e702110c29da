"""The client half with the server half, and with answers seen from other servers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Array, Call, Derivative, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.errors import encode_error
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    Unavailable,
)
from farm.protocols.umbridge.client import (
    decode_info,
    decode_model_info,
    decode_response,
    decode_sizes,
    encode_question,
    encode_request,
)
from farm.protocols.umbridge.codec import (
    OPERATIONS,
    Endpoint,
    Question,
    decode_request,
    encode_info,
    encode_model_info,
    encode_result,
    encode_sizes,
)

MODEL = ModelInfo(
    "smooth",
    inputs=(TensorInfo("a", (3,)), TensorInfo("b", (2,))),
    outputs=(TensorInfo("y", (2,)), TensorInfo("field", (4, 4))),
    operations=frozenset(OPERATIONS.values()),
)
EVALUATE = Call("smooth", Operation.EVALUATE)
GRADIENT = Call("smooth", Operation.GRADIENT, derivative=Derivative(0, 0))

vectors = st.lists(st.floats(), max_size=5).map(lambda v: np.array(v, dtype=np.float64))


def same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=True)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    operation = draw(st.sampled_from(list(OPERATIONS.values())))
    hessian = operation is Operation.APPLY_HESSIAN
    derivative = None
    if operation is not Operation.EVALUATE:
        derivative = Derivative(
            out_wrt=draw(st.integers(0, 9)),
            in_wrt=draw(st.integers(0, 9)),
            in_wrt2=draw(st.integers(0, 9)) if hessian else 0,
            sens=None if operation is Operation.APPLY_JACOBIAN else draw(vectors),
            vec=None if operation is Operation.GRADIENT else draw(vectors),
        )
    inputs = tuple(draw(st.lists(vectors, max_size=3)))
    config = draw(st.sampled_from(["{}", '{"mesh":"fine","n":[1,null]}']))
    return Call("smooth", operation, inputs, config, derivative)


@given(calls())
def test_calls_survive_the_way_from_client_to_server(call: Call) -> None:
    path, body = encode_request(call)
    arrived = decode_request(path, body, {"smooth": MODEL})
    assert isinstance(arrived, Call)
    assert (arrived.model, arrived.operation) == (call.model, call.operation)
    assert arrived.config == call.config
    assert all(map(same, arrived.inputs, call.inputs))
    assert len(arrived.inputs) == len(call.inputs)
    if call.derivative is None:
        assert arrived.derivative is None
        return
    there, here = arrived.derivative, call.derivative
    assert there is not None
    indices = (here.out_wrt, here.in_wrt, here.in_wrt2)
    assert (there.out_wrt, there.in_wrt, there.in_wrt2) == indices
    assert same(there.sens, here.sens)
    assert same(there.vec, here.vec)


@given(calls(), st.lists(vectors, min_size=1, max_size=3))
def test_results_survive_the_way_back(call: Call, outputs: list[Array]) -> None:
    if call.operation is not Operation.EVALUATE:
        outputs = outputs[:1]
    body = encode_result(call, Result(tuple(outputs)))
    back = decode_response(call, 200, {}, body)
    assert len(back.outputs) == len(outputs)
    assert all(map(same, back.outputs, outputs))


def test_tensors_travel_flat_behind_the_keys_in_the_order_of_the_official_client() -> None:
    wrt = Derivative(0, 0, 1, np.array([1.0, 1.0]), np.array([2.0]))
    inputs = (np.arange(4).reshape(2, 2), np.array(0.1))
    path, body = encode_request(Call("smooth", Operation.APPLY_HESSIAN, inputs, "{}", wrt))
    assert path == "/ApplyHessian"
    assert body == (
        b'{"name":"smooth","outWrt":0,"inWrt1":0,"inWrt2":1,"input":[[0.0,1.0,2.0,3.0],[0.1]],'
        b'"sens":[1.0,1.0],"vec":[2.0],"config":{}}'
    )
    with pytest.raises(InvalidRequest, match="one point a call"):
        encode_request(Call("m", Operation.EVALUATE, (np.ones((5, 2)),), rows=5))


def test_questions_and_their_answers() -> None:
    assert encode_question(Question(Endpoint.INFO)) == ("/Info", b"")
    assert encode_question(Question(Endpoint.MODEL_INFO, "m")) == ("/ModelInfo", b'{"name":"m"}')
    asked = Question(Endpoint.OUTPUT_SIZES, "smooth", '{"n":2}')
    path, body = encode_question(asked)
    assert decode_request(path, body, {"smooth": MODEL}) == asked
    assert decode_info(200, {}, encode_info({"a": MODEL, "b": MODEL})) == ("a", "b")
    assert decode_model_info(200, {}, encode_model_info(MODEL)) == MODEL.operations
    assert decode_sizes(asked, 200, {}, encode_sizes(asked.endpoint, MODEL)) == (2, 16)
    asked = Question(Endpoint.INPUT_SIZES, "smooth")
    assert decode_sizes(asked, 200, {}, encode_sizes(asked.endpoint, MODEL)) == (3, 2)


def test_every_error_comes_back_as_the_same_class() -> None:
    for kind in FarmError.kinds.values():
        status, body = encode_error(kind("what happened"))
        expected = InvalidInput if kind is InvalidRequest else kind
        with pytest.raises(expected) as caught:
            decode_response(EVALUATE, status, {}, body)
        assert (type(caught.value), caught.value.message) == (expected, "what happened")


def test_headers_of_a_farm_give_times_and_worker() -> None:
    def told(**headers: str) -> Result:
        sent = {f"farm-{name.replace('_', '-')}": value for name, value in headers.items()}
        return decode_response(EVALUATE, 200, sent, b'{"output":[[1]]}')

    result = told(run_time="0.25", queue_time="1.5", worker="node3/1-ab")
    assert (result.run_time_s, result.queue_time_s, result.worker) == (0.25, 1.5, "node3/1-ab")
    marks = [told(), told(reused="true"), told(copied="true")]
    assert [(r.copied, r.reused) for r in marks] == [(False, False), (False, True), (True, False)]
    bare = told(run_time="soon")
    assert (bare.run_time_s, bare.queue_time_s, bare.worker) == (0.0, 0.0, "")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"output": [[nan, -inf], [inf, 1.5]] }', [[math.nan, -math.inf], [math.inf, 1.5]]),
        (b'{"output": [[np.float64(1.5), np.float64(nan), np.int64(-2)]] }', [[1.5, math.nan, -2]]),
        (b'{"output": [[NaN, Infinity, -Infinity]]}', [[math.nan, math.inf, -math.inf]]),
        (b'{"output":[[null,1.0]]}', [[math.nan, 1.0]]),
        (b'{"output": [[12, 5], []]}', [[12.0, 5.0], []]),
    ],
)
def test_quirks_of_other_servers_are_read(body: bytes, expected: list[list[float]]) -> None:
    outputs = decode_response(EVALUATE, 200, {}, body).outputs
    assert len(outputs) == len(expected)
    for output, values in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, values)
    (flat,) = decode_response(GRADIENT, 200, {}, b'{"output": [1, null]}').outputs
    np.testing.assert_array_equal(flat, [1, math.nan])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"output": [[1.0, None]] }', "output[0][1] is a string"),
        (b'{"output": [[True]] }', "output[0][0] is true"),
        (b"{\"output\": [['a']] }", "cannot be read"),
        (b'{"output": [["a", null]]}', "output[0][0] is a string"),
        (b'{"output": [array([1., 2.])]}', "cannot be read"),
        (b'{"output": 3}', "output is a number; expected a list of vectors"),
        (b'{"output": null}', "output is null"),
        (b'{"result": []}', "the answer has no 'output'; its keys are ['result']"),
        (b'{"output": [[1e999]]}', "cannot be read"),
        (b"null", "answer is null"),
        (b"", "cannot be read"),
        (b"<html>busy</html>", "cannot be read"),
    ],
)
def test_an_answer_that_is_none_is_an_invalid_output(body: bytes, message: str) -> None:
    with pytest.raises(InvalidOutput) as caught:
        decode_response(EVALUATE, 200, {}, body)
    assert message in caught.value.message
    with pytest.raises(InvalidOutput, match=r"output\[0\] is a list"):
        decode_response(GRADIENT, 200, {}, b'{"output": [[1, 2]]}')


def named(kind: str) -> bytes:
    """An error of another server that says its kind."""
    return b'{"error": {"type": "%b", "message": "it diverged"}}' % kind.encode()


PYTHON_CRASH = b"500 Internal Server Error\n\nServer got itself in trouble"


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "message"),
    [
        (500, {}, PYTHON_CRASH, ModelFailed, "500 Internal Server Error Server got itself"),
        (500, {"exception_what": "mesh is empty"}, b"", ModelFailed, "mesh is empty"),
        (500, {}, b"", ModelFailed, "an empty body"),
        (302, {"location": "https://example.org/"}, b"", Unavailable, "status 302"),
        (404, {}, b"", Unavailable, "status 404"),
        (401, {}, b"who are you", Unavailable, "user:password@host"),
        (502, {}, b"<html>Bad Gateway</html>", Unavailable, "Bad Gateway"),
        (503, {}, b"[]", Unavailable, "status 503"),
        (500, {}, b'{"detail": "x"}', ModelFailed, '{"detail": "x"}'),
        (500, {}, b"x" * 10**6, ModelFailed, "xxx..."),
        (500, {}, named("InvalidEvaluation"), ModelFailed, "InvalidEvaluation: it diverged"),
        (200, {}, named("ModelNotFound"), ModelNotFound, "it diverged"),
    ],
)
def test_failures_in_other_forms_become_errors(
    status: int, headers: dict[str, str], body: bytes, kind: type[FarmError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        decode_response(EVALUATE, status, headers, body)
    assert message in caught.value.message
    assert len(caught.value.message) < 300


def test_a_server_of_another_kind_is_told_apart() -> None:
    with pytest.raises(InvalidRequest, match=r"speaks UM-Bridge '0\.9'"):
        decode_info(200, {}, b'{"protocolVersion": "0.9", "inputSizes": [1]}')
    with pytest.raises(InvalidRequest, match="speaks UM-Bridge None"):
        decode_info(200, {}, b'{"status": "ok"}')
    with pytest.raises(InvalidOutput, match="list of names"):
        decode_info(200, {}, b'{"protocolVersion": 1, "models": [3]}')
    with pytest.raises(InvalidOutput, match="support is a list"):
        decode_model_info(200, {}, b'{"support": ["Evaluate"]}')
    assert decode_model_info(200, {}, b'{"support": {"Evaluate": true, "Gradient": "no"}}') == {
        Operation.EVALUATE
    }


@pytest.mark.parametrize("sizes", ["[1.5]", "[-1]", "[null]", '["3"]', "{}"])
def test_sizes_are_whole_numbers(sizes: str) -> None:
    asked = Question(Endpoint.INPUT_SIZES, "m")
    with pytest.raises(InvalidOutput, match="inputSizes"):
        decode_sizes(asked, 200, {}, b'{"inputSizes": %b}' % sizes.encode())


@given(st.integers(100, 599), st.binary(max_size=100))
def test_any_answer_gives_a_result_or_a_farm_error(status: int, body: bytes) -> None:
    for call in (EVALUATE, GRADIENT):
        try:
            decode_response(call, status, {}, body)
        except FarmError:
            continue
        assert status == 200
