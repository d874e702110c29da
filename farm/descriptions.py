"""What models say of themselves for a config: kept, so that asking again needs no worker."""

from __future__ import annotations

from collections import OrderedDict

from farm.call import ModelInfo

MOST_KEPT = 4096
"""Descriptions kept per farm; a config per call, as with a seed in it, must not fill the memory."""

LONGEST_CONFIG = 16 * 1024
"""Characters of a config whose description is kept, for the same reason."""


class Descriptions:
    """The descriptions that were used last, by model and config."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], ModelInfo] = OrderedDict()

    def find(self, model: str, config: str) -> ModelInfo | None:
        """The description of a model for a config, if it is kept."""
        info = self._kept.get((model, config))
        if info is not None:
            self._kept.move_to_end((model, config))
        return info

    def keep(self, model: str, config: str, info: ModelInfo) -> None:
        """Keep a description; the one that was not used for longest goes when there are many."""
        if len(config) > LONGEST_CONFIG:
            return
        self._kept[model, config] = info
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def forget(self, model: str) -> None:
        """Drop all descriptions of a model, which is another one now."""
        for key in [key for key in self._kept if key[0] == model]:
            del self._kept[key]
