"""The checked definition of an experiment: its parameters, outcomes and strategies. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from farm.experiment.config.ini import Section


class ParameterKind(StrEnum):
    """Allowed values of `par_type`."""

    CONTINUOUS = "continuous"
    INTEGER = "integer"
    BINARY = "binary"
    FIXED = "fixed"
    CATEGORICAL = "categorical"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A quantity that varies from point to point, in the user's units.

    lower, upper: inclusive bounds: of a categorical parameter, those of the index of its choice.
    value: the constant value of a fixed parameter, which is not a coordinate.
    """

    name: str
    kind: ParameterKind = ParameterKind.CONTINUOUS
    lower: float = 0.0
    upper: float = 1.0
    log_scale: bool = False
    choices: tuple[str, ...] = ()
    value: float | str | None = None


class OutcomeKind(StrEnum):
    """Allowed values of `outcome_types`."""

    BINARY = "binary"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A quantity observed at a point."""

    name: str
    kind: OutcomeKind


class GeneratorKind(StrEnum):
    """Classes that `generator` may name."""

    SOBOL = "SobolGenerator"
    OPTIMIZE = "OptimizeAcqfGenerator"
    INDEPENDENT = "IndependentOptimizeAcqfGenerator"
    MIXED = "MixedOptimizeAcqfGenerator"
    MANUAL = "ManualGenerator"
    RANDOM = "RandomGenerator"
    SAMPLE_AROUND = "SampleAroundPointsGenerator"
    HALTON = "HaltonGenerator"
    LATIN_HYPERCUBE = "LatinHypercubeGenerator"


POINT_LISTS = frozenset({GeneratorKind.MANUAL, GeneratorKind.SAMPLE_AROUND})
"""Generators that return the points of a list and then end."""
OPTIMIZING = frozenset({GeneratorKind.OPTIMIZE, GeneratorKind.MIXED})
"""Generators that maximise one acquisition function."""
MODEL_FREE = frozenset(GeneratorKind) - OPTIMIZING - {GeneratorKind.INDEPENDENT}
"""Generators that need neither a surrogate nor data."""


class SurrogateKind(StrEnum):
    """Classes that `model` may name."""

    CLASSIFICATION = "GPClassificationModel"
    REGRESSION = "GPRegressionModel"
    PAIRWISE = "PairwiseProbitModel"
    INDEPENDENT = "IndependentGPsModel"


class ObjectiveKind(StrEnum):
    """Classes that `objective` may name."""

    PROBIT = "ProbitObjective"
    IDENTITY = "IdentityMCObjective"
    FLOOR_PROBIT = "FloorProbitObjective"
    FLOOR_LOGIT = "FloorLogitObjective"


OF_PROBABILITY = frozenset(ObjectiveKind) - {ObjectiveKind.IDENTITY}
"""Objectives that turn the latent function into probabilities."""

Options = Mapping[str, str]
"""Options of a section as texts, names in lower case, including those of [common]."""


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a strategy. kind: the name of its class; name: the name of its section."""

    kind: str
    name: str
    options: Options = field(default_factory=dict)

    @property
    def section(self) -> Section:
        """The options as a section that a table of options reads."""
        return Section(self.name, self.options, self.options)


@dataclass(frozen=True, slots=True)
class Acquisition(Component):
    """An acquisition function, which rates candidates for the next point.

    objective: the class that transforms the outcomes first, such as "ProbitObjective", or "".
    """

    objective: str = ""


@dataclass(frozen=True, slots=True)
class Generator(Component):
    """A source of points. parts: for an independent generator, one generator per outcome."""

    acquisition: Acquisition | None = None
    parts: tuple[Generator, ...] = ()


@dataclass(frozen=True, slots=True)
class Surrogate(Component):
    """A model fitted to the trials. parts: for an independent surrogate, one per outcome."""

    parts: tuple[Surrogate, ...] = ()


@dataclass(frozen=True, slots=True)
class Strategy:
    """A generator with an optional surrogate, and the rules for when it ends (sheet, section 6).

    keep_most_recent: the number of latest trials that are modelled; None: all.
    seed_conditions: the strategy starts with the trials of earlier experiments whose metadata have,
    for each option, one of these values; None: with no trials.
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
    """The options of [metadata]. extra: any further keys."""

    experiment_name: str = ""
    experiment_description: str = ""
    experiment_id: str = ""
    participant_id: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def standard(self, experiment_id: str) -> dict[str, str]:
        """Return the options that every experiment has; its id may be made for it."""
        return {
            "experiment_id": experiment_id,
            "experiment_name": self.experiment_name,
            "experiment_description": self.experiment_description,
            "participant_id": self.participant_id,
        }


@dataclass(frozen=True, slots=True)
class Config:
    """A complete, checked configuration: farm can do all that it asks for.

    text: the source, INI or JSON; reading it again returns an equal Config. stimuli: points per
    trial, 2 for pairs. sections: all options as texts, with those of [common], as `get_config`
    returns them. warnings: one sentence for each option that means something else here. farm: the
    options of [farm], or None; the part of a name after a dot is case-sensitive.
    """

    text: str
    parameters: tuple[Parameter, ...]
    outcomes: tuple[Outcome, ...]
    strategies: tuple[Strategy, ...]
    stimuli: int = 1
    metadata: Metadata = field(default_factory=Metadata)
    sections: Mapping[str, Options] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    farm: Options | None = None
