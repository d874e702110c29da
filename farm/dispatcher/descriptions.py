"""The descriptions of models, kept by config so that a repeated question needs no worker."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from farm.call import EMPTY_CONFIG, ModelInfo
from farm.scheduler.state import WorkerId

log = logging.getLogger(__name__)

MOST_KEPT = 4096
"""Most cached descriptions; a new config per call, such as a seed, must not fill the memory."""

LONGEST_CONFIG = 16 * 1024
"""Longest config, in characters, whose description is cached, for the same reason."""


class Descriptions:
    """The descriptions for the empty config, and the most recently used ones for others.

    models: those for the empty config, by model.
    """

    def __init__(self) -> None:
        self.models: dict[str, ModelInfo] = {}
        self._kept: OrderedDict[tuple[str, str], ModelInfo] = OrderedDict()

    def find(self, model: str, config: str = EMPTY_CONFIG) -> ModelInfo | None:
        """Return the model's description for a config, if it is known."""
        if config == EMPTY_CONFIG:
            return self.models.get(model)
        info = self._kept.get((model, config))
        if info is not None:
            self._kept.move_to_end((model, config))
        return info

    def know(self, model: ModelInfo, worker: WorkerId) -> None:
        """Note the description of a worker that joined; a new one replaces those that were kept."""
        known = self.models.get(model.name)
        if known is not None and known != model:
            log.warning("worker %s has a new description of model %r", worker, model.name)
            for key in [key for key in self._kept if key[0] == model.name]:
                del self._kept[key]
        self.models[model.name] = model

    def keep(self, model: str, config: str, info: ModelInfo) -> None:
        """Cache a description; if there are too many, drop the least recently used one."""
        if len(config) > LONGEST_CONFIG:
            return
        self._kept[model, config] = info
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)


MOST_MODELS = 100
MOST_TENSORS = 12
"""Most inputs, and most outputs, of a model: the status is read each second."""


def served_models(models: Mapping[str, ModelInfo]) -> list[dict[str, Any]]:
    """Return the first MOST_MODELS models by name as plain JSON data.

    Inputs and outputs are as in `TensorInfo.to_json`, the first MOST_TENSORS of each; `left_out` is
    the number of the others.
    """
    return [
        {
            "name": info.name,
            "description": info.description,
            "version": info.version,
            "inputs": [tensor.to_json() for tensor in info.inputs[:MOST_TENSORS]],
            "outputs": [tensor.to_json() for tensor in info.outputs[:MOST_TENSORS]],
            "left_out": sum(max(0, len(t) - MOST_TENSORS) for t in (info.inputs, info.outputs)),
        }
        for _, info in sorted(models.items())[:MOST_MODELS]
    ]
