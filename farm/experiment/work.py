"""What takes a while in an experiment, as values: what to make of which data, and what came out.

A point is an array of shape (stimuli, d): the coordinates of the d free parameters, in the order of
the config, in the units of the user; a categorical one has the index of its choice. All work is a
function of its values alone: the same work gives the same points, in whatever process and however
often, so that a lost process is no more than a delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from farm.call import Array
from farm.experiment.config import Config


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """The trials that are modelled, in the order they were told.

    x: shape (n, stimuli, d). y: shape (n, outcomes).
    fit_to: the surrogate's own numbers (length scales, noise) are found from the first so many
    trials; all are conditioned on. It stands still between fits, see `refit_every`.
    """

    x: Array
    y: Array
    fit_to: int


@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """The next `count` points of strategy number `strategy`.

    asked: points that this strategy has given before: where a sequence goes on.
    pending: points whose outcome is not known yet, shape (p, stimuli, d).
    fixed: coordinates that are held, by the parameter's name.
    seed: of the experiment; random numbers depend on it, on `strategy` and on `asked` alone.
    filler: wanted are points that fill the space, whatever the strategy, as a surrogate takes its
    time and workers would idle; `asked` counts such points.
    """

    config: Config
    strategy: int
    count: int
    asked: int
    data: Data
    pending: Array
    fixed: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    filler: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """points: shape (m, stimuli, d); m is what the generator gave, see `ask` in the sheet.

    note: how they were made if not as the config says, for the record. post_range: the
    difference of the surrogate's greatest and least mean (probability for binary outcomes).
    """

    points: Array
    note: str = ""
    post_range: float | None = None


class QueryKind(StrEnum):
    """The words of `query_type`."""

    MAX = "max"
    MIN = "min"
    PREDICTION = "prediction"
    INVERSE = "inverse"


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A question to the surrogate of strategy number `strategy`.

    x: for a prediction, shape (1, stimuli, d), or (1, 1, d) for one stimulus of a pair; y: the
    value whose point is sought, for an inverse.
    constraints: coordinates that are held, by the parameter's name.
    probability: values are probabilities, not of the latent function.
    max_time_s: how long the search may take; None: as long as it needs.
    """

    config: Config
    strategy: int
    kind: QueryKind
    data: Data
    x: Array | None = None
    y: float | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)
    probability: bool = False
    max_time_s: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """x: shape (1, stimuli, d), or (1, 1, d) for one stimulus of a pair; y: the mean there, one
    number for each outcome."""

    x: Array
    y: tuple[float, ...]


Work = Generate | Query
