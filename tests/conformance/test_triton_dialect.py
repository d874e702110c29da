"""Triton's published clients do against the dialect `triton` what Triton's examples do."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

import farm
from farm.transports.connection import read_connection
from tests.conformance.triton_farm import GRPC, HTTP, Stream, Way
from tests.support import triton_models
from tests.support.dispatcher_farm import Served, farm_of
from tests.support.time_limits import scaled

LIMIT_S = scaled(20.0)

UNKNOWN = "Request for unknown model: 'wrong_model_name' is not found"

A, B = np.arange(16, dtype=np.int32)[None], np.full((1, 16), -1, np.int32)


served = farm_of(
    Path(triton_models.__file__).read_text(),
    *("Simple", "SimpleInt8", "RepeatInt32", "SimpleString"),
    options="--kserve-dialect triton --grpc-port 0",
)


@pytest.fixture
def stub(served: Served) -> Iterator[Any]:
    with grpc.insecure_channel(served.connection.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def inputs_of(way: Way) -> list[Any]:
    return [way.tensor(A, "INPUT0", "INT32"), way.tensor(B, "INPUT1", "INT32")]


def check(result: Any) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


# simple_grpc_health_metadata, simple_http_health_metadata


def test_health_and_metadata(way: Way, client: Any) -> None:
    more: Any = {"query_params": {"test_1": 1}} if way is HTTP else {"headers": {"test": "1"}}
    assert client.is_server_live(**more)
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert not client.is_model_ready("wrong_model_name")
    server = client.get_server_metadata(**way.as_json)
    assert server["name"] == "triton"
    assert {"statistics", "binary_tensor_data"} <= set(server["extensions"])
    assert client.get_model_metadata("simple", **way.as_json, **more)["name"] == "simple"
    with way.refused("INVALID_ARGUMENT", UNKNOWN, whole=True):
        client.get_model_metadata("wrong_model_name")
    unknown = "Request for unknown model: 'simple' version 99 is not found"
    with way.refused("NOT_FOUND", unknown, whole=True):
        client.get_model_metadata("simple", "99")


# simple_http_infer_client, simple_http_aio_infer_client


@pytest.mark.parametrize("way", [HTTP])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_inference_over_http(way: Way, client: Any, compression: str | None) -> None:
    outputs = [
        triton_http.InferRequestedOutput("OUTPUT0", binary_data=True),
        triton_http.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    for wished in (outputs, None):
        result = client.infer(
            "simple",
            inputs_of(way),
            outputs=wished,
            query_params={"test_1": 1},
            headers={"test": "1"},
            request_compression_algorithm=compression,
            response_compression_algorithm=compression,
        )
        check(result)
    assert len(client.get_inference_statistics("simple")["model_stats"]) == 1
    with way.refused("INVALID_ARGUMENT", UNKNOWN, whole=True):
        client.infer("wrong_model_name", inputs_of(way))


# simple_grpc_async_infer_client, simple_grpc_keepalive_client, simple_grpc_custom_args_client


def test_asynchronous_inference(served: Served) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    keepalive = triton_grpc.KeepAliveOptions(
        keepalive_time_ms=10_000, keepalive_permit_without_calls=True
    )
    with triton_grpc.InferenceServerClient(
        served.connection.grpc, keepalive_options=keepalive
    ) as client:
        for _ in range(8):
            client.async_infer(
                "simple",
                inputs_of(GRPC),
                callback=lambda result, error: answers.put((result, error)),
                client_timeout=LIMIT_S,
            )
        for _ in range(8):
            result, error = answers.get(timeout=LIMIT_S)
            assert error is None
            check(result)


# grpc_explicit_int_content_client, grpc_explicit_int8_content_client, grpc_explicit_byte_...


def typed(model: str, datatype: str, field: str, values: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, given in zip(("INPUT0", "INPUT1"), values, strict=True):
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[1, 16])
        getattr(tensor.contents, field).extend(given)
    return request


@pytest.mark.parametrize(("model", "dtype"), [("simple", "int32"), ("simple_int8", "int8")])
def test_typed_requests_have_raw_answers(stub: Any, model: str, dtype: str) -> None:
    given = (range(16), [1] * 16)
    request = typed(model, dtype.upper(), "int_contents", given)
    answer = stub.ModelInfer(request, timeout=LIMIT_S)
    found = [np.frombuffer(raw, dtype) for raw in answer.raw_output_contents]
    assert found[0].tolist() == list(range(1, 17))
    assert found[1].tolist() == list(range(-1, 15))
    assert not any(output.contents.ListFields() for output in answer.outputs)


def test_typed_texts_have_raw_answers(stub: Any) -> None:
    given = [b"%d" % i for i in range(16)], [b"1"] * 16
    request = typed("simple_string", "BYTES", "bytes_contents", given)
    raw = stub.ModelInfer(request, timeout=LIMIT_S).raw_output_contents
    sums, differences = (deserialize_bytes_tensor(part).tolist() for part in raw)
    assert sums == [b"%d" % (i + 1) for i in range(16)]
    assert differences == [b"%d" % (i - 1) for i in range(16)]


def test_errors_that_the_explicit_examples_expect(stub: Any) -> None:
    request = typed("simple", "INT32", "int_contents", (range(16), [1] * 16))
    request.model_version = "wrong_specification"
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request, timeout=LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    expected = "failed to get model version from specified version string 'wrong_specification'"
    assert expected in caught.value.details()


# Errors that Triton's own tests compare


def test_wrong_inputs(way: Way, client: Any) -> None:
    of = "[request id: <id_unknown>] "
    missing = (
        f"{of}expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but "
        "missing required input(s) ['INPUT1']. Please provide all required input(s)."
    )
    datatype = (
        f"{of}inference input 'INPUT0' data-type is 'INT32', but model 'simple_int8' expects 'INT8'"
    )
    output = "unexpected inference output 'OUTPUT9' for model 'simple'"
    with way.refused("INVALID_ARGUMENT", missing, whole=True):
        client.infer("simple", inputs_of(way)[:1])
    with way.refused("INVALID_ARGUMENT", datatype, whole=True):
        client.infer("simple_int8", inputs_of(way))
    with way.refused("INVALID_ARGUMENT", output, whole=True):
        client.infer("simple", inputs_of(way), outputs=way.outputs("OUTPUT9"))


def test_models_that_stream_are_refused_where_there_is_one_answer(way: Way, client: Any) -> None:
    what = "HTTP end point" if way is HTTP else "ModelInfer RPC"
    text = f"{what} doesn't support models with decoupled transaction policy"
    with way.refused("UNIMPLEMENTED", text, whole=True):
        client.infer("repeat_int32", repeats(way, 2))


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/v2/health/live", 405, "Method Not Allowed"),
        ("GET", "/v2/models/simple/infer", 405, "Method Not Allowed"),
        ("GET", "/v2/models/simple/generate_stream", 405, "Method Not Allowed"),
        ("GET", "/v2/wrong", 404, "Not Found"),
    ],
)
def test_wrong_paths(served: Served, method: str, path: str, status: int, text: str) -> None:
    answer = requests.request(method, served.connection.url + path, timeout=LIMIT_S)
    assert (answer.status_code, answer.json()) == (status, {"error": text})


@pytest.mark.slow
def test_a_long_wrong_body_is_told_in_the_same_words(served: Served) -> None:
    rows = b",".join([b"1"] * 2_000_000)  # so long that a reader process decodes it
    shape = b'"shape":[1,16],"datatype":"INT32"'
    body = b'{"inputs":[{"name":"INPUT0",' + shape + b',"data":[' + rows + b"]}]}"
    answer = requests.post(
        f"{served.connection.url}/v2/models/simple/infer", data=body, timeout=LIMIT_S
    )
    assert answer.status_code == 400
    expected = "Unable to parse 'data': shape does not match true shape of 'data' field"
    assert answer.json() == {"error": expected}


# simple_grpc_custom_repeat


def repeats(way: Way, count: int) -> list[Any]:
    return [
        way.tensor(np.arange(100, 100 + count, dtype=np.int32), "IN", "INT32"),
        way.tensor(np.ones(count, np.uint32), "DELAY", "UINT32"),
        way.tensor(np.array([1], np.uint32), "WAIT", "UINT32"),
    ]


@pytest.mark.parametrize("way", [GRPC])
def test_a_decoupled_model_answers_as_often_as_it_is_asked_to(way: Way, client: Any) -> None:
    stream = Stream(client)
    stream.ask("repeat_int32", *repeats(way, 10), enable_empty_final_response=True)
    for expected in range(100, 110):
        result = stream.result()
        assert result.as_numpy("OUT").tolist() == [expected]
        assert not result.get_response().parameters["triton_final_response"].bool_param
    assert stream.result().get_response().parameters["triton_final_response"].bool_param
    stream.ask("wrong_model_name", *inputs_of(way))
    result, error = stream.get()
    assert result is None
    assert error.message() == UNKNOWN
    stream.end()


# Python


def test_the_dialect_in_python(tmp_path: Path) -> None:
    with farm.serve(triton_models.Simple(), port=0, dir=tmp_path, kserve_dialect="triton"):
        url = read_connection(tmp_path).url
        assert requests.get(f"{url}/v2", timeout=LIMIT_S).json()["name"] == "triton"
