"""Metadata of the server and its models."""

from __future__ import annotations

import pytest
from google.protobuf import json_format

import farm
from farm.call import ModelInfo, Operation, TensorInfo
from farm.declared import tensors_of
from farm.dispatcher.call_statistics import Duration, ModelStatistics
from farm.errors import UnsupportedFeature
from farm.protocols.kserve.grpc.codec import decode, encode
from farm.protocols.kserve.metadata import (
    config_type,
    model_config,
    model_metadata,
    server_metadata,
    statistics_of,
)
from farm.protocols.kserve.tensors import DATATYPES
from farm.version import __version__
from farm.versions import Numbered

INFO = ModelInfo(
    "m",
    (TensorInfo("x", (3,)), TensorInfo("text", (-1, 2), "bytes")),
    (TensorInfo("y", (), "bfloat16"),),
    max_batch=16,
)


def test_the_server() -> None:
    told = server_metadata()
    assert (told["name"], told["version"]) == ("farm", __version__)
    assert {"binary_tensor_data", "statistics", "model_repository"} <= set(told["extensions"])


def test_a_model_has_the_batch_axis_in_front() -> None:
    assert model_metadata(INFO) == {
        "name": "m",
        "versions": ["1"],
        "platform": "farm_model",
        "inputs": [
            {"name": "x", "datatype": "FP64", "shape": [-1, 3]},
            {"name": "text", "datatype": "BYTES", "shape": [-1, -1, 2]},
        ],
        "outputs": [{"name": "y", "datatype": "BF16", "shape": [-1]}],
    }
    told = model_metadata(INFO, "net", ["1", "2"])
    assert (told["name"], told["versions"]) == ("net", ["1", "2"])


def test_a_configuration_has_it_not() -> None:
    config = model_config(INFO)
    assert (config["name"], config["max_batch_size"]) == ("m", 16)
    assert config["input"] == [
        {"name": "x", "data_type": "TYPE_FP64", "dims": [3]},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [-1, 2]},
    ]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_BF16", "dims": []}]
    assert config["dynamic_batching"]["preferred_batch_size"] == [16]
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert model_config(INFO, "net")["name"] == "net"
    plain = model_config(ModelInfo("m", (), (), frozenset({Operation.STREAM})))
    assert plain["max_batch_size"] == 1
    assert "dynamic_batching" not in plain
    assert plain["model_transaction_policy"] == {"decoupled": True}


def test_how_an_image_lies_is_in_the_configuration_of_rest_and_grpc() -> None:
    image = farm.tensor((224, 224, 3), "uint8", format="NHWC")
    info = ModelInfo("m", tensors_of({"image": image, "x": 1}, "input"), ())
    config = model_config(info)
    assert [tensor.get("format") for tensor in config["input"]] == ["FORMAT_NHWC", None]
    message = decode("inference.ModelConfig", encode("inference.ModelConfig", config))
    kept = json_format.MessageToDict(message, preserving_proto_field_name=True)["input"]
    assert [tensor.get("format") for tensor in kept] == ["FORMAT_NHWC", None]
    assert ModelInfo.from_json(info.to_json()) == info, "it reaches the front door"
    for form in ("nhwc", "CHW"):
        with pytest.raises(ValueError, match="expected NCHW or NHWC"):
            farm.tensor((3, 8, 8), format=form)


@pytest.mark.parametrize(
    ("version", "repeatable", "reuses", "cached"),
    [
        ("1", True, True, True),
        ("1", True, False, False),
        ("", True, True, False),
        ("1", False, True, False),
    ],
)
def test_a_model_that_reuses_answers_has_a_cache(
    version: str, repeatable: bool, reuses: bool, cached: bool
) -> None:
    info = ModelInfo("m", (), (), version=version, repeatable=repeatable)
    config = model_config(info, reuses=reuses)
    assert config.get("response_cache") == ({"enable": True} if cached else None)


def test_types_in_configurations() -> None:
    names = {config_type(dtype) for dtype in DATATYPES.values()}
    assert len(names) == 14
    assert {"TYPE_STRING", "TYPE_BOOL", "TYPE_FP16", "TYPE_UINT64"} <= names
    with pytest.raises(UnsupportedFeature):
        model_metadata(ModelInfo("m", (TensorInfo("x", (1,), "complex64"),), ()))


# Statistics


def test_a_model_that_ran() -> None:
    told = ModelStatistics(
        success=Duration(4, 2.0),
        fail=Duration(1, 0.5),
        queue=Duration(4, 0.25),
        compute=Duration(4, 1.5),
        rows=7,
        executions=2.9999999999999996,
        by_batch={5: Duration(1.0, 1.0), 1: Duration(2, 0.5)},
        last=1_700_000_000.1234,
        reused=3,
        missed=7,
    )
    (row,) = statistics_of([Numbered("n", "2", "m")], {"m": told, "other": ModelStatistics()})[
        "model_stats"
    ]
    assert (row["name"], row["version"]) == ("n", "2")
    assert row["last_inference"] == 1_700_000_000_123
    assert (row["inference_count"], row["execution_count"]) == (7, 3)
    stats = row["inference_stats"]
    assert stats["success"] == {"count": 4, "ns": 2_000_000_000}
    assert stats["fail"] == {"count": 1, "ns": 500_000_000}
    assert stats["queue"] == {"count": 4, "ns": 250_000_000}
    assert stats["compute_infer"] == {"count": 4, "ns": 1_500_000_000}
    assert stats["compute_input"] == stats["compute_output"] == {"count": 4, "ns": 0}
    assert (stats["cache_hit"], stats["cache_miss"]) == (
        {"count": 3, "ns": 0},
        {"count": 7, "ns": 0},
    )
    assert [(b["batch_size"], b["compute_infer"]) for b in row["batch_stats"]] == [
        (1, {"count": 2, "ns": 500_000_000}),
        (5, {"count": 1, "ns": 1_000_000_000}),
    ]
    assert (row["response_stats"], row["memory_usage"]) == ({}, [])
    (row,) = statistics_of([Numbered("m", "1", "m")], {})["model_stats"]  # nobody called it
    assert (row["last_inference"], row["inference_count"], row["batch_stats"]) == (0, 0, [])
    assert row["inference_stats"]["success"] == {"count": 0, "ns": 0}
