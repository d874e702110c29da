"""What a strategy is made of: its generator, acquisition function and surrogate. Pure.

Options are looked up in the section that has the component's name, a class or an alias of one by
`class = Name`, and then in [common].
"""

from __future__ import annotations

from collections.abc import Sequence

from farm.errors import InvalidInput
from farm.experiment import names
from farm.experiment.config import Acquisition, Generator, Outcome, OutcomeKind, Surrogate
from farm.experiment.ini import COMMON, Document, Section
from farm.experiment.listed import block_size
from farm.experiment.names import Names

DEEPEST_ALIAS = 10


class Components:
    """Reads the components of one config; what is to be said about them goes to `warnings`."""

    def __init__(
        self,
        document: Document,
        outcomes: Sequence[Outcome],
        stimuli: int,
        warnings: list[str],
    ) -> None:
        self.document = document
        self.outcomes = tuple(outcomes)
        self.stimuli = stimuli
        self.warnings = warnings

    def surrogate(self, strategy: Section) -> Surrogate | None:
        """The surrogate of a strategy, None when it has none. Raises FarmError."""
        if strategy.all.get("model", "").lower() in ("", "none"):
            return None
        where = strategy.where("model")
        section, kind = self._component(strategy.all["model"], where, names.SURROGATES)
        if kind != names.INDEPENDENT_MODELS:
            if len(self.outcomes) > 1:
                raise strategy.wrong(
                    "model",
                    f"{names.INDEPENDENT_MODELS}, as there are {len(self.outcomes)} outcomes",
                )
            self._check_fits(kind, self.outcomes[0], where)
            return Surrogate(kind, section.name, section.all)
        parts = []
        for outcome, name in zip(
            self.outcomes, self._one_each(section, "models", "model"), strict=True
        ):
            where = section.where("models")
            part, part_kind = self._component(name, where, names.SURROGATES)
            if part_kind == names.INDEPENDENT_MODELS:
                raise section.wrong("models", "models of one outcome each")
            self._check_fits(part_kind, outcome, where)
            parts.append(Surrogate(part_kind, part.name, part.all))
        return Surrogate(kind, section.name, section.all, tuple(parts))

    def generator(self, strategy: Section, surrogate: Surrogate | None) -> Generator:
        """The generator of a strategy. Raises FarmError."""
        name = strategy.text("generator", "a generator such as SobolGenerator")
        where = strategy.where("generator")
        section, kind = self._component(name, where, names.GENERATORS)
        if kind in names.MODEL_FREE:
            if section.all.get("seed", "").lower() not in ("", "none"):
                section.whole("seed", 0)
            if kind == names.LATIN_HYPERCUBE:
                block_size(section, 0)
            return Generator(kind, section.name, section.all)
        if surrogate is None:
            raise InvalidInput(
                f"[{strategy.name}] model is missing; {section.name} needs one, such as "
                f"{names.CLASSIFICATION} or {names.REGRESSION}"
            )
        if kind != names.INDEPENDENT:
            if surrogate.kind == names.INDEPENDENT_MODELS:
                raise strategy.wrong(
                    "generator", f"{names.INDEPENDENT}, as {surrogate.name} is used"
                )
            return self._optimizing(section, kind, strategy, surrogate)
        if surrogate.kind != names.INDEPENDENT_MODELS:
            raise strategy.wrong("model", f"{names.INDEPENDENT_MODELS}, as {section.name} is used")
        parts = []
        for part_surrogate, part in zip(
            surrogate.parts, self._one_each(section, "generators", "generator"), strict=True
        ):
            place = section.where("generators")
            part_section, part_kind = self._component(part, place, names.GENERATORS)
            if part_kind not in names.OPTIMIZING:
                raise section.wrong("generators", f"generators of the class {names.OPTIMIZE}")
            parts.append(self._optimizing(part_section, part_kind, strategy, part_surrogate))
        return Generator(kind, section.name, section.all, parts=tuple(parts))

    def _optimizing(
        self, section: Section, kind: str, strategy: Section, surrogate: Surrogate
    ) -> Generator:
        """A generator with its acquisition function, from its section, the strategy or [common]."""
        common = Section(COMMON, self.document.own.get(COMMON, {}))
        for place in (section, strategy, common):
            if name := place.own.get("acqf"):
                break
        else:
            raise InvalidInput(
                f"acqf is missing in [{section.name}], [{strategy.name}] and [common]; expected "
                "an acquisition function such as qLogNoisyExpectedImprovement"
            )
        where = f"[{place.name}] acqf"
        acqf, acqf_kind = self._component(name, where, names.ACQUISITIONS)
        objective = ""
        if acqf.all.get("objective", "").lower() not in ("", "none"):
            part, objective = self._component(
                acqf.all["objective"], acqf.where("objective"), names.OBJECTIVES
            )
            if "floor" in part.own:
                self._check_floor(part)
                floor = {"floor": part.own["floor"]}
                acqf = Section(acqf.name, {**acqf.own, **floor}, {**acqf.all, **floor})
        elif acqf_kind in names.LOOK_AT_PROBABILITY and surrogate.kind != names.REGRESSION:
            objective = names.PROBIT
        self._check_numbers(acqf, acqf_kind, objective, surrogate)
        return Generator(
            kind, section.name, section.all, Acquisition(acqf_kind, acqf.name, acqf.all, objective)
        )

    def _check_numbers(
        self, acqf: Section, kind: str, objective: str, surrogate: Surrogate
    ) -> None:
        for option in ("target", "beta", "floor"):
            if acqf.has(option):
                acqf.number(option)
        self._check_floor(acqf)
        acqf.whole("query_set_size", 1, least=1)
        if acqf.has("beta") and acqf.number("beta") < 0:
            raise acqf.wrong("beta", "a number, 0 or more")
        of_probabilities = surrogate.kind == names.CLASSIFICATION and (
            kind in names.LOOK_AHEAD or objective in names.OF_PROBABILITY
        )
        if of_probabilities and acqf.has("target") and not 0 < acqf.number("target") < 1:
            raise acqf.wrong("target", "a probability between 0 and 1")

    def _check_floor(self, section: Section) -> None:
        if section.has("floor") and not 0 <= section.number("floor") < 1:
            raise section.wrong("floor", "a probability, 0 or more and less than 1")

    def _check_fits(self, kind: str, outcome: Outcome, where: str) -> None:
        """Raise InvalidInput when a surrogate is not made for such outcomes or stimuli."""
        if (kind == names.PAIRWISE) != (self.stimuli == 2):
            model = names.PAIRWISE if self.stimuli == 2 else "a model of single stimuli"
            raise InvalidInput(
                f"{where} is {kind}, but stimuli_per_trial is {self.stimuli}; expected {model}"
            )
        if kind != names.REGRESSION and outcome.kind is not OutcomeKind.BINARY:
            raise InvalidInput(
                f"{where} is {kind}, but the outcome {outcome.name!r} is {outcome.kind}; "
                f"expected outcome_types = [binary], or {names.REGRESSION}"
            )

    def _one_each(self, section: Section, option: str, what: str) -> tuple[str, ...]:
        expected = f"{len(self.outcomes)} names, one {what} for each outcome"
        listed = section.names(option, expected)
        if len(listed) != len(self.outcomes):
            raise section.wrong(option, expected)
        return listed

    def _component(self, name: str, where: str, known: Names) -> tuple[Section, str]:
        """The section that a name means, and the class it is a copy of."""
        kind = name
        for _ in range(DEEPEST_ALIAS):
            alias = self.document.own.get(kind, {}).get("class", "")
            if not alias or alias == kind:
                break
            kind = alias
        else:
            raise InvalidInput(f"{where} = {name}: `class` refers to itself; expected a class")
        found, note = known.find(kind, where)
        if note:
            self.warnings.append(note)
        return self.document.section(name), found
