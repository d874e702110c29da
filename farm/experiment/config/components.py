"""Reads the components of a strategy: its generator, acquisition function and surrogate. Pure.

Options are looked up first in the section that has the component's name, which is a class or an
alias declared by `class = Name`, and then in [common].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farm.errors import InvalidInput, UnsupportedFeature, shortened
from farm.experiment.config import options
from farm.experiment.config.definition import (
    MODEL_FREE,
    OF_PROBABILITY,
    OPTIMIZING,
    POINT_LISTS,
    Acquisition,
    Generator,
    GeneratorKind,
    ObjectiveKind,
    Outcome,
    OutcomeKind,
    Surrogate,
    SurrogateKind,
)
from farm.experiment.config.ini import COMMON, Document, Section

DEEPEST_ALIAS = 10

LOOK_AHEAD = frozenset({"EAVC", "GlobalMI", "LocalMI"})
"""Acquisition functions that concern the set where a probability exceeds the target."""
PROBIT_BY_DEFAULT = frozenset({"MCLevelSetEstimation", "MCPosteriorVariance"})
"""Acquisition functions whose default objective is the probit one."""


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes that a config may name for one role.

    known: classes that farm implements. older: former names of known classes. relatives: classes
    that farm replaces by a known one. refused: classes that farm lacks, with the class to use
    instead; a trailing `*` matches any ending.
    """

    role: str
    known: Sequence[str]
    older: Mapping[str, str] = field(default_factory=dict)
    relatives: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str, where: str) -> tuple[str, str]:
        """Return the known class for `name`, and a warning if it differs from `name`, else "".

        Raises UnsupportedFeature for refused names, InvalidInput for unknown ones.
        """
        if name in self.known:
            return name, ""
        if name in self.older:
            return self.older[name], f"{where} = {name} is an older name of {self.older[name]}"
        if name in self.relatives:
            other = self.relatives[name]
            return other, f"{where} = {name} is not offered; farm uses the related {other} instead"
        for pattern, instead in self.refused.items():
            if name == pattern or (pattern[-1] == "*" and name.startswith(pattern[:-1])):
                raise UnsupportedFeature(f"{where} = {name} is not offered; use {instead}")
        offered = ", ".join(self.known)
        raise InvalidInput(
            f"{where} = {shortened(name, 60)} is not a known {self.role}; expected one of {offered}"
        )


GENERATORS = Classes(
    "generator",
    known=tuple(GeneratorKind),
    older={
        "PairwiseSobolGenerator": GeneratorKind.SOBOL,
        "PairwiseOptimizeAcqfGenerator": GeneratorKind.OPTIMIZE,
    },
    refused=dict.fromkeys(
        (
            *("IntensityAwareSemiPGenerator", "AcqfThompsonSamplerGenerator"),
            *("AcqfGridSearchGenerator", "EpsilonGreedyGenerator", "Monotonic*"),
        ),
        GeneratorKind.OPTIMIZE,
    ),
)

SURROGATES = Classes(
    "model",
    known=tuple(SurrogateKind),
    refused={
        "OrdinalGPModel": f"{SurrogateKind.REGRESSION} with outcome_types = [continuous]",
        **dict.fromkeys(
            ("Monotonic*", "SemiP*", "HadamardSemiPModel"), SurrogateKind.CLASSIFICATION
        ),
    },
)

ACQUISITIONS = Classes(
    "acquisition function",
    known=(
        *("MCLevelSetEstimation", "qLogNoisyExpectedImprovement", "EAVC"),
        *("qNoisyExpectedImprovement", "MCPosteriorVariance", "PairwiseMCPosteriorVariance"),
        *("GlobalMI", "LocalMI", "qUpperConfidenceBound", "qNegIntegratedPosteriorVariance"),
        "BernoulliMCMutualInformation",
    ),
    relatives={"GlobalSUR": "GlobalMI", "ApproxGlobalSUR": "GlobalMI", "LocalSUR": "LocalMI"},
    refused={
        "AnalyticExpectedUtilityOfBestOption": "qLogNoisyExpectedImprovement",
        "Monotonic*": "MCLevelSetEstimation",
    },
)

OBJECTIVES = Classes(
    "objective",
    known=tuple(ObjectiveKind),
    refused={"FloorGumbelObjective": ObjectiveKind.FLOOR_PROBIT, "SemiP*": ObjectiveKind.PROBIT},
)


