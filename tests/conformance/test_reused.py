"""Each protocol's clients, unchanged, are told which answers are from the record."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import requests
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.conformance.triton_farm import GRPC, HTTP, Stream, Way
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import Served, farm_of
from tests.support.graphpipe_bytes import WITH_CONFIG
from tests.support.time_limits import scaled

LIMIT_S = scaled(20.0)

MODEL = """
import numpy as np
import farm

class Total(farm.Model):
    name = "total"
    version = "1"
    inputs = {"x": 2}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        return [inputs["x"].sum()]

class Longer(farm.Model):
    name = "longer"
    version = "1"
    inputs = {"x": 2}
    outputs = {"y": 1_000_000}

    def evaluate(self, inputs, config):
        return np.full(1_000_000, inputs["x"].sum())
"""


served = farm_of(MODEL, "Total", "Longer", options="--record a.record --reuse --grpc-port 0")


@pytest.fixture
def way() -> Way:
    return GRPC


@pytest.mark.parametrize("model", ["total", "longer"])
def test_tritonclient_over_grpc(client: Any, model: str) -> None:
    for is_again in (False, True):
        result = client.infer(model, [GRPC.tensor([1.0, 2.0])])
        assert result.as_numpy("y")[0] == 3.0
        marks = {k: v.bool_param for k, v in result.get_response().parameters.items()}
        assert marks == ({"farm_reused": True} if is_again else {})


@pytest.mark.parametrize("model", ["total", "longer"])
def test_a_stream_of_tritonclient(client: Any, model: str) -> None:
    stream = Stream(client)
    for is_again in (False, True):
        stream.ask(model, GRPC.tensor([2.0, 2.0]))
        parameters = stream.result().get_response().parameters
        marks = {k: v.bool_param for k, v in parameters.items()}
        assert marks.pop("triton_final_response") is True
        assert marks == ({"farm_reused": True} if is_again else {})
    stream.end()


def test_the_metadata_of_a_grpc_call(served: Served) -> None:
    with grpc.insecure_channel(served.connection.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="total")
        tensor = request.inputs.add(name="x", datatype="FP64", shape=[2])
        tensor.contents.fp64_contents.extend([3.0, 2.0])
        for is_again in (False, True):
            answer, call = stub.ModelInfer.with_call(request, timeout=LIMIT_S)
            assert list(answer.outputs[0].contents.fp64_contents) == [5.0]
            metadata = dict(call.initial_metadata())
            assert metadata.get("farm-reused") == ("true" if is_again else None)


def test_tritonclient_sees_a_response_cache(served: Served, client: Any) -> None:
    with HTTP.sync.InferenceServerClient(HTTP.address(served)) as http:

        def counts() -> tuple[int, int]:
            (of_grpc,) = client.get_inference_statistics("total").model_stats
            (of_http,) = http.get_inference_statistics("total")["model_stats"]
            stats = of_grpc.inference_stats
            found = stats.cache_hit.count, stats.cache_miss.count
            told = of_http["inference_stats"]
            assert found == (told["cache_hit"]["count"], told["cache_miss"]["count"])
            return found

        hits, misses = counts()
        for _ in range(3):
            client.infer("total", [GRPC.tensor([10.0, 2.0])])
        wait_until(lambda: counts() == (hits + 2, misses + 1))
        assert http.get_model_config("total")["response_cache"] == {"enable": True}
        assert client.get_model_config("total").config.response_cache.enable


def kserve(x: float) -> Any:
    tensor = {"name": "x", "shape": [2], "datatype": "FP64", "data": [x, 2.0]}
    return {"inputs": [tensor]}


def ask(served: Served, body: Any, path: str) -> tuple[bool, bytes]:
    """Return whether the answer has the mark, and its body."""
    form = {"data": body} if isinstance(body, bytes) else {"json": body}
    answer = requests.post(served.connection.url + path, timeout=LIMIT_S, **form)
    assert answer.status_code == 200, answer.text
    mark = answer.headers.get("Farm-Reused")
    assert mark in (None, "true")
    return mark is not None, answer.content


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/total/infer", kserve(5.0)),
        ("/v2/models/total/generate", {"x": [6.0, 2.0]}),
        ("/v2/models/total/generate_stream", {"x": [7.0, 2.0]}),
        ("/v2/models/total/infer_stream", kserve(8.0)),
        ("/Evaluate", {"name": "total", "input": [[9.0, 2.0]]}),
        ("/graphpipe/total", WITH_CONFIG),
        ("/Evaluate", {"name": "longer", "input": [[9.0, 2.0]]}),
        ("/v2/models/longer/infer", kserve(5.0)),
    ],
    ids=lambda value: value.strip("/") if isinstance(value, str) else "",
)
def test_the_header_over_http(served: Served, path: str, body: Any) -> None:
    first, again = ask(served, body, path), ask(served, body, path)
    assert (first[0], again[0]) == (False, True)
    assert first[1] == again[1]
