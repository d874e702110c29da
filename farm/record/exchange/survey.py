"""Counts of the evaluations in a record, by model, version and operation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.call import ModelInfo
from farm.record.entry import Entry, Status
from farm.record.file import entries_in, lock_of
from farm.storage.frames import Damage
from farm.storage.lock import is_held

Tick = Callable[[int], None]
"""Is called with the number of bytes that were read since the last time."""


@dataclass(slots=True)
class OperationCounts:
    """Counts of the evaluations of one operation of one version of a model.

    first, last: Unix times of the first and the last one.
    """

    model: str
    version: str
    operation: str
    points: int = 0
    not_finite: int = 0
    failed: int = 0
    run_time_s: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def add(self, entry: Entry) -> None:
        """Count an evaluation."""
        self.points += 1
        self.not_finite += entry.status is Status.NOT_FINITE
        self.failed += entry.status is Status.FAILED
        self.run_time_s += entry.run_time_s
        self.first = min(self.first or entry.time, entry.time)
        self.last = max(self.last, entry.time)

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Survey:
    """The content of one record. models: the latest description of each version of a model."""

    path: Path
    counts: dict[tuple[str, str, str], OperationCounts] = field(default_factory=dict)
    models: dict[tuple[str, str], ModelInfo] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    bytes: int = 0
    in_use: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the content as JSON data."""
        return {
            "file": str(self.path),
            "bytes": self.bytes,
            "in_use": self.in_use,
            "damaged": [[place.start, place.end] for place in self.damage],
            "evaluations": [counts.to_json() for counts in self.counts.values()],
        }


def survey(path: Path, tick: Tick = lambda done: None) -> Survey:
    """Read a record once and return what it holds. Raises Unavailable."""
    found = Survey(path, in_use=is_held(lock_of(path)))
    for content, _, end in entries_in(path, found.damage.append):
        tick(end - found.bytes)
        found.bytes = end
        if isinstance(content, bytes):
            info = described(content)
            if info is not None:
                found.models[info.name, info.version] = info
            continue
        key = content.model, content.version, content.operation.value
        counts = found.counts.get(key)
        if counts is None:
            counts = found.counts[key] = OperationCounts(*key)
        counts.add(content)
    return found


def described(content: bytes) -> ModelInfo | None:
    """Return the description in a model's record; None if a later farm wrote another form."""
    try:
        return ModelInfo.from_json(json.loads(content))
    except (KeyError, TypeError, ValueError):
        return None
