"""HTTP bodies: JSON and binary requests, hostile ones, answers byte by byte."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm.call import Array, ModelInfo, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import InvalidInput, InvalidOutput, InvalidRequest, UnsupportedFeature
from farm.protocols.kserve.request import (
    IN_REGION,
    InferRequest,
    OutputForm,
    RequestedOutput,
    Wish,
    WishedOutput,
    call_of,
)
from farm.protocols.kserve.rest.codec import (
    decode_infer,
    decode_object,
    decode_raw,
    encode_error,
    encode_infer,
    error_body,
    parameters_in,
    ready_only,
)
from farm.protocols.kserve.shared_memory.places import Place

X = {"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, 3, 4]}
RAW = {"name": "x", "shape": [2, 2], "datatype": "FP64", "parameters": {"binary_data_size": 32}}
FOUR = np.arange(4.0).tobytes()


def decoded(message: Any, tail: bytes | None = None) -> InferRequest:
    """Decode a request; with a tail, in the binary form."""
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    if tail is None:
        return decode_infer("m", "", text)
    return decode_infer("m", "", text + tail, b"%d" % len(text))


def test_a_request_as_the_specification_shows_it() -> None:
    # Open Inference Protocol, "Inference Request Examples"
    request = decode_infer(
        "mymodel",
        "3",
        b"""{
          "id" : "42",
          "inputs" : [
            { "name" : "input0", "shape" : [2, 2], "datatype" : "UINT32", "data" : [1, 2, 3, 4] },
            { "name" : "input1", "shape" : [3], "datatype" : "BOOL", "data" : [true ,false,true] }
          ],
          "outputs" : [ { "name" : "output0" } ]
        }""",
    )
    assert (request.model, request.version, request.id) == ("mymodel", "3", "42")
    assert list(request.outputs) == [RequestedOutput("output0")]
    one, two = request.inputs
    assert (one.name, one.datatype, one.shape) == ("input0", "UINT32", (2, 2))
    assert one.array.tolist() == [[1, 2], [3, 4]]
    assert two.array.tolist() == [True, False, True]


def test_what_tritonclient_sends_is_viewed_and_not_copied() -> None:
    text = (
        b'{"inputs":[{"name":"x\\u00E9","shape":[2,4],"datatype":"FP64","parameters":'
        b'{"binary_data_size":64}},'
        b'{"name":"t","shape":[1],"datatype":"BYTES","data":["\xc3\xa9"]},'
        b'{"name":"b","shape":[3],"datatype":"INT8","parameters":{"binary_data_size":3}}],'
        b'"parameters":{"binary_data_output":true}}'
    )
    values = np.arange(8.0).reshape(2, 4)
    body = text + values.tobytes() + b"\1\2\3"
    request = decode_infer("m", "", body, b"%d" % len(text))
    assert request.parameters == {"binary_data_output": True}
    x, t, b = request.inputs
    assert x.name == "xé"
    np.testing.assert_array_equal(x.array, values)
    assert np.shares_memory(x.array, np.frombuffer(body, np.uint8))
    assert (t.array.tolist(), b.array.tolist()) == (["é".encode()], [1, 2, 3])


def test_absent_null_and_unknown_members_and_three_words_for_numbers() -> None:
    request = decoded({"inputs": [X | {"x": 1}], "model_name": "m", "extra": {"a": []}})
    assert (request.id, dict(request.parameters), list(request.outputs)) == (None, {}, [])
    nulls = {"inputs": [X | {"parameters": None}], "id": None, "parameters": None, "outputs": None}
    assert decoded(nulls).id is None
    assert list(decoded({"inputs": [X], "outputs": []}).outputs) == []
    words = {"inputs": [X | {"data": [math.nan, math.inf, -math.inf, 1]}]}
    (got,) = decoded(words).inputs
    np.testing.assert_array_equal(got.array, [[math.nan, math.inf], [-math.inf, 1]])


@pytest.mark.parametrize("request_id", ["", "42", "é🌊\u0000", "x" * 100_000])
def test_an_id_comes_back_unchanged(request_id: str) -> None:
    request = decoded({"id": request_id, "inputs": [X]})
    assert request.id == request_id
    body, _ = encode_infer(Wish("m", request.id, []), Result(()))
    assert json.loads(body)["id"] == request_id


DEEP = b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}"

HOSTILE: list[tuple[Any, bytes | None, str]] = [
    (b"", None, "the body is not JSON"),
    (b"{", None, "the body is not JSON"),
    (b"\xff\xfe", None, "the body is not JSON"),
    (b'{"id":"\xff"}', None, "the body is not JSON"),
    (b'{"id":"\\ud800","inputs":[]}', None, "the body is not JSON"),
    (b'{"id":"\\ud800","inputs":[],"x":NaN}', None, "id holds half a surrogate pair"),
    (DEEP, None, "the body is not JSON"),
    (DEEP.replace(b"}", b',"x":NaN}'), None, "the body is not JSON: nested too deeply"),
    (b"[]", None, "the body is a list"),
    (b"null", None, "the body is null"),
    ({}, None, "inputs is missing"),
    ({"inputs": {}}, None, "inputs is an object; expected a list"),
    ({"inputs": [3]}, None, "inputs[0] is a number; expected an object"),
    ({"inputs": [{}]}, None, "name of inputs[0] is missing"),
    ({"inputs": [X | {"name": 3}]}, None, "name of inputs[0] is a number"),
    ({"inputs": [X | {"shape": 4}]}, None, "shape of input 'x' is a number"),
    ({"inputs": [X | {"shape": [True, 4]}]}, None, "shape of input 'x' holds True"),
    ({"inputs": [X | {"shape": [-1, 2]}]}, None, "shape of input 'x' holds -1"),
    ({"inputs": [X | {"shape": [10**12, 4]}]}, None, "its shape [1000000000000, 4] has 4000000000"),
    ({"inputs": [X | {"datatype": "FP65"}]}, None, "datatype of input 'x' is 'FP65'; expected one"),
    ({"inputs": [X | {"datatype": 64}]}, None, "datatype of input 'x' is a number"),
    ({"inputs": [X | {"data": None}]}, None, "data of input 'x' is null"),
    (
        {"inputs": [X | {"data": [1, 2, 1.5, 4], "datatype": "INT32"}]},
        None,
        "has 1.5 at position 2",
    ),
    ({"inputs": [X | {"parameters": []}]}, None, "parameters of input 'x' is a list"),
    ({"inputs": [X], "parameters": 3}, None, "parameters of the request is a number"),
    ({"inputs": [X], "id": 42}, None, "id is a number; expected a string"),
    ({"inputs": [X], "outputs": {}}, None, "outputs is an object"),
    ({"inputs": [X], "outputs": ["y"]}, None, "outputs[0] is a string"),
    ({"inputs": [X], "outputs": [{}]}, None, "name of outputs[0] is missing"),
    (json.dumps({"inputs": [X]}).replace("1,", "1e400,").encode(), None, "JSON"),
    ({"inputs": [{"name": "x", "shape": [0], "datatype": "FP64"}]}, None, "neither data nor"),
    # The binary form
    ({"inputs": [RAW]}, FOUR[:-1], "binary_data_size of input 'x' is 32; expected a whole number"),
    ({"inputs": [RAW]}, b"", "0 are left behind the JSON"),
    ({"inputs": [RAW]}, None, "0 are left behind the JSON"),
    ({"inputs": [RAW]}, FOUR + b"\0", "1 bytes are left behind the last input's data"),
    ({"inputs": [X]}, b"\0", "1 bytes are left behind the last input's data"),
    ({"inputs": [RAW | {"data": [1, 2, 3, 4]}]}, FOUR, "both data and binary_data_size"),
    ({"inputs": [RAW | {"shape": [10**12, 4]}]}, FOUR, "has 32 bytes; expected 32000000000000"),
    *[
        (
            {"inputs": [RAW | {"parameters": {"binary_data_size": size}}]},
            FOUR,
            "binary_data_size of",
        )
        for size in (-1, 31.5, 32.0, "32", True, [32], 33, 2**70)
    ],
]


@pytest.mark.parametrize(("message", "tail", "text"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_requests_are_the_clients_mistakes(
    message: Any, tail: bytes | None, text: str
) -> None:
    with pytest.raises((InvalidInput, InvalidRequest)) as caught:
        decoded(message, tail)
    assert text in caught.value.message
    assert len(caught.value.message) < 400
    assert encode_error(caught.value)[0] == 400


def test_an_input_in_a_region_has_no_data() -> None:
    placed = {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}
    bare = {name: value for name, value in X.items() if name != "data"}
    (read,) = decoded({"inputs": [bare | placed]}).inputs
    assert read.array is IN_REGION
    assert read.parameters == placed["parameters"]
    raw = {"parameters": placed["parameters"] | {"binary_data_size": 0}}
    for item in (X | placed, bare | raw):
        with pytest.raises(InvalidInput, match="both shared_memory_region and data"):
            decoded({"inputs": [item]})


def test_an_output_in_a_region_has_no_data() -> None:
    """And no parameters: Triton's client for C++ expects `binary_data_size` among any."""
    outputs = [
        WishedOutput(0, "y", "FP64", True, Place("r", 8, 16, (1, 2))),
        WishedOutput(1, "z", "FP64", False),
    ]
    result = Result((np.empty(0, np.uint8), np.array([5.0])))
    body, length = encode_infer(Wish("m", None, outputs), result)
    assert length is None
    assert json.loads(body)["outputs"] == [
        {"name": "y", "datatype": "FP64", "shape": [1, 2]},
        {"name": "z", "datatype": "FP64", "shape": [1], "data": [5.0]},
    ]


