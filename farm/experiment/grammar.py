"""The configuration grammar of AEPsych: from INI text or a dictionary to a checked Config. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from farm.call import Array
from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.experiment import names
from farm.experiment.components import Components
from farm.experiment.config import (
    Config,
    Metadata,
    Options,
    Outcome,
    OutcomeKind,
    Parameter,
    ParameterKind,
    Strategy,
)
from farm.experiment.ini import (
    COMMON,
    SUBJECT,
    Document,
    Section,
    number_of,
    read_document,
)
from farm.experiment.listed import outside, read_listed
from farm.experiment.space import Space
from farm.experiment.subject import read_subject

METADATA = "metadata"
OUTCOME_KINDS = tuple(OutcomeKind)
OLDER_OUTCOMES = {
    "single_probit": (OutcomeKind.BINARY, 1),
    "single_continuous": (OutcomeKind.CONTINUOUS, 1),
    "pairwise_probit": (OutcomeKind.BINARY, 2),
}
"""Words of `outcome_type`, which older configs have: kind and number of stimuli."""

MOST_PARAMETERS = MOST_STRATEGIES = 1000
LONGEST_ERROR = 400
"""Characters: names in a config may be of any length, and answers may not."""


def read_config(source: str | Mapping[str, Any]) -> Config:
    """What a configuration says, from INI text, a dictionary or the JSON text of one.

    Unknown sections and options are ignored. Raises InvalidInput for what is wrong, and
    UnsupportedFeature for what is known and not offered, one line each.
    """
    try:
        return _read(source)
    except FarmError as error:
        line = " ".join(error.message.split())
        short = line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR - 3]}..."
        raise type(error)(short) from None


def _read(source: str | Mapping[str, Any]) -> Config:
    document = read_document(source)
    common = document.section(COMMON)
    warnings: list[str] = []
    parameters = _parameters(document, common)
    outcomes, stimuli = _outcomes(common, warnings)
    space = Space(parameters, stimuli)
    components = Components(document, outcomes, stimuli, warnings)
    expected = "the names of the strategies' sections, such as [init_strat, opt_strat]"
    strategy_names = common.unique_names("strategy_names", expected)
    if len(strategy_names) > MOST_STRATEGIES:
        raise common.wrong("strategy_names", f"{MOST_STRATEGIES} names at most")
    strategies = tuple(
        _strategy(document, document.section(name), components, space, outcomes, warnings)
        for name in strategy_names
    )
    if common.has("extensions"):
        warnings.append("[common] extensions is ignored: no files are run for a config")
    config = Config(
        text=document.text,
        parameters=parameters,
        outcomes=outcomes,
        strategies=strategies,
        stimuli=stimuli,
        metadata=_metadata(document),
        sections=_sections(document, parameters),
        warnings=tuple(dict.fromkeys(warnings)),
        subject=dict(document.own[SUBJECT]) if document.has(SUBJECT) else None,
    )
    if config.subject is not None:
        read_subject(config)
    return config


def _parameters(document: Document, common: Section) -> tuple[Parameter, ...]:
    expected = "the names of the parameters, such as [x1, x2]"
    parnames = common.unique_names("parnames", expected)
    if reserved := {COMMON, METADATA, SUBJECT} & set(parnames):
        raise common.wrong("parnames", f"other names than {reserved.pop()!r}, which is a section")
    if len(parnames) > MOST_PARAMETERS:
        raise common.wrong("parnames", f"{MOST_PARAMETERS} names at most, not {len(parnames)}")
    sections = [document.section(name) for name in parnames]
    lower = _bounds(sections, "lower_bound", "lb", common)
    upper = _bounds(sections, "upper_bound", "ub", common)
    parameters = tuple(map(_parameter, sections, lower, upper))
    if all(p.kind is ParameterKind.FIXED for p in parameters):
        raise common.wrong("parnames", "at least one parameter that is not fixed")
    return parameters


def _parameter(
    section: Section, lower_bound: Callable[[], float], upper_bound: Callable[[], float]
) -> Parameter:
    name = section.name
    kind = section.one_of("par_type", tuple(ParameterKind), ParameterKind.CONTINUOUS)
    log_scale = section.flag("log_scale", False)
    if log_scale and kind not in (ParameterKind.CONTINUOUS, ParameterKind.INTEGER):
        if "log_scale" in section.own:
            raise section.wrong("log_scale", f"none, as the parameter is {kind}")
        log_scale = False
    for bound in ("lower_bound", "upper_bound"):
        if kind in (ParameterKind.BINARY, ParameterKind.CATEGORICAL) and bound in section.own:
            raise section.wrong(bound, f"none, as the parameter is {kind}")
    if kind is ParameterKind.BINARY:
        return Parameter(name, kind)
    if kind is ParameterKind.FIXED:
        text = section.text("value", "the number or text that the parameter always is")
        number = number_of(text)
        return Parameter(name, kind, value=text if number is None else number)
    if kind is ParameterKind.CATEGORICAL:
        choices = section.unique_names("choices", "texts such as [red, green]")
        if len(choices) < 2:
            raise section.wrong("choices", "at least two; for one use par_type = fixed")
        return Parameter(name, kind, upper=len(choices) - 1.0, choices=choices)
    lower, upper = lower_bound(), upper_bound()
    if not lower < upper:
        raise InvalidInput(
            f"[{name}] has the bounds {lower:g} and {upper:g}; expected lower < upper, "
            "or par_type = fixed"
        )
    if upper - lower == float("inf"):
        raise InvalidInput(f"[{name}] has the bounds {lower:g} and {upper:g}, too far apart")
    if kind is ParameterKind.INTEGER:
        for bound, value in (("lower_bound", lower), ("upper_bound", upper)):
            if value != int(value) or abs(value) > 2**52:
                raise InvalidInput(
                    f"[{name}] is integer, but {bound} is {value:g}; expected a whole number"
                )
    return Parameter(name, kind, lower, upper, log_scale)


def _bounds(
    sections: Sequence[Section], option: str, all_option: str, common: Section
) -> list[Callable[[], float]]:
    """How to read each parameter's bound: from its section, else from the list in [common], which
    is looked at only when a parameter needs it."""
    expected = f"{len(sections)} numbers, one for each of parnames"

    @cache
    def of_all() -> Array:
        bounds = common.numbers(all_option, expected)
        if len(bounds) != len(sections):
            raise common.wrong(all_option, expected)
        return bounds

    def bound(position: int) -> float:
        section = sections[position]
        if section.has(option):
            return section.number(option)
        if not common.has(all_option):
            raise InvalidInput(
                f"[{section.name}] {option} is missing, and so is [common] {all_option}; "
                "expected a finite number"
            )
        return float(of_all()[position])

    return [partial(bound, position) for position in range(len(sections))]


def _outcomes(common: Section, warnings: list[str]) -> tuple[tuple[Outcome, ...], int]:
    """The outcomes, and the number of stimuli that make a trial."""
    stimuli = common.whole("stimuli_per_trial", 1, least=1)
    if common.has("outcome_types") or not common.has("outcome_type"):
        kinds = _outcome_kinds(common)
    else:
        words = tuple(OLDER_OUTCOMES)
        kind, stimuli = OLDER_OUTCOMES[common.one_of("outcome_type", words, words[0])]
        kinds = [kind]
        warnings.append(
            f"{common.where('outcome_type')} = {common.all['outcome_type']} is an older spelling "
            f"of outcome_types = [{kind}] with stimuli_per_trial = {stimuli}"
        )
    if stimuli > 2:
        raise UnsupportedFeature(
            f"[common] stimuli_per_trial = {stimuli} is not offered; expected 1 or 2"
        )
    if not common.has("outcome_names"):
        outcome_names = tuple(f"outcome_{i + 1}" for i in range(len(kinds)))
    else:
        expected = f"{len(kinds)} names, one for each of outcome_types"
        outcome_names = common.unique_names("outcome_names", expected)
        if len(outcome_names) != len(kinds):
            raise common.wrong("outcome_names", expected)
    return tuple(Outcome(n, k) for n, k in zip(outcome_names, kinds, strict=True)), stimuli


def _outcome_kinds(common: Section) -> list[OutcomeKind]:
    expected = "binary or continuous for each outcome, such as [binary]"
    kinds = []
    for word in common.names("outcome_types", expected):
        if word.lower() == "ordinal":
            raise UnsupportedFeature(
                "[common] outcome_types: ordinal outcomes are not offered; use continuous"
            )
        if word.lower() not in OUTCOME_KINDS:
            raise common.wrong("outcome_types", expected)
        kinds.append(OutcomeKind(word.lower()))
    return kinds


def _strategy(
    document: Document,
    section: Section,
    components: Components,
    space: Space,
    outcomes: tuple[Outcome, ...],
    warnings: list[str],
) -> Strategy:
    min_asks = section.whole("min_asks", 0)
    if section.has("n_trials") and not section.has("min_asks"):
        min_asks = section.whole("n_trials", 0)
        warnings.append(f"{section.where('n_trials')} is an older spelling of min_asks")
    surrogate = components.surrogate(section)
    generator = components.generator(section, surrogate)
    if generator.kind in names.WITH_AN_END and (
        far := outside(read_listed(generator, space), space)
    ):
        warnings.append(f"[{generator.name}] points: {far} of them lie outside of the bounds")
    post_range = None
    if section.all.get("min_post_range", "").lower() not in ("", "none"):
        post_range = section.number("min_post_range")
        if surrogate is None:
            warnings.append(
                f"{section.where('min_post_range')} is ignored in [{section.name}], which has no "
                "model"
            )
            post_range = None
    binary = any(outcome.kind is OutcomeKind.BINARY for outcome in outcomes)
    return Strategy(
        name=section.name,
        generator=generator,
        surrogate=surrogate,
        min_asks=min_asks,
        max_asks=section.whole_or_none("max_asks", least=1),
        min_total_tells=section.whole("min_total_tells", 0),
        min_total_outcome_occurrences=section.whole("min_total_outcome_occurrences", int(binary)),
        min_post_range=post_range,
        run_indefinitely=section.flag("run_indefinitely", False),
        refit_every=section.whole("refit_every", 1, least=1),
        keep_most_recent=section.whole_or_none("keep_most_recent", least=1),
        seed_conditions=_seed_conditions(document, section),
    )


def _seed_conditions(document: Document, strategy: Section) -> Mapping[str, tuple[str, ...]] | None:
    """What the section says whose name `seed_data_conditions` is."""
    option = "seed_data_conditions"
    name = strategy.all.get(option, "")
    if name.lower() in ("", "none"):
        return None
    if not document.has(name):
        raise strategy.wrong(option, "a section with options of [metadata], a list of values each")
    conditions = document.section(name)
    return {metadata: conditions.names(metadata) for metadata in conditions.own}


def _metadata(document: Document) -> Metadata:
    own = dict(document.own.get(METADATA, {}))
    return Metadata(
        experiment_name=own.pop("experiment_name", ""),
        experiment_description=own.pop("experiment_description", ""),
        experiment_id=own.pop("experiment_id", ""),
        participant_id=own.pop("participant_id", ""),
        extra=own,
    )


def _sections(document: Document, parameters: tuple[Parameter, ...]) -> dict[str, Options]:
    """What `get_config` answers: [common] repeated everywhere, with the bounds of all."""
    computed = {
        "lb": f"[{', '.join(repr(p.lower).removesuffix('.0') for p in parameters)}]",
        "ub": f"[{', '.join(repr(p.upper).removesuffix('.0') for p in parameters)}]",
    }
    common = {**document.own.get(COMMON, {}), **computed}
    others = {n: {**own, **common, **own} for n, own in document.own.items() if n != COMMON}
    lower = {
        name: {option.lower(): text for option, text in options.items()}
        for name, options in others.items()
    }
    return {COMMON: common, **lower}
