"""Oracle's own Python client, unchanged, against `farm serve`; and its answers.

Today's flatbuffers package encodes its requests, with the same bytes as in the client's time.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import requests
from graphpipe import convert, remote

from farm.protocols.graphpipe.tensors import NUMBERS
from tests.support.dispatcher_farm import Served, farm_of
from tests.support.graphpipe_bytes import INFER_REQUEST, METADATA_REQUEST

pytestmark = pytest.mark.filterwarnings("ignore:numElems is deprecated:DeprecationWarning")

MODELS = f"""
import time
import numpy as np
import farm
from farm import TensorInfo

class Twice(farm.Model):
    name = "twice"
    description = "Twice the numbers, and their sum"
    inputs = {{"x": 3}}
    outputs = {{"y": 3, "sum": 1}}
    max_batch = 16

    def evaluate(self, inputs, config):
        x = inputs["x"]
        if (x == -13).any():
            raise ValueError("thirteen \\u00fc")
        return {{"y": config.get("factor", 2) * x, "sum": x.sum(axis=1, keepdims=True)}}

class Add(farm.Model):
    name = "add"
    inputs = {{"a": (2, -1), "b": TensorInfo("b", (), "int32")}}
    outputs = {{"total": (2, -1)}}

    def evaluate(self, inputs, config):
        return inputs["a"] + inputs["b"]

class Echo(farm.Model):
    def __init__(self, dtype):
        self.name = "echo_" + dtype
        self.inputs = {{"x": TensorInfo("x", (3,), dtype)}}
        self.outputs = {{"y": TensorInfo("y", (3,), dtype)}}

    def evaluate(self, inputs, config):
        return inputs["x"]

for dtype in {sorted(NUMBERS)}:
    globals()["echo_" + dtype] = Echo(dtype)
"""

SPECS = ("Twice", "Add", *(f"echo_{dtype}" for dtype in sorted(NUMBERS)))


served = farm_of(MODELS, *SPECS, options="--graphpipe-default twice")


@pytest.fixture(scope="module")
def url(served: Served) -> str:
    return served.connection.url


def test_the_default_model_at_the_root(url: str) -> None:
    for path in ("", "/", "/graphpipe/twice"):
        y, total = remote.execute_multi(url + path, [np.array([[1.0, 2, 3]])], None, None)
        assert (y.tolist(), total.tolist()) == ([[2, 4, 6]], [[6]])


def test_one_evaluation_and_a_batch(url: str) -> None:
    x = np.arange(150.0).reshape(50, 3)
    y = remote.execute(f"{url}/graphpipe/twice", x, "x", "y")
    assert (y.dtype, y.tolist()) == (np.float64, (2 * x).tolist())
    assert remote.execute(f"{url}/graphpipe/twice", x[1], "x", "sum").tolist() == [12]


def test_names_in_any_order_and_repeated(url: str) -> None:
    a, b = np.ones((2, 3)), np.array(5, np.int32)
    for inputs, names in (((a, b), ["a", "b"]), ((b, a), ["b", "a"]), ((a, b), None)):
        (total,) = remote.execute_multi(f"{url}/graphpipe/add", list(inputs), names, None)
        assert total.tolist() == [[6] * 3] * 2
    x = [np.array([1.0, 2, 3])]
    outputs = remote.execute_multi(url, x, ["x"], ["sum", "y", "sum"])
    assert [o.tolist() for o in outputs] == [[6], [2, 4, 6], [6]]


def test_a_config(url: str) -> None:
    x = [np.array([1.0, 2, 3])]
    outputs = remote.execute_multi(url, x, ["x"], ["y"], config=json.dumps({"factor": 10}))
    assert outputs[0].tolist() == [10, 20, 30]
    with pytest.raises(Exception, match="config 'cfg' is not a JSON object"):
        remote.execute_multi(url, x, ["x"], ["y"], config="cfg")


@pytest.mark.parametrize("dtype", sorted(NUMBERS))
def test_every_type(url: str, dtype: str) -> None:
    path = f"{url}/graphpipe/echo_{dtype}"
    if dtype == "bytes":
        assert remote.execute(path, np.array([b"a", b"", b"abc"])).tolist() == [b"a", b"", b"abc"]
        assert remote.execute(path, np.array(["é", "b", "c"])).tolist() == [
            "é".encode(),
            b"b",
            b"c",
        ]
        return
    x = np.array([0, 1, 100]).astype(dtype)
    y = remote.execute(path, x)
    assert (y.dtype, y.tolist()) == (x.dtype, x.tolist())
    fortran = np.asfortranarray(np.stack([x, x + 1]))
    assert remote.execute(path, fortran).tolist() == fortran.tolist()


def test_what_the_client_asks_of_the_metadata(url: str) -> None:
    path = f"{url}/graphpipe/twice"
    told = remote.metadata(path)
    assert (told.Name(), told.Server()) == (b"twice", b"farm")
    assert told.Description() == b"Twice the numbers, and their sum"
    assert (remote.get_input_names(path), remote.get_output_names(path)) == (["x"], ["y", "sum"])
    assert remote.get_input_types(path) == [np.float64]
    assert remote.get_output_types(path) == [np.float64, np.float64]
    assert remote.get_input_shapes(path) == [[None, 3]]
    assert remote.get_output_shapes(path) == [[None, 3], [None, 1]]
    assert remote.get_input_shapes(f"{url}/graphpipe/add") == [[None, 2, None], [None]]


def test_errors_have_their_message(url: str) -> None:
    for x, text in [
        (np.array([-13.0, 0, 0]), "thirteen ü"),
        (np.array([1.0, 2]), "input 'x' has shape [2]; model 'twice' expects [3], or [-1, 3]"),
        (np.array([1, 2, 3], np.float32), "has type Float32 (10)"),
    ]:
        with pytest.raises(Exception) as told:  # noqa: PT011  # the client raises no other
            remote.execute(url, x)
        assert text in told.value.args[0].decode()
    with pytest.raises(requests.HTTPError, match="404"):
        remote.execute(f"{url}/graphpipe/none", np.zeros(3))


def test_what_the_client_sends_is_what_was_recorded(url: str) -> None:
    """The farm answers the recorded bytes as it answers the current client."""
    assert convert.serialize_metadata_request() == METADATA_REQUEST
    ask = convert.InferReq("cfg", [np.array([[1, 2.5]])], ["x"], ["y"])
    assert convert.serialize_infer_request(ask) == INFER_REQUEST
    answer = requests.post(url, METADATA_REQUEST, timeout=20)
    assert convert.deserialize_metadata_response(answer.content).Name() == b"twice"


def test_arrays_of_megabytes(url: str) -> None:
    a = np.random.default_rng(1).normal(size=(2, 500_000))
    total = remote.execute_multi(f"{url}/graphpipe/add", [a, np.array(1, np.int32)], None, None)[0]
    assert np.array_equal(total, a + 1)