@pytest.mark.parametrize("length", [b"-1", b"1.5", b"x", b"", b"+5", b"1e3", b"9" * 5000])
def test_lengths_of_the_json_that_are_none(length: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Inference-Header-Content-Length is"):
        decode_infer("m", "", json.dumps({"inputs": [X]}).encode(), length)


@pytest.mark.parametrize("wrong", [-1, 1, 33, 10**15])
def test_lengths_of_the_json_that_are_wrong(wrong: int) -> None:
    text = json.dumps({"inputs": [RAW]}).encode()
    with pytest.raises((InvalidInput, InvalidRequest)):
        decode_infer("m", "", text + FOUR, b"%d" % (len(text) + wrong))


@given(st.binary(max_size=80), st.none() | st.integers(-1, 90).map(lambda n: b"%d" % n))
@example(b"NaN", None)
@example(b"Infinity", b"8")
def test_any_bytes_are_a_request_or_a_clients_mistake(body: bytes, length: bytes | None) -> None:
    with contextlib.suppress(InvalidRequest, InvalidInput):
        decode_infer("m", "", body, length)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
INPUT = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "", 3]),
        "shape": st.lists(st.integers(-1, 2**64) | st.integers(0, 3), max_size=3) | JSON,
        "datatype": st.sampled_from(["FP64", "INT8", "BOOL", "BYTES", "BF16", "nope"]) | JSON,
        "data": JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": JSON}) | JSON,
    },
)
INFO = ModelInfo("m", (TensorInfo("x", (2,)),), (TensorInfo("y", (2,)),))


