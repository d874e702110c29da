"""The server half: every request, malformed ones, answers byte by byte, all errors."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelNotFound,
    UnsupportedFeature,
)
from farm.protocols.umbridge.codec import (
    OPERATIONS,
    Endpoint,
    Question,
    decode_request,
    encode_result,
)

EVERY = frozenset(OPERATIONS.values())
SMOOTH = ModelInfo(
    "smooth",
    inputs=(TensorInfo("a", (3,)), TensorInfo("b", (2,))),
    outputs=(TensorInfo("y", (2,)), TensorInfo("field", (8, 8))),
    operations=EVERY,
)
PLAIN = ModelInfo("plain", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))
MODELS = {"smooth": SMOOTH, "plain": PLAIN}

GRADIENT: dict[str, Any] = {
    "name": "smooth",
    "outWrt": 0,
    "inWrt": 1,
    "input": [[0.1, 0.2, 0.3], [4.0, 5.0]],
    "sens": [1.0, 2.0],
}


def decode(path: str, message: Any, models: dict[str, ModelInfo] = MODELS) -> Question | Call:
    return decode_request(path, json.dumps(message).encode(), models)


def decoded_call(path: str, message: Any) -> Call:
    request = decode(path, message)
    assert isinstance(request, Call)
    return request


def test_sizes_belong_to_a_config_in_its_canonical_form() -> None:
    request = decode("/InputSizes", {"config": {"b": 1, "a": [None, "x"]}, "name": "plain"})
    assert request == Question(Endpoint.INPUT_SIZES, "plain", '{"a":[null,"x"],"b":1}')
    expected = Question(Endpoint.MODEL_INFO, "plain")
    assert decode("/ModelInfo", {"name": "plain", "config": [3]}) == expected


def test_evaluate_golden_bytes_of_the_cpp_client() -> None:
    body = b'{"config":{},"input":[[3.0,4.0],[5.0]],"name":"smooth"}'
    call = decode_request("/Evaluate", body, MODELS)
    assert isinstance(call, Call)
    assert (call.model, call.operation, call.config) == ("smooth", Operation.EVALUATE, "{}")
    assert (call.rows, call.derivative) == (None, None)
    assert [x.tolist() for x in call.inputs] == [[3.0, 4.0], [5.0]]
    assert all(x.dtype == np.float64 for x in call.inputs)


def test_hessian_golden_bytes_of_the_python_client() -> None:
    body = (
        b'{"name": "smooth", "outWrt": 0, "inWrt1": 0, "inWrt2": 1, "input": [[0.1, 0.2, 0.3], '
        b'[4.0, 5.0]], "sens": [1.0, 1.0], "vec": [1.0, 2.0], "config": {}}'
    )
    call = decode_request("/ApplyHessian", body, MODELS)
    assert isinstance(call, Call)
    wrt = call.derivative
    assert wrt is not None
    assert (call.operation, wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2) == ("apply_hessian", 0, 0, 1)
    assert wrt.sens is not None
    assert wrt.vec is not None
    assert (wrt.sens.tolist(), wrt.vec.tolist()) == ([1.0, 1.0], [1.0, 2.0])


def test_gradient_golden_bytes_of_the_r_client() -> None:
    body = (
        b'{"name":"smooth","outWrt":0,"inWrt":0,"input":[[0.1235,1e-07]],'
        b'"sens":[1,2,3],"config":{}}'
    )
    call = decode_request("/Gradient", body, MODELS)
    assert isinstance(call, Call)
    assert call.derivative is not None
    assert call.derivative.sens is not None
    assert call.derivative.vec is None
    vectors = (call.inputs[0], call.derivative.sens)
    assert [v.tolist() for v in vectors] == [[0.1235, 1e-7], [1.0, 2.0, 3.0]]


def nested(depth: int) -> dict[str, Any]:
    config: dict[str, Any] = {"a": 1}
    for _ in range(depth - 1):
        config = {"a": config}
    return config


@pytest.mark.parametrize(
    "config", [{}, None, {"seed": 2**128 + 1, "near": 2**64 - 1}, nested(99)], ids=range(4)
)
def test_a_config_keeps_whole_numbers_of_any_length(config: Any) -> None:
    message = {"name": "plain", "input": [[1]]}
    assert json.loads(decoded_call("/Evaluate", {**message, "config": config}).config) == (
        config or {}
    )
    assert decoded_call("/Evaluate", message).config == "{}"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "config is a list; expected an object"),
        ("mesh", "config is a string; expected an object"),
        (0, "config is a number; expected an object"),
        (False, "config is false; expected an object"),
        (nested(101), "config is nested more than 100 deep"),
        (nested(900), "config is nested more than 100 deep"),
    ],
)
def test_other_configs_are_refused(config: object, message: str) -> None:
    for path in ("/Evaluate", "/InputSizes"):
        with pytest.raises(InvalidInput) as caught:
            decode(path, {"name": "plain", "input": [[1]], "config": config})
        assert caught.value.message == message


def test_matlab_scalars_count_as_vectors_of_length_one() -> None:
    call = decoded_call("/Evaluate", {"name": "smooth", "input": [[1, 2, 3], 5]})
    assert [x.tolist() for x in call.inputs] == [[1.0, 2.0, 3.0], [5.0]]
    wrt = decoded_call("/Gradient", {**GRADIENT, "sens": 1.5}).derivative
    assert wrt is not None
    assert wrt.sens is not None
    assert wrt.sens.tolist() == [1.5]


@pytest.mark.parametrize(
    ("index", "what"),
    [(1.5, "a number"), ("1", "a string"), (None, "null"), (True, "true"), (math.inf, "a number")],
)
def test_only_whole_numbers_are_indices(index: object, what: str) -> None:
    wrt = decoded_call("/Gradient", {**GRADIENT, "inWrt": 1.0}).derivative
    assert wrt is not None
    assert (wrt.in_wrt, type(wrt.in_wrt)) == (1, int)
    with pytest.raises(InvalidInput) as caught:
        decode("/Gradient", {**GRADIENT, "outWrt": index})
    expected = f"outWrt is {what}; expected a whole number, and indices count from 0"
    assert caught.value.message == expected


def test_a_model_of_whole_numbers_gets_whole_numbers() -> None:
    counts = ModelInfo("counts", (TensorInfo("n", (2,), "int64"),), PLAIN.outputs)
    body = b'{"name": "counts", "input": [[1, 2.0]]}'
    call = decode_request("/Evaluate", body, {"counts": counts})
    assert isinstance(call, Call)
    assert call.inputs[0].dtype == np.int64
    assert call.inputs[0].tolist() == [1, 2]


MALFORMED: list[tuple[str, Any, str]] = [
    ("/Evaluate", {"name": "plain"}, "input is missing; expected a list of vectors"),
    ("/Evaluate", {"name": "plain", "input": 5}, "input is a number"),
    ("/Evaluate", {"name": "plain", "input": {"x": [1]}}, "input is an object"),
    ("/Evaluate", {"name": "plain", "input": [[1, "NaN"]]}, "input[0][1] is a string"),
    (
        "/Evaluate",
        {"name": "plain", "input": [[]] * 10_001},
        "input has 10001 entries; expected a list of at most 10000 vectors",
    ),
    ("/Evaluate", {"name": "plain", "input": [1, 2]}, "input is a flat list of 2 numbers"),
    ("/Evaluate", [], "the body is a list; expected a JSON object"),
    ("/Evaluate", {}, "name is missing"),
    ("/Evaluate", {"name": 3}, "name is a number"),
    ("/ModelInfo", {"nome": "smooth"}, "name is missing"),
    ("/Gradient", {"name": "smooth"}, "input is missing"),
    ("/Gradient", {**GRADIENT, "sens": None}, "sens is null; expected a list of numbers"),
    ("/Gradient", {**GRADIENT, "sens": [1, "2"]}, "sens[1] is a string"),
    ("/ApplyJacobian", GRADIENT, "vec is missing; expected a list of numbers"),
    ("/ApplyHessian", GRADIENT, "inWrt1 is missing; expected a whole number"),
]


@pytest.mark.parametrize(("path", "message", "expected"), MALFORMED)
def test_malformed_requests_say_what_is_wrong_and_where(
    path: str, message: Any, expected: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(path, message)
    assert caught.value.message.startswith(expected)


def test_the_order_of_checks_is_json_then_name_then_feature_then_keys_then_types() -> None:
    for body in (b"{", b"name=smooth", b"\x80abc"):
        with pytest.raises(InvalidRequest):
            decode_request("/Evaluate", body, MODELS)
    with pytest.raises(ModelNotFound):
        decode("/Gradient", {"name": "nope"})
    with pytest.raises(UnsupportedFeature, match="does not offer Gradient; it offers Evaluate"):
        decode("/Gradient", {"name": "plain"})
    with pytest.raises(UnsupportedFeature):
        decode("/Gradient", {"name": "plain", "config": 3})
    with pytest.raises(InvalidInput, match="config is"):
        decode("/Gradient", {"name": "smooth", "config": 3})


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ModelNotFound, match="the models are 'smooth', 'plain'"):
        decode("/InputSizes", {"name": "Smooth"})
    many = {f"m{i}": PLAIN for i in range(1000)}
    with pytest.raises(ModelNotFound) as caught:
        decode("/Evaluate", {"name": "x" * 10**6}, many)
    assert len(caught.value.message) < 500
    assert caught.value.message.endswith("'m19' and 980 more")


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_asks_for_the_first_model(body: bytes) -> None:
    blind = ModelInfo("blind", PLAIN.inputs, PLAIN.outputs, operations=frozenset())
    with pytest.raises(UnsupportedFeature, match="it offers nothing"):
        decode_request("/Evaluate", body, {"blind": blind, **MODELS})
    with pytest.raises(InvalidInput, match="body is empty"):
        decode_request("/Evaluate", body, MODELS)
    with pytest.raises(InvalidInput, match="name is missing"):
        decode_request("/ModelInfo", body, MODELS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
keys = ["name", "input", "config", "outWrt", "inWrt", "inWrt1", "inWrt2", "sens", "vec"]
messages = st.fixed_dictionaries(
    {"name": st.sampled_from(["smooth", "plain"])},
    optional=dict.fromkeys(keys[1:], json_values),
)


@given(st.sampled_from(list(Endpoint)), messages | json_values)
def test_any_json_gives_a_request_or_a_farm_error(path: str, message: Any) -> None:
    with contextlib.suppress(FarmError):
        decode(path, message)


@given(st.sampled_from(list(Endpoint)), st.binary(max_size=100))
def test_any_bytes_give_a_request_or_a_farm_error(path: str, body: bytes) -> None:
    with contextlib.suppress(FarmError):
        decode_request(path, body, MODELS)


def test_evaluate_answers_with_a_list_of_flat_vectors_of_float64() -> None:
    call = Call("smooth", Operation.EVALUATE)
    outputs = (
        np.array([12.0, 5.0]),
        np.arange(4).reshape(2, 2),
        np.array(True),
        np.array([0.1], np.float32),
        np.array([]),
    )
    expected = b'{"output":[[12.0,5.0],[0.0,1.0,2.0,3.0],[1.0],[0.10000000149011612],[]]}'
    assert encode_result(call, Result(outputs)) == expected


def test_non_finite_outputs_follow_the_choice_and_texts_are_refused() -> None:
    evaluate = Call("smooth", Operation.EVALUATE)
    result = Result((np.array([1.0]), np.array([2.0, math.nan, -math.inf])))
    assert encode_result(evaluate, result) == b'{"output":[[1.0],[2.0,NaN,-Infinity]]}'
    as_null = encode_result(evaluate, result, NonFinite.NULL)
    assert as_null == b'{"output":[[1.0],[2.0,null,null]]}'
    with pytest.raises(InvalidOutput, match=r"output\[1\]\[1\] is nan"):
        encode_result(evaluate, result, NonFinite.ERROR)
    with pytest.raises(UnsupportedFeature, match=r"output\[0\] holds texts"):
        encode_result(evaluate, Result((np.array([b"a"], object),)))
