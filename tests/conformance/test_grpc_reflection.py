"""Generic gRPC clients, which know no .proto file: they call methods by server reflection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.support.dispatcher_farm import Served, farm_of
from tests.support.time_limits import scaled

LIMIT_S = scaled(20.0)

MODEL = """
import farm

class Twice(farm.Model):
    inputs = {"x": 2}
    outputs = {"y": 2}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]
"""

SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
]


served = farm_of(MODEL, options="--grpc-port 0")


@pytest.fixture
def channel(served: Served) -> Iterator[Any]:
    with grpc.insecure_channel(served.connection.grpc) as found:
        yield found


@pytest.fixture
def pool(channel: Any) -> Any:
    """The types of the server, each requested when it is needed."""
    return descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))


def call(channel: Any, pool: Any, service: str, method: str, asked: dict[str, Any]) -> Any:
    """Call a method as grpcurl does, with JSON in and out."""
    described = pool.FindServiceByName(service).FindMethodByName(method)
    request = message_factory.GetMessageClass(described.input_type)()
    answer = message_factory.GetMessageClass(described.output_type)
    stub = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    return json_format.MessageToDict(
        stub(json_format.ParseDict(asked, request), timeout=LIMIT_S),
        preserving_proto_field_name=True,
    )


def test_all_services_are_listed(channel: Any) -> None:
    assert list(ProtoReflectionDescriptorDatabase(channel).get_services()) == SERVICES


def test_every_method_that_is_described_is_served(channel: Any, pool: Any) -> None:
    for service in SERVICES:
        for method in pool.FindServiceByName(service).methods:
            stub = channel.stream_stream(f"/{service}/{method.name}")
            text = error_of(stub(iter([b"\xff\xff"]), timeout=LIMIT_S))
            assert "there is no method" not in text, method.full_name


def error_of(answers: Any) -> str:
    """Read a call to its end; return the text of its error, or "" if there is none."""
    try:
        list(answers)
    except grpc.RpcError as error:
        return str(error.details())
    return ""


def test_methods_are_called_by_name(channel: Any, pool: Any) -> None:
    inference = "inference.GRPCInferenceService"
    assert call(channel, pool, inference, "ServerLive", {}) == {"live": True}
    assert call(channel, pool, "grpc.health.v1.Health", "Check", {}) == {"status": "SERVING"}
    tensor = {"name": "x", "datatype": "FP64", "shape": [2], "contents": {"fp64_contents": [1, 2]}}
    answer = call(
        channel, pool, inference, "ModelInfer", {"model_name": "Twice", "inputs": [tensor]}
    )
    assert answer["outputs"][0]["contents"] == {"fp64_contents": [2.0, 4.0]}
    metadata = call(channel, pool, inference, "ModelMetadata", {"name": "Twice"})
    np.testing.assert_equal(metadata["inputs"][0]["shape"], ["-1", "2"])


def test_unknown_names(pool: Any, channel: Any) -> None:
    with pytest.raises(KeyError):
        pool.FindServiceByName("inference.Nothing")
    with pytest.raises(KeyError):
        ProtoReflectionDescriptorDatabase(channel).FindFileByName("nothing.proto")