@given(
    st.fixed_dictionaries(
        {"inputs": st.lists(INPUT, max_size=2) | JSON},
        optional={"id": JSON, "parameters": JSON, "outputs": JSON},
    ),
    st.none() | st.binary(max_size=20),
)
def test_any_json_is_a_call_or_a_clients_mistake(message: Any, tail: bytes | None) -> None:
    with contextlib.suppress(InvalidRequest, InvalidInput):
        call, _ = call_of(decoded(message, tail), INFO)
        assert call.inputs[0].shape in ((2,), (call.rows, 2))


def wish(*datatypes: str, binary: bool = False, request_id: str | None = None) -> Wish:
    outputs = [WishedOutput(i, f"y{i}", d, binary) for i, d in enumerate(datatypes)]
    return Wish("m", request_id, outputs)


def test_an_answer_in_json() -> None:
    arrays: list[Array] = [np.array([[1.5, -math.inf], [math.nan, 1e-300]]), np.array([True])]
    body, length = encode_infer(wish("FP64", "BOOL"), Result(tuple(arrays)))
    assert length is None
    assert body == (
        b'{"model_name":"m","model_version":"1","outputs":['
        b'{"name":"y0","datatype":"FP64","shape":[2,2],"data":[1.5,-Infinity,NaN,1e-300]},'
        b'{"name":"y1","datatype":"BOOL","shape":[1],"data":[true]}]}'
    )


