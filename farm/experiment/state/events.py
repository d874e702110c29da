"""The events of an experiment, one value per fact, as the journal stores them.

Applying them in order gives the experiment's state, see `experiment.py`. As JSON they are objects
of plain values, with non-finite numbers as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput


class RunPhase(StrEnum):
    """The state of a closed loop, in which farm itself asks, evaluates and tells."""

    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """experiment: its number. time: Unix seconds."""

    experiment: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetUp(Event):
    """An experiment began. config_text: its configuration as INI text.

    experiment_id: the `exp_id` in the answer to `info`. seed: the seed of its random numbers.
    """

    config_text: str
    experiment_id: str
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seeded(Event):
    """A strategy begins with trials of earlier experiments.

    strategy: position of the first strategy that uses them. points: shape (n, stimuli, d).
    outcomes: shape (n, outcomes), all finite. note: a sentence about their origin.
    """

    strategy: int
    points: Array
    outcomes: Array
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked(Event):
    """Points were handed out; they are pending from now on.

    points: shape (n, stimuli, d), as in `work.py`. ids: one for each point. strategy: position of
    the one that generated them; a later one than before becomes current. note, post_range: from
    Generated. filler: they fill the space, whatever the strategy. run: the closed loop has them
    evaluated.
    """

    points: Array
    ids: tuple[int, ...]
    strategy: int
    note: str = ""
    post_range: float | None = None
    filler: bool = False
    run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Told(Event):
    """Trials were recorded.

    points: shape (n, stimuli, d). outcomes: shape (n, outcomes), not necessarily finite. ids: of
    the pending point that each trial answers, or None. model_data: whether to model those with
    finite outcomes. extra: further values of the message, such as response_time.
    """

    points: Array
    outcomes: Array
    ids: tuple[int | None, ...]
    model_data: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def modelled(self) -> Array:
        """Mask of the trials that are modelled, shape (n,)."""
        finite: Array = np.asarray(np.isfinite(self.outcomes).all(axis=1))
        return finite if self.model_data else np.zeros_like(finite)

    def in_pieces(self, most: int) -> tuple[Told, ...]:
        """Split into events of at most `most` trials each; without trials, return no event."""
        count = len(self.points)
        if count <= most:
            return (self,) if count else ()
        return tuple(
            replace(
                self,
                points=self.points[part],
                outcomes=self.outcomes[part],
                ids=self.ids[part],
                extra=self.extra_of(part),
            )
            for part in [slice(first, first + most) for first in range(0, count, most)]
        )

    def extra_of(self, place: int | slice) -> dict[str, Any]:
        """Return the extra values of some trials: lists with an entry per trial are split."""
        count = len(self.ids)
        return {
            key: value[place] if isinstance(value, list) and len(value) == count else value
            for key, value in self.extra.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Failed(Event):
    """The evaluation of points failed permanently. attempts: number of tries of each."""

    ids: tuple[int, ...]
    error: str
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished(Event):
    """A strategy was ended by request; the next ask moves on from it. strategy: its position."""

    strategy: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Released(Event):
    """Points are no longer pending, because their outcome is overdue."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunState(Event):
    """The closed loop began, paused or ended. why: one sentence, empty for a plain request.

    in_flight, budget: the values it began with; None: those of the [farm] section. version: that of
    the model, job: that of the batch system; "" if there is none.
    """

    phase: RunPhase
    why: str = ""
    in_flight: int | None = None
    budget: int | None = None
    version: str = ""
    job: str = ""


_KINDS: dict[str, type[Event]] = {
    "setup": SetUp,
    "asked": Asked,
    "told": Told,
    "failed": Failed,
    "finished": Finished,
    "released": Released,
    "run": RunState,
    "seeded": Seeded,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(event: Event) -> dict[str, Any]:
    """Return the event as plain JSON values; `event` is the name of its kind."""
    values = {f.name: _plain(getattr(event, f.name)) for f in fields(event)}
    return {"event": _NAMES[type(event)], **values}


def from_json(value: Mapping[str, Any]) -> Event:
    """Return the event that `to_json` encoded. Raises InvalidInput."""
    name = value.get("event")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidInput(f"event {name!r} is unknown; expected one of {', '.join(_KINDS)}")
    try:
        known = [f.name for f in fields(kind) if f.name in value]
        return kind(**{key: _read(key, value[key]) for key in known})
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidInput(f"event {name!r} is damaged: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # Nested lists cannot represent a shape in which one of the lengths is 0.
        values = value.ravel().tolist()
        finite = np.isfinite(value).all()
        return {"shape": list(value.shape), "values": values if finite else _plain(values)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return value


def _read(key: str, value: Any) -> Any:
    if key in ("points", "outcomes"):
        numbers = np.array([float(entry) for entry in value["values"]], dtype=np.float64)
        return numbers.reshape([int(n) for n in value["shape"]])
    if key == "ids":
        return tuple(value)
    if key == "phase":
        return RunPhase(value)
    return float(value) if key == "post_range" and value is not None else value
