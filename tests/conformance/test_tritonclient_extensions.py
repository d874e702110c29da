"""Triton's extensions by its published clients, over HTTP and gRPC, against one `farm serve`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException

from tests.conformance.triton_farm import HTTP, Way
from tests.support.dispatcher_farm import farm_of

MODELS = """
import numpy as np
import farm

class Animals(farm.Model):
    name = "animals"
    inputs = {"x": farm.tensor(4, "float32")}
    outputs = {
        "score": farm.tensor(4, "float32"), "count": farm.tensor(4, "int64"),
    }
    labels = {"score": ["ant", "bee", "cat", "dog"]}
    max_batch = 8

    def evaluate(self, inputs, config):
        x = inputs["x"]
        return {"score": x, "count": (10 * x).astype(np.int64)}

class Net(farm.Model):
    name = "net"
    factor = 1
    inputs = {"x": farm.tensor(4, "float32")}
    outputs = {"y": farm.tensor(4, "float32")}

    def evaluate(self, inputs, config):
        return self.factor * inputs["x"]

class Net2(Net):
    name = "net/2"
    factor = 2

class Net10(Net):
    name = "net/10"
    factor = 10

class Slash(Net):
    name = "a/b"
"""

served = farm_of(MODELS, "Animals", "Net", "Net2", "Net10", "Slash", options="--grpc-port 0")
X = np.array([[0.1, 0.4, 0.3, 0.2], [4, 1, 3, 2]], np.float32)


def sent(way: Way, values: Any = X) -> Any:
    return [way.tensor(values, datatype="FP32")]


def classes(way: Way, client: Any, output: str, count: Any, values: Any = X, **more: Any) -> Any:
    wish = way.sync.InferRequestedOutput(output, class_count=count, **more)
    array = client.infer("animals", sent(way, values), outputs=[wish]).as_numpy(output)
    return np.vectorize(lambda e: e if isinstance(e, str) else e.decode(), otypes=[object])(array)


def test_classes_with_and_without_labels(way: Way, client: Any) -> None:
    found = classes(way, client, "score", 2)
    assert found.tolist() == [
        ["0.400000:1:bee", "0.300000:2:cat"],
        ["4.000000:0:ant", "3.000000:2:cat"],
    ]
    assert classes(way, client, "count", 1).tolist() == [["4:1"], ["40:0"]]
    assert classes(way, client, "count", 1, X[0]).tolist() == ["4:1"]
    assert classes(way, client, "score", 1, X[:1]).tolist() == [["0.400000:1:bee"]]
    assert classes(way, client, "score", 10**9, X[:1]).shape == (1, 4)
    if way is HTTP:
        in_json = classes(way, client, "score", 1, binary_data=False)
        assert in_json.tolist() == [["0.400000:1:bee"], ["4.000000:0:ant"]]


# Versions


def data(told: Any) -> Any:
    """Return an answer of either client in JSON's form."""
    if isinstance(told, dict | list):
        return told
    return MessageToDict(told, preserving_proto_field_name=True)


def indexed(client: Any) -> Any:
    """Return the rows of the index of the repository."""
    index = data(client.get_model_repository_index())
    return index["models"] if isinstance(index, dict) else index


def test_metadata_has_the_versions(way: Way, client: Any) -> None:
    for version in ("", "1", "2", "10"):
        told = data(client.get_model_metadata("net", version))
        assert (told["name"], list(told["versions"])) == ("net", ["1", "2", "10"])
        assert client.is_model_ready("net", version)
    assert not client.is_model_ready("net", "3")
    for name in ("net/2", "a/b"):
        told = data(client.get_model_metadata(name))
        assert (told["name"], list(told["versions"])) == (name, ["1"])


@pytest.mark.parametrize(
    ("name", "version", "factor", "answered"),
    [
        ("net", "", 10, "10"),
        ("net", "1", 1, "1"),
        ("net", "2", 2, "2"),
        ("net/2", "", 2, "1"),
        ("net/2", "1", 2, "1"),
        ("a/b", "", 1, "1"),
    ],
)
def test_a_version_is_called(
    way: Way, client: Any, name: str, version: str, factor: int, answered: str
) -> None:
    result = client.infer(name, sent(way), model_version=version)
    np.testing.assert_array_equal(result.as_numpy("y"), factor * X)
    response = data(result.get_response())
    assert (response["model_name"], response["model_version"]) == (name, answered)


def test_index_and_statistics_of_versions(way: Way, client: Any) -> None:
    assert {(row["name"], row["version"]) for row in indexed(client)} >= {
        ("net", "1"),
        ("net", "2"),
        ("net", "10"),
        ("a/b", "1"),
    }
    client.infer("net", sent(way), model_version="2")
    told = data(client.get_inference_statistics("net", "2"))["model_stats"]
    assert [(row["name"], row["version"]) for row in told] == [("net", "2")]
    assert int(told[0]["inference_count"]) > 0
    told = data(client.get_inference_statistics("net"))["model_stats"]
    assert [row["version"] for row in told] == ["1", "2", "10"]


# Model control, as the published examples go through it


def test_load_and_unload(way: Way, client: Any) -> None:
    client.load_model("net")
    assert client.is_model_ready("net")
    for changes in (
        {"config": '{"max_batch_size": "16"}'},
        {"config": "{", "files": {"file:1/m": b"x"}},
    ):
        with pytest.raises(InferenceServerException, match="failed to load 'net'"):
            client.load_model("net", **changes)
    client.unload_model("net", unload_dependents=True)
    try:
        assert not client.is_model_ready("net")
        with pytest.raises(InferenceServerException, match="'net' is unloaded"):
            client.infer("net", sent(way))
        rows = [row for row in indexed(client) if row["name"] == "net"]
        states = {row["version"]: (row["state"], row["reason"]) for row in rows}
        assert states == dict.fromkeys(["1", "2", "10"], ("UNAVAILABLE", "unloaded"))
        assert client.is_model_ready("a/b")
    finally:
        client.load_model("net")
    assert client.is_model_ready("net", "2")
    for change in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match=r"failed to (un)?load 'wrong_model"):
            change("wrong_model_name")
