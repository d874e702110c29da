"""The client half with the server half, and with answers of other servers."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.errors import decode_error
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    ModelNotFound,
    Unavailable,
    UnsupportedFeature,
)
from farm.protocols.kserve.metadata import model_config, model_metadata
from farm.protocols.kserve.request import call_of
from farm.protocols.kserve.rest.client import (
    decode_max_batch,
    decode_metadata,
    decode_models,
    decode_result,
    encode_call,
    model_path,
)
from farm.protocols.kserve.rest.codec import HEADER_LENGTH, decode_infer, encode_infer
from farm.protocols.kserve.tensors import DATATYPES, numpy_type

EVERY = ModelInfo(
    "every",
    tuple(TensorInfo(f"i{dtype}", (2,), dtype) for dtype in DATATYPES.values()),
    tuple(TensorInfo(f"o{dtype}", (2,), dtype) for dtype in DATATYPES.values()),
)
PLAIN = ModelInfo("plain", (TensorInfo("x", (2,)),), (TensorInfo("y", (2,)),), max_batch=8)


def arrays(datatype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    if datatype == "BYTES":
        return hnp.arrays(object, shape, elements=st.text().map(str.encode))
    if datatype == "BF16":
        return hnp.arrays("float32", shape, elements=st.floats(-9, 9, width=16)).map(
            lambda a: a.astype(ml_dtypes.bfloat16)
        )
    return hnp.arrays(numpy_type(datatype, "x"), shape)


def same(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    if one.dtype == object:
        assert one.tolist() == other.tolist()
    else:
        np.testing.assert_array_equal(one.astype("f8"), other.astype("f8"))


@pytest.mark.parametrize("binary", [True, False])
@settings(
    # Fourteen arrays at once occasionally need more choices than an example may have.
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(rows=st.sampled_from([None, 3]), data=st.data())
def test_every_datatype_goes_there_and_back(
    rows: int | None, binary: bool, data: st.DataObject
) -> None:
    shape = (2,) if rows is None else (rows, 2)
    inputs = tuple(data.draw(arrays(datatype, shape)) for datatype in DATATYPES)
    body, sent = encode_call(Call("every", Operation.EVALUATE, inputs, rows=rows), EVERY)
    lengths = {name.lower().encode(): value.encode() for name, value in sent.items()}
    call, wish = call_of(decode_infer("every", "", body, lengths[HEADER_LENGTH]), EVERY)
    assert all(output.binary for output in wish.outputs)
    wish = wish._replace(outputs=[output._replace(binary=binary) for output in wish.outputs])
    assert call.rows == rows
    for got, given_ in zip(call.inputs, inputs, strict=True):
        same(got, given_)
    answer, json_length = encode_infer(wish, Result(inputs))
    headers = {} if json_length is None else {HEADER_LENGTH.decode(): str(json_length)}
    result = decode_result(EVERY, 200, headers, answer)
    for got, given_ in zip(result.outputs, inputs, strict=True):
        same(got, given_)


def test_flat_inputs_get_the_declared_shape() -> None:
    info = ModelInfo("m", (TensorInfo("x", (2, 2)),), ())
    body, headers = encode_call(Call("m", Operation.EVALUATE, (np.arange(4.0),)), info)
    text = body[: int(headers["Inference-Header-Content-Length"])]
    (given_,) = json.loads(text)["inputs"]
    assert (given_["shape"], given_["parameters"]) == ([2, 2], {"binary_data_size": 32})


def test_metadata_of_our_own() -> None:
    body = json.dumps(model_metadata(EVERY)).encode()
    assert decode_metadata(200, body) == EVERY
    config = json.dumps(model_config(PLAIN)).encode()
    assert decode_max_batch(200, config) == 8
    assert decode_metadata(200, json.dumps(model_metadata(PLAIN)).encode(), max_batch=8) == PLAIN


def test_metadata_without_a_batch_axis() -> None:
    tensors = [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    body = json.dumps({"name": "m", "inputs": tensors, "outputs": tensors}).encode()
    assert decode_metadata(200, body, max_batch=0).inputs == (TensorInfo("x", (-1, 3), "float32"),)
    assert decode_metadata(200, body).inputs == (TensorInfo("x", (3,), "float32"),)
    mixed = json.dumps(
        {"inputs": tensors, "outputs": [{"name": "y", "datatype": "FP32", "shape": [3]}]}
    ).encode()
    assert decode_metadata(200, mixed).inputs == (TensorInfo("x", (-1, 3), "float32"),)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {"inputs": [], "outputs": None},
        {"inputs": [{"name": "x", "datatype": "FP65", "shape": [1]}], "outputs": []},
        {"inputs": [{"name": "x", "datatype": "FP64", "shape": [-2]}], "outputs": []},
        {"inputs": [{"name": "x", "datatype": "FP64", "shape": "1"}], "outputs": []},
        {"inputs": [3], "outputs": []},
    ],
)
def test_metadata_that_is_none(answer: Any) -> None:
    with pytest.raises(InvalidOutput):
        decode_metadata(200, json.dumps(answer).encode())


def test_paths_configurations_and_indices() -> None:
    assert model_path("a/b c") == "/v2/models/a%2Fb%20c"
    assert model_path("é-._~%", "config") == "/v2/models/%C3%A9-._~%25/config"
    assert decode_max_batch(404, b"not found") is None
    assert decode_max_batch(200, b"{}") == 0
    assert decode_max_batch(200, b'{"max_batch_size":"8"}') is None
    rows = b'[{"name":"a","state":"READY"},{"name":"b","state":"UNAVAILABLE"},{"name":"c"},7]'
    assert decode_models(200, rows) == ("a", "c")
    with pytest.raises(InvalidOutput):
        decode_models(200, b"{}")


def test_null_is_not_a_number() -> None:
    output = {"name": "y", "datatype": "FP64", "shape": [2, 2], "data": [[1, None], [2.5, 3]]}
    result = decode_result(PLAIN, 200, {}, json.dumps({"outputs": [output]}).encode())
    np.testing.assert_array_equal(result.outputs[0], [[1, math.nan], [2.5, 3]])


Y = {"name": "y", "datatype": "FP64", "shape": [2], "data": [1, 2]}


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ({}, b"not json", "the server's answer: the body is not JSON"),
        ({}, b"[]", "the server's answer is a list"),
        ({}, b"{}", "outputs in the server's answer is missing"),
        ({}, {"outputs": [3]}, "outputs in the server's answer is [3]"),
        ({}, {"outputs": []}, "the answer has no output 'y'"),
        ({}, {"outputs": [Y | {"data": [1]}]}, "has 1 elements; its shape [2] has 2"),
        ({}, {"outputs": [Y | {"data": None}]}, "data of output 'y' is"),
        ({}, {"outputs": [Y | {"shape": None}]}, "shape in the server's answer is None"),
        ({}, {"outputs": [Y | {"datatype": "FP32"}]}, "output 'y' is float32; its metadata says"),
        ({}, {"outputs": [Y | {"parameters": {"binary_data_size": 16}}]}, "binary_data_size of"),
        ({"inference-header-content-length": "99999"}, {"outputs": [Y]}, "the answer is '99999'"),
        ({"inference-header-content-length": "x"}, {"outputs": [Y]}, "the answer is 'x'"),
    ],
)
def test_answers_that_are_none(headers: dict[str, str], body: Any, text: str) -> None:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    with pytest.raises(InvalidOutput) as caught:
        decode_result(PLAIN, 200, headers, body)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, b'{"error":"wrong shape"}', InvalidInput, "status 400: wrong shape"),
        (422, b'{"detail":"no"}', InvalidInput, "status 422: no"),
        (404, b'{"error":"no model"}', ModelNotFound, "no model"),
        (500, b"<html>\n oops", ModelFailed, "status 500: <html> oops"),
        (501, b'{"error":["x"]}', UnsupportedFeature, '["x"]'),
        (502, b"", Unavailable, "status 502: an empty body"),
        (503, b"[]", Unavailable, "status 503"),
        (504, b"\xff", DeadlineExceeded, "status 504"),
        (401, b"x" * 900, Unavailable, "xxx..."),
    ],
)
def test_errors_of_all_kinds(status: int, body: bytes, kind: type[FarmError], text: str) -> None:
    error = decode_error(status, body)
    assert type(error) is kind
    assert text in error.message
    with pytest.raises(kind):
        decode_result(PLAIN, status, {}, body)
