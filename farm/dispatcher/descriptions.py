"""A cache of model descriptions by config, so that a repeated question needs no worker."""

from __future__ import annotations

from collections import OrderedDict

from farm.call import ModelInfo

MOST_KEPT = 4096
"""Most cached descriptions; a new config per call, such as a seed, must not fill the memory."""

LONGEST_CONFIG = 16 * 1024
"""Longest config, in characters, whose description is cached, for the same reason."""


class Descriptions:
    """The most recently used descriptions, by model and config."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], ModelInfo] = OrderedDict()

    def find(self, model: str, config: str) -> ModelInfo | None:
        """Return the description of a model for a config, if it is cached."""
        info = self._kept.get((model, config))
        if info is not None:
            self._kept.move_to_end((model, config))
        return info

    def keep(self, model: str, config: str, info: ModelInfo) -> None:
        """Cache a description; if there are too many, drop the least recently used one."""
        if len(config) > LONGEST_CONFIG:
            return
        self._kept[model, config] = info
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def forget(self, model: str) -> None:
        """Drop all descriptions of a model that has changed."""
        for key in [key for key in self._kept if key[0] == model]:
            del self._kept[key]
