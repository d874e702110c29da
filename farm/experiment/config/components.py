"""Reads the components of a strategy: its generator, acquisition function and surrogate. Pure.

Options are looked up first in the section that has the component's name, which is a class or an
alias declared by `class = Name`, and then in [common].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

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
from farm.experiment.config.option_table import OptionTable

DEEPEST_ALIAS = 10

LOOK_AHEAD = frozenset({"EAVC", "GlobalMI", "LocalMI"})
"""Acquisition functions that concern the set where a probability exceeds the target."""
PROBIT_BY_DEFAULT = frozenset({"MCLevelSetEstimation", "MCPosteriorVariance"})
"""Acquisition functions whose default objective is the probit one."""


OLDER = "is an older name of {}"
RELATED = "is not offered; farm uses the related {} instead"
REFUSED = "is not offered; use {}"


class Classes:
    """The classes that a config may name for one role.

    known: those that farm implements. others: patterns of other names, a sentence, and the class
    for them.
    """

    def __init__(self, role: str, known: Sequence[str], *others: tuple[str, str, str]) -> None:
        self.role, self.known, self.others = role, tuple(known), others

    def find(self, name: str, where: str) -> tuple[str, str]:
        """Return the known class for `name`, and a warning if it differs from `name`, else "".

        Raises UnsupportedFeature for refused names, InvalidInput for unknown ones.
        """
        if name in self.known:
            return name, ""
        for patterns, sentence, instead in self.others:
            if any(fnmatchcase(name, pattern) for pattern in patterns.split()):
                note = f"{where} = {name} {sentence.format(instead)}"
                if sentence == REFUSED:
                    raise UnsupportedFeature(note)
                return instead, note
        offered = ", ".join(self.known)
        raise InvalidInput(
            f"{where} = {shortened(name, 60)} is not a known {self.role}; expected one of {offered}"
        )


GENERATORS = Classes(
    "generator",
    tuple(GeneratorKind),
    ("PairwiseSobolGenerator", OLDER, GeneratorKind.SOBOL),
    ("PairwiseOptimizeAcqfGenerator", OLDER, GeneratorKind.OPTIMIZE),
    ("IntensityAwareSemiPGenerator AcqfThompsonSamplerGenerator", REFUSED, GeneratorKind.OPTIMIZE),
    ("AcqfGridSearchGenerator EpsilonGreedyGenerator Monotonic*", REFUSED, GeneratorKind.OPTIMIZE),
)

SURROGATES = Classes(
    "model",
    tuple(SurrogateKind),
    ("OrdinalGPModel", REFUSED, "GPRegressionModel with outcome_types = [continuous]"),
    ("Monotonic* SemiP* HadamardSemiPModel", REFUSED, SurrogateKind.CLASSIFICATION),
)

ACQUISITIONS = Classes(
    "acquisition function",
    (
        *("MCLevelSetEstimation", "qLogNoisyExpectedImprovement", "EAVC"),
        *("qNoisyExpectedImprovement", "MCPosteriorVariance", "PairwiseMCPosteriorVariance"),
        *("GlobalMI", "LocalMI", "qUpperConfidenceBound", "qNegIntegratedPosteriorVariance"),
        "BernoulliMCMutualInformation",
    ),
    ("GlobalSUR ApproxGlobalSUR", RELATED, "GlobalMI"),
    ("LocalSUR", RELATED, "LocalMI"),
    ("AnalyticExpectedUtilityOfBestOption", REFUSED, "qLogNoisyExpectedImprovement"),
    ("Monotonic*", REFUSED, "MCLevelSetEstimation"),
)

OBJECTIVES = Classes(
    "objective",
    tuple(ObjectiveKind),
    ("FloorGumbelObjective", REFUSED, ObjectiveKind.FLOOR_PROBIT),
    ("SemiP*", REFUSED, ObjectiveKind.PROBIT),
)


@dataclass(frozen=True, slots=True)
class Components:
    """Reads the components of one config and appends warnings about them to `warnings`."""

    document: Document
    outcomes: Sequence[Outcome]
    stimuli: int
    warnings: list[str]

    def surrogate(self, strategy: Section) -> Surrogate | None:
        """Return the surrogate of a strategy, or None. Raises FarmError."""
        name = options.STRATEGY.read(strategy, "model")
        if name is None:
            return None
        section, kind = self._component(name, strategy.where("model"), SURROGATES)
        if kind != SurrogateKind.INDEPENDENT:
            if (count := len(self.outcomes)) > 1:
                expected = f"{SurrogateKind.INDEPENDENT}, as there are {count} outcomes"
                raise strategy.wrong("model", expected)
            self._check_fits(kind, self.outcomes[0], strategy.where("model"))
            return Surrogate(kind, section.name, section.all)
        parts = []
        components = self._parts(section, options.MODEL, "models", SURROGATES)
        for outcome, (part, part_kind) in zip(self.outcomes, components, strict=True):
            if part_kind == SurrogateKind.INDEPENDENT:
                raise section.wrong("models", "models of one outcome each")
            self._check_fits(part_kind, outcome, section.where("models"))
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
        independent = surrogate.kind == SurrogateKind.INDEPENDENT
        if kind != GeneratorKind.INDEPENDENT:
            if independent:
                expected = f"{GeneratorKind.INDEPENDENT}, as {surrogate.name} is used"
                raise strategy.wrong("generator", expected)
            return self._optimizing(section, kind, strategy, surrogate)
        if not independent:
            expected = f"{SurrogateKind.INDEPENDENT}, as {section.name} is used"
            raise strategy.wrong("model", expected)
        parts = []
        components = self._parts(section, options.GENERATOR, "generators", GENERATORS)
        for part_surrogate, (part, part_kind) in zip(surrogate.parts, components, strict=True):
            if part_kind not in OPTIMIZING:
                expected = f"generators of the class {GeneratorKind.OPTIMIZE}"
                raise section.wrong("generators", expected)
            parts.append(self._optimizing(part, part_kind, strategy, part_surrogate))
        return Generator(kind, section.name, section.all, parts=tuple(parts))

    def _parts(
        self, section: Section, table: OptionTable, option: str, classes: Classes
    ) -> Iterator[tuple[Section, str]]:
        """Yield the section and the class of the component for each outcome."""
        for name in table.read_list(section, option, len(self.outcomes)):
            yield self._component(name, section.where(option), classes)

    def _optimizing(
        self, section: Section, kind: str, strategy: Section, surrogate: Surrogate
    ) -> Generator:
        """Return a generator with its acquisition function.

        The option `acqf` is taken from the generator's section, the strategy's or [common].
        """
        places = (section, strategy, self.document.section(COMMON))
        place = next((place for place in places if place.own.get("acqf")), None)
        if place is None:
            raise InvalidInput(
                f"acqf is missing in [{section.name}], [{strategy.name}] and [common]; expected "
                "an acquisition function such as qLogNoisyExpectedImprovement"
            )
        acqf, acqf_kind = self._component(place.own["acqf"], f"[{place.name}] acqf", ACQUISITIONS)
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
