"""Models that several protocols serve in tests, and how these ask and watch them."""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np

import farm
from farm.call import Call, Operation, TensorInfo
from farm.declared import Tensors
from farm.errors import FarmError
from farm.model import Config, Inputs, Model
from farm.worker.runner import Runner
from tests.support.front_door import WAIT_S, Door


class Gate(Model):
    """Stays in evaluate until the test opens it; counts its calls, and fails for negatives."""

    def __init__(self, size: int = 1) -> None:
        self.inputs = {"x": size}
        self.outputs = {"y": size}
        self.begun, self.open = threading.Event(), threading.Event()
        self.calls = 0

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.calls += 1
        self.begun.set()
        assert self.open.wait(WAIT_S)
        if inputs["x"][0] < 0:
            raise ValueError("negative")
        return inputs["x"]


@farm.model(inputs={"x": 2}, outputs={"y": 2, "total": ()})
def double(x: Any, config: Any) -> Any:
    """Twice the numbers."""
    if x[0] > 1000:
        raise ValueError("no mesh")
    return config.get("factor", 2) * x, x.sum()


class Count(Model):
    """Streams 0, 1, ... up to its input."""

    inputs = {"x": 1}
    outputs = {"i": 1}

    def stream(self, inputs: Inputs, config: Config) -> Any:
        for i in range(int(inputs["x"][0])):
            yield [i]


class Sized(Model):
    """Adds its numbers; the config specifies how many they are."""

    def __init__(self, size: int = 1) -> None:
        self._size = size

    def describe(self, config: Config) -> tuple[Tensors, Tensors]:
        if config.get("n") == "bad":
            raise ValueError("n is bad")
        return {"x": config.get("n", self._size)}, {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"].sum()


class Net(Model):
    """Batched, single precision; records how many rows were evaluated together."""

    inputs = {"x": TensorInfo("x", (3,), "float32")}
    outputs = {"y": TensorInfo("y", (1,), "float32")}
    max_batch = 8

    def __init__(self) -> None:
        self.rows: list[int] = []

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.rows.append(len(inputs["x"]))
        return inputs["x"].sum(axis=1, keepdims=True)


@farm.model(
    inputs={"text": TensorInfo("text", (-1,), "bytes")},
    outputs={"length": TensorInfo("length", (-1,), "int64")},
)
def lengths(text: Any) -> Any:
    return [len(t) for t in text]


NET = Net()
SERVED: dict[str, Model] = {"double": double, "net": NET, "a b/c": lengths}
"""Models of a farm that another farm asks."""


def answered(model: Model, *inputs: Any, rows: int | None = None, config: str = "{}") -> Any:
    """Return the outputs of one call, as a farm's worker gets them, or raise its error."""
    arrays = tuple(np.asarray(x) for x in inputs)
    call = Call("m", Operation.EVALUATE, arrays, rows=rows, config=config)
    (outcome,) = Runner({"m": model}).execute([call])
    if isinstance(outcome, FarmError):
        raise outcome
    return outcome.outputs


def posted(door: Door, path: str, body: bytes) -> socket.socket:
    """Return a bare connection that has sent this request."""
    connection = door.connect()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def open_calls(door: Door) -> int:
    """Return the number of calls that wait or run."""
    return int(sum(row["queued"] + row["in_flight"] for row in door.snapshot()["queues"]))
