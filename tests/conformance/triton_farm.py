"""A farm for Triton's own Python clients, and the ways in which they reach it."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from farm.protocols.kserve.tensors import DATATYPES
from tests.support.dispatcher_farm import LIMIT_S, Served, farm_of

MODELS = f"""
import time
import farm
from farm import TensorInfo

class Twice(farm.Model):
    name = "twice"
    inputs = {{"x": 3}}
    outputs = {{"y": 3, "sum": 1}}
    max_batch = 16

    def evaluate(self, inputs, config):
        x = inputs["x"]
        if (x == 13).any():
            raise ValueError("thirteen \\u00fc")
        return {{"y": 2 * x, "sum": x.sum(axis=1, keepdims=True)}}

class Slow(farm.Model):
    name = "slow"
    inputs = {{"seconds": 1}}
    outputs = {{"seconds": 1}}

    def evaluate(self, inputs, config):
        time.sleep(float(inputs["seconds"][0]))
        return inputs["seconds"]

class Count(farm.Model):
    name = "count"
    inputs = {{"n": TensorInfo("n", (1,), "int32")}}
    outputs = {{"i": TensorInfo("i", (1,), "int32")}}

    def stream(self, inputs, config):
        for i in range(int(inputs["n"][0])):
            yield [i]

class Any(farm.Model):
    name = "any size/é %"
    inputs = {{"x": (-1, 2)}}
    outputs = {{"y": (2, -1)}}

    def evaluate(self, inputs, config):
        return inputs["x"].T

def echo(dtype):
    class Echo(farm.Model):
        name = "echo_" + dtype
        inputs = {{"x": TensorInfo("x", (2,), dtype)}}
        outputs = {{"y": TensorInfo("y", (2,), dtype)}}

        def evaluate(self, inputs, config):
            return inputs["x"]

    return Echo

for dtype in {sorted(DATATYPES.values())}:
    globals()["Echo_" + dtype] = echo(dtype)
"""

SPECS = ("Twice", "Slow", "Count", "Any", *(f"Echo_{d}" for d in sorted(DATATYPES.values())))

VALUES: dict[str, Any] = {
    "BOOL": np.array([True, False]),
    "BYTES": np.array(["grüße", ""], object),
    "FP16": np.array([0.1, -np.inf], "float16"),
    "BF16": np.array([0.1, 3.0], ml_dtypes.bfloat16),
    "FP32": np.array([0.1, np.inf], "float32"),
    "FP64": np.array([0.1, np.nan]),
} | {
    DATATYPES[d].upper(): np.array([np.iinfo(t).min, np.iinfo(t).max], t)
    for d, t in DATATYPES.items()
    if "INT" in d
}
"""Two values of each datatype."""


TRITON_FARM = farm_of(MODELS, *SPECS, options="--grpc-port 0", workers=2)
"""A fixture: the models of `MODELS` at two workers, over HTTP and gRPC."""


class Stream:
    """A client's stream over gRPC, and the answers that it received."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: self._answers.put((result, error)))

    def ask(self, model: str, *given: Any, **options: Any) -> None:
        """Send a request with these inputs."""
        self.client.async_stream_infer(model, list(given), **options)

    def get(self) -> tuple[Any, Any]:
        """Return the next result or error."""
        return self._answers.get(timeout=LIMIT_S)

    def result(self) -> Any:
        """Return the next result, which is no error."""
        result, error = self.get()
        assert error is None, error.message()
        return result

    def end(self) -> None:
        """End it; no further answer has come."""
        self.client.stop_stream()
        assert self._answers.empty()


@dataclass(frozen=True)
class Way:
    """A way to call the farm: the clients' modules, and what differs between them.

    forms: options of tensors; as_json: those that make answers dictionaries.
    """

    name: str
    sync: ModuleType
    aio: ModuleType
    statuses: Mapping[str, str]
    forms: Mapping[str, Any] = field(default_factory=dict)
    as_json: Mapping[str, Any] = field(default_factory=dict)

    def address(self, served: Served) -> str:
        """Return where clients connect."""
        grpc = self.sync is tritonclient.grpc
        return served.connection.grpc if grpc else urlsplit(served.connection.url).netloc

    def tensor(self, values: Any, name: str = "x", datatype: str = "FP64") -> Any:
        """Return an input."""
        array = np.asarray(values)
        given = self.sync.InferInput(name, list(array.shape), datatype)
        given.set_data_from_numpy(array, **self.forms)
        return given

    def outputs(self, *names: str) -> list[Any]:
        """Return requested outputs."""
        return [self.sync.InferRequestedOutput(name, **self.forms) for name in names]

    @contextmanager
    def refused(self, status: str, text: str, *, whole: bool = False) -> Iterator[None]:
        """Expect an error. status: by its name in gRPC; whole: the text is all of its message."""
        with pytest.raises(InferenceServerException) as caught:
            yield
        assert caught.value.status() == self.statuses[status]
        message = caught.value.message()
        assert (message == text) if whole else (text in message)


_NUMBERS = {"NOT_FOUND": "404", "INVALID_ARGUMENT": "400", "UNIMPLEMENTED": "501"}
_NUMBERS |= {"INTERNAL": "500", "ALREADY_EXISTS": "400", "DEADLINE_EXCEEDED": "504"}
_HTTP = (tritonclient.http, tritonclient.http.aio, _NUMBERS)
HTTP = Way("http", *_HTTP, {"binary_data": True})
JSON = Way("http as JSON", *_HTTP, {"binary_data": False})
GRPC = Way(
    "grpc",
    tritonclient.grpc,
    tritonclient.grpc.aio,
    {name: f"StatusCode.{name}" for name in _NUMBERS},
    as_json={"as_json": True},
)
