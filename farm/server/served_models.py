"""The models of a farm in its status: their inputs and outputs, with units and descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farm.call import ModelInfo, TensorInfo

MOST_MODELS = 100
MOST_TENSORS = 12
"""Most inputs, and most outputs, of a model: the status is read each second."""


def served_models(models: Mapping[str, ModelInfo]) -> list[dict[str, Any]]:
    """Return the first MOST_MODELS models by name as plain JSON data.

    Inputs and outputs are as in `TensorInfo.to_json`, the first MOST_TENSORS of each; `left_out` is
    the number of the others.
    """
    return [_described(models[name]) for name in sorted(models)[:MOST_MODELS]]


def _described(info: ModelInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "description": info.description,
        "version": info.version,
        "inputs": _first(info.inputs),
        "outputs": _first(info.outputs),
        "left_out": sum(max(0, len(t) - MOST_TENSORS) for t in (info.inputs, info.outputs)),
    }


def _first(tensors: Sequence[TensorInfo]) -> list[dict[str, Any]]:
    return [tensor.to_json() for tensor in tensors[:MOST_TENSORS]]
