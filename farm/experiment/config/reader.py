"""Reads an AEPsych configuration, INI text or a dictionary, into a checked Config. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from farm.errors import FarmError, InvalidInput, UnsupportedFeature, shortened
from farm.experiment.config import options
from farm.experiment.config.components import Components
from farm.experiment.config.definition import (
    POINT_LISTS,
    Config,
    Metadata,
    Options,
    Outcome,
    OutcomeKind,
    Parameter,
    ParameterKind,
    Strategy,
)
from farm.experiment.config.evaluated_model import read_evaluated_model
from farm.experiment.config.ini import COMMON, FARM, Document, Section, read_document
from farm.experiment.config.option_table import number_of
from farm.experiment.config.point_list import outside, read_point_list
from farm.experiment.space import Space

METADATA = "metadata"

LONGEST_ERROR = 400
"""Maximum characters of an error message: names in a config may have any length."""


def read_config(source: str | Mapping[str, Any]) -> Config:
    """Return the experiment described by a configuration: INI text, a dictionary, or its JSON text.

    Unknown sections and options are ignored. Raises InvalidInput for invalid values and
    UnsupportedFeature for known features that farm does not offer, with a message of one line.
    """
    try:
        return _read(source)
    except FarmError as error:
        line = " ".join(error.message.split())
        raise type(error)(shortened(line, LONGEST_ERROR)) from None


def _read(source: str | Mapping[str, Any]) -> Config:
    document = read_document(source)
    common = document.section(COMMON)
    warnings: list[str] = []
    parameters = _parameters(document, common)
    outcomes, stimuli = _outcomes(common, warnings)
    space = Space(parameters, stimuli)
    components = Components(document, outcomes, stimuli, warnings)
    strategies = tuple(
        _strategy(document.section(name), components, space)
        for name in options.COMMON.read(common, "strategy_names")
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
        farm=document.own.get(FARM),
    )
    if config.farm is not None:
        read_evaluated_model(config)
    return config


def _parameters(document: Document, common: Section) -> tuple[Parameter, ...]:
    names = options.COMMON.read(common, "parnames")
    if reserved := {COMMON, METADATA, FARM} & set(names):
        raise common.wrong("parnames", f"other names than {reserved.pop()!r}, which is a section")
    all_bounds = cache(partial(options.COMMON.read_list, common, length=len(names)))

    def bound(section: Section, option: str, all_option: str, position: int) -> float:
        """Return the bound in the section, or that in the list of [common]."""
        value: float | None = options.PARAMETER.read(section, option)
        if value is None and not common.has(all_option):
            raise InvalidInput(
                f"[{section.name}] {option} is missing, and so is [common] {all_option}; "
                "expected a finite number"
            )
        return float(all_bounds(all_option)[position]) if value is None else value

    parameters = tuple(
        _parameter(document.section(name), partial(bound, position=position))
        for position, name in enumerate(names)
    )
    if all(p.kind is ParameterKind.FIXED for p in parameters):
        raise common.wrong("parnames", "at least one parameter that is not fixed")
    return parameters


def _parameter(section: Section, bound: Callable[[Section, str, str], float]) -> Parameter:
    name = section.name
    kind = ParameterKind(options.PARAMETER.read(section, "par_type"))
    log_scale = options.PARAMETER.read(section, "log_scale")
    if log_scale and kind not in (ParameterKind.CONTINUOUS, ParameterKind.INTEGER):
        if "log_scale" in section.own:
            raise section.wrong("log_scale", f"none, as the parameter is {kind}")
        log_scale = False
    for option in ("lower_bound", "upper_bound"):
        if kind in (ParameterKind.BINARY, ParameterKind.CATEGORICAL) and option in section.own:
            raise section.wrong(option, f"none, as the parameter is {kind}")
    if kind is ParameterKind.BINARY:
        return Parameter(name, kind)
    if kind is ParameterKind.FIXED:
        text = options.PARAMETER.read(section, "value")
        number = number_of(text)
        return Parameter(name, kind, value=text if number is None else number)
    if kind is ParameterKind.CATEGORICAL:
        choices = options.PARAMETER.read(section, "choices")
        if len(choices) < 2:
            raise section.wrong("choices", "at least two; for one use par_type = fixed")
        return Parameter(name, kind, upper=len(choices) - 1.0, choices=choices)
    lower, upper = bound(section, "lower_bound", "lb"), bound(section, "upper_bound", "ub")
    if not lower < upper:
        raise InvalidInput(
            f"[{name}] has the bounds {lower:g} and {upper:g}; expected lower < upper, "
            "or par_type = fixed"
        )
    if upper - lower == float("inf"):
        raise InvalidInput(f"[{name}] has the bounds {lower:g} and {upper:g}, too far apart")
    if kind is ParameterKind.INTEGER:
        for option, value in (("lower_bound", lower), ("upper_bound", upper)):
            if value != int(value) or abs(value) > 2**52:
                raise InvalidInput(
                    f"[{name}] is integer, but {option} is {value:g}; expected a whole number"
                )
    return Parameter(name, kind, lower, upper, log_scale)


def _outcomes(common: Section, warnings: list[str]) -> tuple[tuple[Outcome, ...], int]:
    """Return the outcomes and the number of stimuli per trial."""
    stimuli = options.COMMON.read(common, "stimuli_per_trial")
    if common.has("outcome_types") or not common.has("outcome_type"):
        words = [word.lower() for word in options.COMMON.read(common, "outcome_types")]
        if not {*words} <= {*OutcomeKind, options.ORDINAL}:
            raise options.COMMON.wrong(common, "outcome_types")
        if options.ORDINAL in words:
            raise UnsupportedFeature(
                "[common] outcome_types: ordinal outcomes are not offered; use continuous"
            )
        kinds = [OutcomeKind(word) for word in words]
    else:
        kind, stimuli = options.OLDER_OUTCOMES[options.COMMON.read(common, "outcome_type")]
        kinds = [kind]
        warnings.append(
            f"{common.where('outcome_type')} = {common.all['outcome_type']} is an older spelling "
            f"of outcome_types = [{kind}] with stimuli_per_trial = {stimuli}"
        )
    if stimuli > 2:
        raise UnsupportedFeature(
            f"[common] stimuli_per_trial = {stimuli} is not offered; expected 1 or 2"
        )
    names = tuple(f"outcome_{i + 1}" for i in range(len(kinds)))
    if common.has("outcome_names"):
        names = options.COMMON.read_list(common, "outcome_names", len(kinds))
    return tuple(Outcome(n, k) for n, k in zip(names, kinds, strict=True)), stimuli


def _strategy(section: Section, components: Components, space: Space) -> Strategy:
    components.warnings.extend(options.STRATEGY.older_spellings(section))
    rules = options.STRATEGY.read_all(section)
    surrogate = components.surrogate(section)
    generator = components.generator(section, surrogate)
    if generator.kind in POINT_LISTS and (far := outside(read_point_list(generator, space), space)):
        components.warnings.append(
            f"[{generator.name}] points: {far} of them lie outside of the bounds"
        )
    if rules["min_post_range"] is not None and surrogate is None:
        rules["min_post_range"] = None
        components.warnings.append(
            f"{section.where('min_post_range')} is ignored in [{section.name}], which has no model"
        )
    if rules["min_total_outcome_occurrences"] is None:
        binary = any(outcome.kind is OutcomeKind.BINARY for outcome in components.outcomes)
        rules["min_total_outcome_occurrences"] = int(binary)
    conditions = _seed_conditions(components.document, section)
    for component in ("generator", "model", "acqf", "seed_data_conditions"):
        del rules[component]
    return Strategy(section.name, generator, surrogate, seed_conditions=conditions, **rules)


def _seed_conditions(document: Document, strategy: Section) -> Mapping[str, tuple[str, ...]] | None:
    """Return the metadata conditions that select earlier experiments, or None."""
    name = options.STRATEGY.read(strategy, "seed_data_conditions")
    if name is None:
        return None
    if name not in document.own:
        raise options.STRATEGY.wrong(strategy, "seed_data_conditions")
    conditions = document.section(name)
    return {option: options.SEED_CONDITIONS.read(conditions, option) for option in conditions.own}


def _metadata(document: Document) -> Metadata:
    own = document.own.get(METADATA, {})
    known = options.METADATA.read_all(Section(METADATA, own, own))
    extra = {name: text for name, text in own.items() if name not in known}
    return Metadata(**{name: text or "" for name, text in known.items()}, extra=extra)


def _sections(document: Document, parameters: tuple[Parameter, ...]) -> dict[str, Options]:
    """Return all sections for `get_config`, each with [common] and the resolved bounds."""
    computed = {
        "lb": f"[{', '.join(repr(p.lower).removesuffix('.0') for p in parameters)}]",
        "ub": f"[{', '.join(repr(p.upper).removesuffix('.0') for p in parameters)}]",
    }
    common = {**document.own.get(COMMON, {}), **computed}
    return {
        name: {option.lower(): text for option, text in {**own, **common, **own}.items()}
        for name, own in {**document.own, COMMON: common}.items()
    }
