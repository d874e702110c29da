"""A line that a test scripts, and models to be called over real ones."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from farm.call import Call, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.client import Client
from farm.client.line import Outcome, Receiver
from farm.errors import ModelNotFound

CUBE = ModelInfo("cube", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),))

MODELS = """
import os, threading, time
import numpy as np
import farm

class Affine(farm.Model):
    '''y = A x + b by rows; what it does besides, its config says.'''
    name = "affine"
    inputs = {"x": (2, 2)}
    outputs = {"y": 2}

    def evaluate(self, inputs, config):
        if "sleep" in config:
            time.sleep(config["sleep"])
        return inputs["x"].sum(axis=1) + config.get("add", 0.0)

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return np.repeat(sens, 2).reshape(2, 2)

    def apply_jacobian(self, out_wrt, in_wrt, inputs, vec, config):
        return vec.sum(axis=1)

class Two(farm.Model):
    '''Two inputs, two outputs; sizes by config.'''
    name = "two"
    inputs = {"a": 2, "k": farm.TensorInfo("k", (1,), "int64")}
    outputs = {"sum": 1, "copy": 2}

    def describe(self, config):
        n = config.get("n", 2)
        return {**self.inputs, "a": n}, {"sum": 1, "copy": n}

    def evaluate(self, inputs, config):
        return {"sum": inputs["a"].sum() * inputs["k"], "copy": inputs["a"]}

    def apply_hessian(self, out_wrt, in_wrt1, in_wrt2, inputs, sens, vec, config):
        return np.full(inputs[in_wrt1].shape, sens[0] * vec[0])

class Moody(farm.Model):
    '''x -> x, or what x says goes wrong.'''
    name = "moody"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        x = inputs["x"][0]
        if x == -1.0:
            raise ValueError("minus one is not for me")
        if x == -2.0:
            return np.zeros(3)
        if x == -3.0:
            os._exit(3)
        if x == -4.0:
            return np.array([np.nan])
        if x > 100.0:
            time.sleep(x - 100.0)
        return x

class Plane(farm.Model):
    '''y = 2 x, with its derivatives.'''
    name = "plane"
    inputs = {"x": 2}
    outputs = {"y": 2}

    def evaluate(self, inputs, config):
        return 2.0 * inputs["x"]

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return 2.0 * sens

    apply_jacobian = gradient

    def apply_hessian(self, out_wrt, in_wrt1, in_wrt2, inputs, sens, vec, config):
        return 0.0 * vec

class Misfit(farm.Model):
    '''|k|^2 / 2, with its derivatives.'''
    name = "misfit"
    inputs = {"k": 4}
    outputs = {"misfit": 1}

    def evaluate(self, inputs, config):
        return 0.5 * (inputs["k"] ** 2).sum()

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        return sens * inputs["k"]

    def apply_hessian(self, out_wrt, in_wrt1, in_wrt2, inputs, sens, vec, config):
        return sens * vec

class Beam(farm.Model):
    name = "beam"
    inputs = {"load": 1, "thickness": 1}
    outputs = {"deflection": 1}

    def evaluate(self, inputs, config):
        return inputs["load"] / inputs["thickness"]

class Long(farm.Model):
    '''Many numbers there and back: 10^6, or as many as the config has.'''
    name = "long"

    def describe(self, config):
        n = config.get("n", 10**6)
        return {"x": n}, {"y": n}

    def evaluate(self, inputs, config):
        return 2.0 * inputs["x"]

class Once(farm.Model):
    '''Must not run twice.'''
    name = "once"
    inputs = {"x": 1}
    outputs = {"y": 1}
    repeatable = False

    def evaluate(self, inputs, config):
        os._exit(3)
"""
"""A model file for `farm serve`."""


class HandLine:
    """Keeps calls until the test answers them, in any order."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self.waiting: dict[int, tuple[Any, Call, Receiver]] = {}
        self.messages: list[list[Call]] = []
        self.hints: list[Hints] = []
        self.taken: list[int] = []
        self.closed = False

    def send(
        self, calls: Sequence[tuple[Any, Call]], hints: Hints, receiver: Receiver
    ) -> Sequence[int]:
        with self._lock:
            self.messages.append([call for _, call in calls])
            self.hints.append(hints)
            ids = [next(self._ids) for _ in calls]
            for call_id, (key, call) in zip(ids, calls, strict=True):
                self.waiting[call_id] = key, call, receiver
        return ids

    def cancel(self, ids: Iterable[int]) -> bool:
        taken = [i for i in ids if self.waiting.pop(i, None) is not None]
        self.taken += taken
        return bool(taken)

    def names(self) -> list[str]:
        return [CUBE.name]

    def describe(self, model: str, config: str) -> ModelInfo:
        if model != CUBE.name:
            raise ModelNotFound(f"no {model} here")
        return CUBE

    def ask(self, what: str, arguments: Mapping[str, str]) -> Any:
        raise AssertionError("nothing is asked")

    def status(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.closed = True

    def answer(self, *ids: int, outcome: Outcome | None = None) -> None:
        """Settle these calls with an outcome, or by default with their cubes."""
        receivers = []
        for call_id in ids:
            key, call, receiver = self.waiting.pop(call_id)
            receivers.append(receiver)
            receiver.put(key, outcome or Result((call.inputs[0] ** 3,)))
        for one in receivers:
            one.flush()

    def answer_all(self) -> None:
        """Settle all pending calls with their cubes."""
        self.answer(*list(self.waiting))


def cube_calls(count: int) -> list[Call]:
    """Return the calls of `cube` at 0, 1, 2, ..."""
    return [Call("cube", Operation.EVALUATE, (np.array([float(i)]),)) for i in range(count)]


def in_farm(client: Client) -> int:
    """Return the calls that a farm has, waiting or running."""
    return sum(q["queued"] + q["in_flight"] for q in client.status()["queues"])


class Inbox:
    """A receiver that keeps the outcomes by their keys, one for each."""

    def __init__(self) -> None:
        self.outcomes: dict[object, Outcome] = {}
        self.flushes = 0

    def put(self, key: object, outcome: Outcome) -> None:
        assert key not in self.outcomes, f"a second outcome for {key}"
        self.outcomes[key] = outcome

    def flush(self) -> None:
        self.flushes += 1