def test_an_answer_in_binary_and_in_json_in_the_order_asked() -> None:
    values, texts = np.arange(3, dtype="float32"), np.array([b"\xff", b""], object)
    outputs = [
        WishedOutput(1, 'b"\\é', "BYTES", True),
        WishedOutput(0, "a", "FP32", True),
        WishedOutput(2, "c", "INT8", False),
        WishedOutput(3, "none", "FP64", True),
    ]
    result = Result((values, texts, np.array([2], "int8"), np.zeros((0, 3))))
    body, length = encode_infer(Wish('m"', "é", outputs), result)
    assert length is not None
    told = json.loads(body[:length])
    b, a, c, none = told.pop("outputs")
    assert told == {"model_name": 'm"', "model_version": "1", "id": "é"}
    size = {"parameters": {"binary_data_size": 12}}
    assert a == {"name": "a", "datatype": "FP32", "shape": [3]} | size
    size = {"parameters": {"binary_data_size": 9}}
    assert b == {"name": 'b"\\é', "datatype": "BYTES", "shape": [2]} | size
    assert c == {"name": "c", "datatype": "INT8", "shape": [1], "data": [2]}
    assert none["parameters"] == {"binary_data_size": 0}
    assert body[length:] == b"\1\0\0\0\xff\0\0\0\0" + values.tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_a_row_without_its_axis_is_shown_with_it(binary: bool) -> None:
    asked = wish("FP64", "INT8", binary=binary)
    arrays = (np.array([1.0, 2.0]), np.array(3, "int8"))
    with_axis = tuple(array[None] for array in arrays)
    got = encode_infer(asked._replace(lead=(1,)), Result(arrays))
    assert got == encode_infer(asked, Result(with_axis))


def test_answers_that_cannot_be_written() -> None:
    with pytest.raises(InvalidInput, match="not UTF-8"):
        encode_infer(wish("BYTES"), Result((np.array([b"\xff"], object),)))
    with pytest.raises(InvalidOutput):
        encode_infer(wish("FP64"), Result((np.array([math.inf]),)), NonFinite.ERROR)


def test_errors_are_one_text() -> None:
    assert error_body('no "mesh"\ud800') == b'{"error":"no \\"mesh\\"?"}'
    assert encode_error(UnsupportedFeature("x")) == (501, b'{"error":"x"}')


def test_bodies_for_the_repository() -> None:
    assert [ready_only({}), ready_only({"ready": True})] == [False, True]
    assert parameters_in({"parameters": {"config": "{}"}}) == {"config": "{}"}
    for nothing in (b"", b" ", b"\n"):
        assert decode_object(nothing) == {}
    for wrong in (b"[]", b"{", b"3"):
        with pytest.raises(InvalidRequest):
            decode_object(wrong)
    with pytest.raises(InvalidInput, match="ready is a number"):
        ready_only({"ready": 1})


# Content types