class Components:
    """Reads the components of one config and appends warnings about them to `warnings`."""

    def __init__(
        self, document: Document, outcomes: Sequence[Outcome], stimuli: int, warnings: list[str]
    ) -> None:
        self.document = document
        self.outcomes = tuple(outcomes)
        self.stimuli = stimuli
        self.warnings = warnings

    def surrogate(self, strategy: Section) -> Surrogate | None:
        """Return the surrogate of a strategy, or None. Raises FarmError."""
        name = options.STRATEGY.read(strategy, "model")
        if name is None:
            return None
        where = strategy.where("model")
        section, kind = self._component(name, where, SURROGATES)
        if kind != SurrogateKind.INDEPENDENT:
            if len(self.outcomes) > 1:
                expected = (
                    f"{SurrogateKind.INDEPENDENT}, as there are {len(self.outcomes)} outcomes"
                )
                raise strategy.wrong("model", expected)
            self._check_fits(kind, self.outcomes[0], where)
            return Surrogate(kind, section.name, section.all)
        parts = []
        models = options.MODEL.read_list(section, "models", len(self.outcomes))
        for outcome, name in zip(self.outcomes, models, strict=True):
            where = section.where("models")
            part, part_kind = self._component(name, where, SURROGATES)
            if part_kind == SurrogateKind.INDEPENDENT:
                raise section.wrong("models", "models of one outcome each")
            self._check_fits(part_kind, outcome, where)
            parts.append(Surrogate(part_kind, part.name, part.all))
        return Surrogate(kind, section.name, section.all, tuple(parts))

    def generator(self, strategy: Section, surrogate: Surrogate | None) -> Generator:
        """Return the generator of a strategy. Raises FarmError."""
        name = options.STRATEGY.read(strategy, "generator")
        section, kind = self._component(name, strategy.where("generator"), GENERATORS)
        if kind in MODEL_FREE:
            if kind not in POINT_LISTS:  # point_list.py checks their options
                options.GENERATOR.read_all(section, kind)
            return Generator(kind, section.name, section.all)
        if surrogate is None:
            raise InvalidInput(
                f"[{strategy.name}] model is missing; {section.name} needs one, such as "
                f"{SurrogateKind.CLASSIFICATION} or {SurrogateKind.REGRESSION}"
            )
        if kind != GeneratorKind.INDEPENDENT:
            if surrogate.kind == SurrogateKind.INDEPENDENT:
                expected = f"{GeneratorKind.INDEPENDENT}, as {surrogate.name} is used"
                raise strategy.wrong("generator", expected)
            return self._optimizing(section, kind, strategy, surrogate)
        if surrogate.kind != SurrogateKind.INDEPENDENT:
            expected = f"{SurrogateKind.INDEPENDENT}, as {section.name} is used"
            raise strategy.wrong("model", expected)
        parts = []
        generators = options.GENERATOR.read_list(section, "generators", len(self.outcomes))
        for part_surrogate, part in zip(surrogate.parts, generators, strict=True):
            where = section.where("generators")
            part_section, part_kind = self._component(part, where, GENERATORS)
            if part_kind not in OPTIMIZING:
                expected = f"generators of the class {GeneratorKind.OPTIMIZE}"
                raise section.wrong("generators", expected)
            parts.append(self._optimizing(part_section, part_kind, strategy, part_surrogate))
        return Generator(kind, section.name, section.all, parts=tuple(parts))

    def _optimizing(
        self, section: Section, kind: str, strategy: Section, surrogate: Surrogate
    ) -> Generator:
        """Return a generator with its acquisition function.

        The option `acqf` is taken from the generator's section, the strategy's or [common].
        """
        common = Section(COMMON, self.document.own.get(COMMON, {}))
        for place in (section, strategy, common):
            if name := place.own.get("acqf"):
                break
        else:
            raise InvalidInput(
                f"acqf is missing in [{section.name}], [{strategy.name}] and [common]; expected "
                "an acquisition function such as qLogNoisyExpectedImprovement"
            )
        acqf, acqf_kind = self._component(name, f"[{place.name}] acqf", ACQUISITIONS)
        objective = options.ACQUISITION.read(acqf, "objective") or ""
        if objective:
            part, objective = self._component(objective, acqf.where("objective"), OBJECTIVES)
            if "floor" in part.own:
                options.ACQUISITION.read(part, "floor")
                floor = {"floor": part.own["floor"]}
                acqf = Section(acqf.name, {**acqf.own, **floor}, {**acqf.all, **floor})
        elif acqf_kind in PROBIT_BY_DEFAULT and surrogate.kind != SurrogateKind.REGRESSION:
            objective = ObjectiveKind.PROBIT
        target = options.ACQUISITION.read_all(acqf)["target"]
        of_probabilities = surrogate.kind == SurrogateKind.CLASSIFICATION and (
            acqf_kind in LOOK_AHEAD or objective in OF_PROBABILITY
        )
        if of_probabilities and not 0 < target < 1:
            raise acqf.wrong("target", "a probability between 0 and 1")
        return Generator(
            kind, section.name, section.all, Acquisition(acqf_kind, acqf.name, acqf.all, objective)
        )

    def _check_fits(self, kind: str, outcome: Outcome, where: str) -> None:
        """Raise InvalidInput if a surrogate does not support these outcomes or stimuli."""
        if (kind == SurrogateKind.PAIRWISE) != (self.stimuli == 2):
            pairs = self.stimuli == 2
            model = SurrogateKind.PAIRWISE if pairs else "a model of single stimuli"
            raise InvalidInput(
                f"{where} is {kind}, but stimuli_per_trial is {self.stimuli}; expected {model}"
            )
        if kind != SurrogateKind.REGRESSION and outcome.kind is not OutcomeKind.BINARY:
            raise InvalidInput(
                f"{where} is {kind}, but the outcome {outcome.name!r} is {outcome.kind}; "
                f"expected outcome_types = [binary], or {SurrogateKind.REGRESSION}"
            )

    def _component(self, name: str, where: str, classes: Classes) -> tuple[Section, str]:
        """Return the section for a component's name, and the class behind its aliases."""
        kind = name
        for _ in range(DEEPEST_ALIAS):
            alias = self.document.own.get(kind, {}).get("class", "")
            if not alias or alias == kind:
                break
            kind = alias
        else:
            raise InvalidInput(f"{where} = {name}: `class` refers to itself; expected a class")
        found, note = classes.find(kind, where)
        if note:
            self.warnings.append(note)
        return self.document.section(name), found
