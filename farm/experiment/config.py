"""What an experiment is: its parameters, outcomes and strategies, as a configuration says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ParameterKind(StrEnum):
    """The words of `par_type`."""

    CONTINUOUS = "continuous"
    INTEGER = "integer"
    BINARY = "binary"
    FIXED = "fixed"
    CATEGORICAL = "categorical"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that varies from point to point, in the units of the user.

    lower, upper: bounds, both included; 0 and 1 for a binary one, 0 and the number of choices less
    one for a categorical one, whose coordinate is the index of the choice.
    value: what a fixed one always is; it is no coordinate.
    """

    name: str
    kind: ParameterKind = ParameterKind.CONTINUOUS
    lower: float = 0.0
    upper: float = 1.0
    log_scale: bool = False
    choices: tuple[str, ...] = ()
    value: float | str | None = None


class OutcomeKind(StrEnum):
    """The words of `outcome_types`."""

    BINARY = "binary"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One thing that is observed at a point."""

    name: str
    kind: OutcomeKind


Options = Mapping[str, str]
"""Options of a section as they were written, names in lower case, those of [common] included."""


@dataclass(frozen=True, slots=True)
class Acquisition:
    """How the next point is judged. kind: the name of its class; name: of its section.

    objective: kind of what outcomes are turned into before, such as "ProbitObjective", or "".
    """

    kind: str
    name: str
    options: Options = field(default_factory=dict)
    objective: str = ""


@dataclass(frozen=True, slots=True)
class Generator:
    """What makes points. parts: one generator for each outcome, of those that are independent."""

    kind: str
    name: str
    options: Options = field(default_factory=dict)
    acquisition: Acquisition | None = None
    parts: tuple[Generator, ...] = ()


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What is fitted to the data. parts: one for each outcome, of those that are independent."""

    kind: str
    name: str
    options: Options = field(default_factory=dict)
    parts: tuple[Surrogate, ...] = ()


@dataclass(frozen=True, slots=True)
class Strategy:
    """A generator, perhaps with a surrogate, and when it is finished (sheet, section 6).

    keep_most_recent: only so many of the last trials are modelled; None: all.
    seed_conditions: it begins with the trials of earlier experiments whose metadata have, of each
    option, one of these values; None: with none.
    """

    name: str
    generator: Generator
    surrogate: Surrogate | None = None
    min_asks: int = 0
    max_asks: int | None = None
    min_total_tells: int = 0
    min_total_outcome_occurrences: int = 0
    min_post_range: float | None = None
    run_indefinitely: bool = False
    refit_every: int = 1
    keep_most_recent: int | None = None
    seed_conditions: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """What [metadata] says. extra: any further keys."""

    experiment_name: str = ""
    experiment_description: str = ""
    experiment_id: str = ""
    participant_id: str = ""
    extra: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration, checked: what is in it can be done.

    text: what it was read from, INI text or the JSON text of a dictionary; reading that again
    gives an equal Config.
    stimuli: points that make one trial, 2 for pairs. sections: every option of every section as
    text, with those of [common], as `get_config` answers. warnings: what was understood as
    something else, a sentence each. subject: the options of [farm], if it is there; behind a dot
    their names have a case.
    """

    text: str
    parameters: tuple[Parameter, ...]
    outcomes: tuple[Outcome, ...]
    strategies: tuple[Strategy, ...]
    stimuli: int = 1
    metadata: Metadata = field(default_factory=Metadata)
    sections: Mapping[str, Options] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    subject: Options | None = None

    @property
    def free(self) -> tuple[Parameter, ...]:
        """The parameters that are coordinates: all but the fixed ones."""
        return tuple(p for p in self.parameters if p.kind is not ParameterKind.FIXED)
