"""Models with derivatives in closed form, which count their calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import farm
from farm.call import Array
from farm.model import Config, Inputs

MATRIX = np.array([[0.4, -1.1], [0.7, 0.3], [-0.2, 0.9]])

COUNTS: Counter[str] = Counter()
"""Calls of the models by model and operation, in threads of this process."""

_lock = threading.Lock()


def count(model: str, operation: str) -> None:
    with _lock:
        COUNTS[f"{model} {operation}"] += 1


def waves_by(tanh: Callable[[Any], Any], matrix: Any, out: str | list[str]) -> Callable[..., Any]:
    """Return outputs of the model `waves` as a function in the arithmetic of a framework."""

    def function(x: Any, k: Any) -> Any:
        y = tanh(matrix @ x) * k
        found = {"y": y, "sum": (y**2).sum()}
        return found[out] if isinstance(out, str) else tuple(found[name] for name in out)

    return function


class Waves(farm.Model):
    """y = k tanh(A x), and the sum of its squares; with all derivatives."""

    name = "waves"
    inputs = {"x": 2, "k": 1}
    outputs = {"y": 3, "sum": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        count(self.name, "evaluate")
        y = np.tanh(MATRIX @ inputs["x"]) * inputs["k"]
        return {"y": y, "sum": [(y**2).sum()]}

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
    ) -> Any:
        count(self.name, "gradient")
        k, t = inputs["k"][0], np.tanh(MATRIX @ inputs["x"])
        if out_wrt == 1:
            sens = sens[0] * 2.0 * t * k
        return MATRIX.T @ (sens * k * (1.0 - t**2)) if in_wrt == 0 else [sens @ t]

    def apply_jacobian(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, vec: Array, config: Config
    ) -> Any:
        count(self.name, "apply_jacobian")
        k, t = inputs["k"][0], np.tanh(MATRIX @ inputs["x"])
        moved = k * (1.0 - t**2) * (MATRIX @ vec) if in_wrt == 0 else t * vec[0]
        return moved if out_wrt == 0 else [2.0 * t * k @ moved]

    def apply_hessian(
        self,
        out_wrt: int,
        in_wrt1: int,
        in_wrt2: int,
        inputs: Inputs,
        sens: Array,
        vec: Array,
        config: Config,
    ) -> Any:
        count(self.name, "apply_hessian")
        k, t = inputs["k"][0], np.tanh(MATRIX @ inputs["x"])
        d = 1.0 - t**2
        along_x = MATRIX @ vec if in_wrt2 == 0 else np.zeros(3)
        along_k = vec[0] if in_wrt2 == 1 else 0.0
        if out_wrt == 0:
            if in_wrt1 == 0:
                return MATRIX.T @ (sens * d * (along_k - 2.0 * k * t * along_x))
            return [(sens * d) @ along_x]
        if in_wrt1 == 0:
            bent = 2.0 * k**2 * d * (1.0 - 3.0 * t**2) * along_x + 4.0 * k * t * d * along_k
            return sens[0] * MATRIX.T @ bent
        return [sens[0] * (4.0 * k * (t * d) @ along_x + 2.0 * (t @ t) * along_k)]


class Density(farm.Model):
    """The log density of a standard normal vector; x[0] = 13 fails."""

    name = "density"
    inputs = {"x": 2}
    outputs = {"log": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        count(self.name, "evaluate")
        x = inputs["x"]
        if x[0] == 13.0:
            raise ValueError("thirteen is not for me")
        return [-0.5 * (x @ x) + config.get("add", 0.0)]

    def gradient(
        self, out_wrt: int, in_wrt: int, inputs: Inputs, sens: Array, config: Config
    ) -> Any:
        count(self.name, "gradient")
        return -sens[0] * inputs["x"]


class Plain(farm.Model):
    """Values only, of an input of whole numbers beside one of real ones."""

    name = "plain"
    inputs = {"x": 2, "n": farm.TensorInfo("n", (1,), "int64")}
    outputs = {"y": 2, "total": farm.TensorInfo("total", (1,), "int64")}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        count(self.name, "evaluate")
        return {"y": inputs["x"] * inputs["n"], "total": inputs["n"]}


class Dice(farm.Model):
    """A model that must not run twice."""

    name = "dice"
    inputs = {"x": 1}
    outputs = {"y": 1}
    repeatable = False

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        count(self.name, "evaluate")
        return inputs["x"]


class Loose(farm.Model):
    """Of varying size, which ops cannot have."""

    name = "loose"
    inputs = {"x": farm.TensorInfo("x", (-1,))}
    outputs = {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return [inputs["x"].sum()]