def test_content_types_of_inputs() -> None:
    text = X | {"shape": [2], "datatype": "BYTES", "parameters": {"content_type": "base64"}}
    request = decoded({"inputs": [text | {"data": ["/w==", ""]}]})
    assert request.inputs[0].array.tolist() == [b"\xff", b""]
    raw = text | {"shape": [1]}
    raw["parameters"] = {"content_type": "base64", "binary_data_size": 8}
    del raw["data"]
    (got,) = decoded({"inputs": [raw]}, b"\4\0\0\0/w==").inputs
    assert got.array.tolist() == [b"\xff"]
    with pytest.raises(InvalidInput, match="input 'x' holds at position 1 b'!': expected base64"):
        decoded({"inputs": [text | {"data": ["/w==", "!"]}]})
    with pytest.raises(InvalidInput, match="content_type of input 'x' is 'q'"):
        decoded({"inputs": [X | {"parameters": {"content_type": "q"}}]})
    null = X | {"parameters": {"content_type": None}}
    assert decoded({"inputs": [null]}).inputs[0].array.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("binary", [True, False])
def test_answers_repeat_content_types(binary: bool) -> None:
    outputs = [
        WishedOutput(0, "y", "BYTES", binary, form=OutputForm("base64")),
        WishedOutput(1, "z", "FP64", binary, form=OutputForm("np")),
    ]
    result = Result((np.array([b"\xff"], object), np.array([1.5])))
    body, length = encode_infer(Wish("m", None, outputs, "pd"), result)
    told = json.loads(body[:length])
    assert told["parameters"] == {"content_type": "pd"}
    kinds = [output["parameters"].pop("content_type") for output in told["outputs"]]
    assert kinds == ["base64", "np"]
    if binary:
        assert [o["parameters"]["binary_data_size"] for o in told["outputs"]] == [8, 8]
        assert body[length:] == b"\4\0\0\0/w==" + np.array([1.5]).tobytes()
    else:
        assert [o["data"] for o in told["outputs"]] == [["/w=="], [1.5]]


@pytest.mark.parametrize(
    ("tensor", "body", "shape", "values"),
    [
        (TensorInfo("x", (2,)), FOUR, (2, 2), [[0.0, 1.0], [2.0, 3.0]]),
        (TensorInfo("x", (4,)), FOUR, (1, 4), [[0.0, 1.0, 2.0, 3.0]]),
        (TensorInfo("x", (-1, 2)), FOUR, (1, 2, 2), [[[0.0, 1.0], [2.0, 3.0]]]),
        (TensorInfo("x", (1,), "bytes"), b"jpeg", (1, 1), [[b"jpeg"]]),
        (TensorInfo("x", (), "bytes"), b"jpeg", (1,), [b"jpeg"]),
    ],
)
def test_a_body_without_json_is_the_only_input(
    tensor: TensorInfo, body: bytes, shape: tuple[int, ...], values: list[Any]
) -> None:
    info = ModelInfo("m", (tensor,), (TensorInfo("y", (1,)),))
    asked = decode_raw("m", "", body, info)
    (given,) = asked.inputs
    assert (given.name, given.shape, given.array.tolist()) == ("x", shape, values)
    call, wish = call_of(asked, info)
    assert call.rows == (None if shape[0] == 1 else shape[0])
    assert [output.binary for output in wish.outputs] == [True]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ((TensorInfo("x", (3,)),), "has 32 bytes; expected 24"),
        ((TensorInfo("x", (-1, -1)),), "one input and at most one size that varies"),
        ((TensorInfo("x", (2,)), TensorInfo("z", (2,))), "one input and at most one size"),
        ((), "one input and at most one size"),
        ((TensorInfo("x", (2,), "bytes"),), "has 1 elements"),
    ],
)
def test_a_body_without_json_that_does_not_say_what_it_is(
    inputs: tuple[TensorInfo, ...], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        decode_raw("m", "", FOUR, ModelInfo("m", inputs, ()))
