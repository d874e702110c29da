"""Long-running work of an experiment as values: requests with their data, and results.

A point is an array of shape (stimuli, d): the coordinates of the d free parameters, see `space.py`.
Work is a function of its values alone: any process gives the same points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from farm.call import Array
from farm.experiment.config.definition import Config


@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """The trials to model, in the order in which they were reported.

    x: shape (n, stimuli, d). y: shape (n, outcomes). fit_to: the hyperparameters are estimated from
    so many first trials; all trials are conditioned on. See `refit_every`.
    """

    x: Array
    y: Array
    fit_to: int


@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """A request for the next `count` points of strategy number `strategy`.

    asked: number of points that this strategy has produced, where a sequence continues. pending:
    points without an outcome yet, shape (p, stimuli, d). fixed: coordinates held constant, by
    parameter name. seed: of the experiment; random numbers depend on it, `strategy` and `asked`
    only. filler: points that fill the space, whatever the strategy; `asked` then counts those.
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
    """Generated points. points: shape (m, stimuli, d); m may differ from the count.

    note: how they were generated if it differs from the config. post_range: the range of the
    surrogate's mean, or probability.
    """

    points: Array
    note: str = ""
    post_range: float | None = None


class QueryKind(StrEnum):
    """Allowed values of `query_type`."""

    MAX = "max"
    MIN = "min"
    PREDICTION = "prediction"
    INVERSE = "inverse"


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A question to the surrogate of strategy number `strategy`.

    x: for a prediction, shape (1, stimuli, d), or (1, 1, d) for one stimulus of a pair; y: for an
    inverse, the value whose point is sought. constraints: coordinates held constant, by parameter
    name. probability: values are probabilities instead of values of the latent function.
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
    """The answer to a Query.

    x: shape (1, stimuli, d), or (1, 1, d) for one stimulus of a pair; y: the mean there, one number
    for each outcome.
    """

    x: Array
    y: tuple[float, ...]


Work = Generate | Query
