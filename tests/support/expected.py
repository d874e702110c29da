"""An expectation of workers that a test sets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from farm.dispatcher.first_worker import Expectation


@dataclass
class Expected(Expectation):
    """Workers that may come. whys and starts: reasons and times by model."""

    incomplete: bool = False
    may_come: bool = False
    reason: str = ""
    whys: dict[str, str] = field(default_factory=dict)
    starts: dict[str, float | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def awaited(self, known: Collection[str]) -> str:
        return self.reason

    def why(self, model: str) -> str:
        return self.whys.get(model, "")

    def starts_in(self, model: str) -> float | None:
        self.asked.append(model)
        return self.starts.get(model)
