"""Files of PyTorch: a network that is known in closed form, scripted or exported."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.export

from farm.worker.frameworks.torch import TorchModel

WEIGHTS = np.random.default_rng(3).standard_normal((2, 3))


class Scaled(torch.nn.Module):  # type: ignore[misc]  # torch is not read for its types
    """y = tanh(W x) k, and the sum of its squares."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2, bias=False, dtype=dtype)
        self.linear.weight = torch.nn.Parameter(torch.tensor(WEIGHTS, dtype=dtype))

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.tanh(self.linear(x)) * k
        return {"y": y, "norm": y.pow(2).sum(-1)}


def script(module: torch.nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch recommends .pt2 instead
        torch.jit.save(torch.jit.script(module), str(path))
    return path


def export(module: torch.nn.Module, inputs: tuple[Any, ...], path: Path, most: int = 0) -> Path:
    """Exported with a batch axis; `most` bounds it."""
    axis = torch.export.Dim("n", max=most) if most else torch.export.Dim.DYNAMIC
    shapes = tuple({0: axis} for _ in inputs)
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=shapes), path)
    return path


def opened(path: Path, **options: Any) -> TorchModel:
    """The model of a scripted `Scaled`."""
    return TorchModel(path, inputs={"x": 3, "k": 1}, outputs={"y": 2, "norm": ()}, **options)
