"""The [farm] section: which model is the subject, what a point means to it, what its answer. Pure.

    [farm]
    model = beam                      the model's name
    input.E = stiffness               input E gets parameter `stiffness`; a number is held
    input.x[2] = 0.5                  entry 2 of input x
    config.mesh = 3                   a key of the model's config: JSON, or text
    outcome.cost = -cost[0]           an outcome from the model's outputs, see `expression.py`
    outcome.fails = max(stress) > 250
    in_flight = 8                     points evaluated at once; by default, as many as the farm can
    budget = 100                      evaluations in all; by default, until the strategies are done
    fill = yes                        points that fill the space, when the strategy is busy too long
    retries = 1                       further tries of a point whose evaluation failed
    seed = 7                          of the experiment's random numbers
    time_limit = 600                  seconds for one evaluation, from when it is submitted
    max_time = 86400                  seconds after which no more points are asked for

A parameter that no `input.` names goes to the input, or entry of one, of its own name, and to the
config when there is none. An outcome without an expression is the output of its name, when that
has one entry; a single outcome also the only output with one entry.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from farm.call import (
    Array,
    Call,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
    canonical_config,
    numpy_dtype,
)
from farm.errors import InvalidInput, InvalidOutput, UnsupportedFeature
from farm.experiment.config import Config, Outcome, OutcomeKind, Parameter, ParameterKind
from farm.experiment.expression import Expression
from farm.experiment.ini import SUBJECT, Section, number_of
from farm.sweep.binding import Binding, bind
from farm.sweep.errors import SweepError
from farm.sweep.parameters import Choice, Distribution, Integer, Uniform

OPTIONS = (
    *("model", "in_flight", "budget", "fill", "retries", "seed", "time_limit", "max_time"),
    *("input.<input>", "config.<key>", "outcome.<outcome>"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What [farm] says; None: see the top. Two are equal only when they are one.

    inputs: name of an input, entry or config key -> the parameter that it gets, or what is held.
    config: keys of the model's config, values as JSON has them. outcomes: expressions by name.
    """

    model: str
    parameters: tuple[Parameter, ...]
    wanted: tuple[Outcome, ...]
    inputs: Mapping[str, str | float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    expressions: Mapping[str, Expression] = field(default_factory=dict)
    in_flight: int | None = None
    budget: int | None = None
    fill: bool = True
    retries: int = 1
    seed: int | None = None
    time_limit_s: float | None = None
    max_time_s: float | None = None

    def check(self, info: ModelInfo) -> None:
        """Raise InvalidInput unless every point makes a call, and every answer the outcomes."""
        _bound(self, info)

    def check_end(self, config: Config, budget: int | None = None) -> None:
        """Raise InvalidInput when nothing would ever end the loop. budget: instead of ours."""
        last = config.strategies[-1]
        if last.run_indefinitely and (budget or self.budget or self.max_time_s) is None:
            raise InvalidInput(
                f"strategy {last.name!r} runs indefinitely; expected [{SUBJECT}] budget = the "
                "number of evaluations after which to stop, or max_time"
            )

    def call(self, point: Mapping[str, Any], info: ModelInfo) -> Call:
        """The evaluation of one point. point: each parameter's value, or a list with it.

        Raises InvalidInput.
        """
        bound = _bound(self, info)
        values = {name: _single(value) for name, value in point.items()}
        arrays = [array.copy() for array in bound.binding.fixed]
        config = dict(bound.binding.config)
        for place, name in bound.sources:
            parameter = bound.binding.parameters[place]
            value = values[name]
            if parameter.input is not None:
                arrays[parameter.input][parameter.entry] = value
            elif parameter.whole and not isinstance(value, str):
                config[parameter.name] = int(value)
            else:
                config[parameter.name] = value
        inputs = tuple(
            array.astype(tensor.dtype).reshape(tensor.shape)
            for array, tensor in zip(arrays, info.inputs, strict=True)
        )
        return Call(self.model, Operation.EVALUATE, inputs, canonical_config(config))

    def outcomes(self, result: Result, info: ModelInfo) -> dict[str, float]:
        """The outcomes of one evaluation, by name; NaN where the model gave it.

        Raises InvalidInput when an expression has no value, InvalidOutput when a binary one is
        neither 0 nor 1.
        """
        bound = _bound(self, info)
        values = _output_values(info.outputs, result.outputs)
        found = {}
        for outcome in self.wanted:
            value = bound.expressions[outcome.name].number(values)
            if outcome.kind is OutcomeKind.BINARY and not math.isnan(value) and value not in (0, 1):
                raise InvalidOutput(
                    f"outcome {outcome.name!r} is binary, but its value is {value:g}; expected 0 "
                    f"or 1, as of a comparison: [{SUBJECT}] outcome.{outcome.name} = x[0] > 1"
                )
            found[outcome.name] = value
        return found


def read_subject(config: Config) -> Subject:
    """What the [farm] section of a config says. Raises InvalidInput, UnsupportedFeature."""
    if config.subject is None:
        raise InvalidInput(f"section [{SUBJECT}] is missing; expected model = the name of a model")
    if config.stimuli != 1:
        raise UnsupportedFeature(
            f"[{SUBJECT}] needs stimuli_per_trial = 1: a model is no judge of pairs"
        )
    section = Section(SUBJECT, config.subject, config.subject)
    for option in section.own:
        known = option in OPTIONS or option.startswith(("input.", "config.", "outcome."))
        if not known or option.endswith("."):
            raise InvalidInput(
                f"[{SUBJECT}] {option} is not known; expected one of {', '.join(OPTIONS)}"
            )
    return Subject(
        model=section.text("model", "the name of a model"),
        parameters=config.parameters,
        wanted=config.outcomes,
        inputs=_inputs(section, config.parameters),
        config={k: _json(v) for k, v in _named(section, "config.").items()},
        expressions=_expressions(section, config.outcomes),
        in_flight=section.whole_or_none("in_flight", least=1),
        budget=section.whole_or_none("budget", least=1),
        fill=section.flag("fill", True),
        retries=section.whole("retries", 1),
        seed=section.whole_or_none("seed"),
        time_limit_s=_seconds(section, "time_limit"),
        max_time_s=_seconds(section, "max_time"),
    )


def _inputs(section: Section, parameters: tuple[Parameter, ...]) -> dict[str, str | float]:
    """Every parameter goes where `input.` says, or else to its own name."""
    names = [parameter.name for parameter in parameters]
    inputs: dict[str, str | float] = {}
    for name, text in _named(section, "input.").items():
        number = number_of(text)
        if text in names:
            inputs[name] = text
        elif number is not None:
            inputs[name] = number
        else:
            expected = f"a number or a parameter, {', '.join(names)}"
            raise section.wrong(f"input.{name}", expected)
    used = set(inputs.values())
    for name in names:
        if name in used:
            continue
        if name in inputs:
            raise InvalidInput(
                f"[{SUBJECT}] input.{name} takes the place of parameter {name!r}, which then goes "
                f"nowhere; expected input.<another> = {name}"
            )
        inputs[name] = name
    return inputs


def _expressions(section: Section, outcomes: tuple[Outcome, ...]) -> dict[str, Expression]:
    given = _named(section, "outcome.")
    names = [outcome.name for outcome in outcomes]
    for name in given:
        if name not in names:
            raise InvalidInput(
                f"[{SUBJECT}] outcome.{name} is no outcome; expected one of {', '.join(names)}"
            )
    return {
        name: Expression(section.text(f"outcome.{name}"), section.where(f"outcome.{name}"))
        for name in given
    }


def _named(section: Section, prefix: str) -> dict[str, str]:
    return {
        option.removeprefix(prefix).strip(): text
        for option, text in section.own.items()
        if option.startswith(prefix)
    }


def _json(text: str) -> Any:
    def no_number(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError):
        return text


def _seconds(section: Section, option: str) -> float | None:
    if not section.has(option):
        return None
    expected = "seconds, more than 0"
    seconds = section.number(option, expected)
    if seconds <= 0:
        raise section.wrong(option, expected)
    return seconds


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """A subject matched to a model. sources: position in the binding's parameters, parameter."""

    binding: Binding
    sources: tuple[tuple[int, str], ...]
    expressions: Mapping[str, Expression]


@lru_cache(maxsize=64)
def _bound(subject: Subject, info: ModelInfo) -> _Bound:
    """Raises InvalidInput."""
    if Operation.EVALUATE not in info.operations:
        raise InvalidInput(f"model {info.name!r} offers no evaluation; expected one that does")
    for tensor in (*info.inputs, *info.outputs):
        if tensor.varies:
            raise InvalidInput(
                f"model {info.name!r}: the size of {tensor.name!r} varies, {list(tensor.shape)}; "
                "expected sizes that the config settles"
            )
    binding, sources = _binding(subject, info)
    return _Bound(binding, sources, _outcome_expressions(subject, info))


def _binding(subject: Subject, info: ModelInfo) -> tuple[Binding, tuple[tuple[int, str], ...]]:
    by_name = {parameter.name: parameter for parameter in subject.parameters}
    spreads: dict[str, Distribution | None] = {}
    fixes: dict[str, Any] = {}
    source_of: dict[int, str] = {}  # which parameter a spread is of, as the binding carries it on
    for name, given in subject.inputs.items():
        if not isinstance(given, str):
            fixes[name] = _plain(given)
        elif by_name[given].kind is ParameterKind.FIXED:
            fixes[name] = _plain(by_name[given].value)
        else:
            spreads[name] = spread = _spread(by_name[given])
            source_of[id(spread)] = given
    try:
        binding = bind(info, spreads, fixes, subject.config)
    except SweepError as error:
        text = str(error).replace("give --param or --fix", f"expected [{SUBJECT}] input.<input>")
        raise InvalidInput(f"[{SUBJECT}] does not fit the model: {text}") from None
    sources = tuple((i, source_of[id(p.spread)]) for i, p in enumerate(binding.parameters))
    seen: set[int] = set()
    for (_, name), bound in zip(sources, binding.parameters, strict=True):
        if bound.input is None:
            continue
        if by_name[name].kind is ParameterKind.CATEGORICAL:
            raise InvalidInput(
                f"[{SUBJECT}]: parameter {name!r} is categorical, but {bound.name!r} is an input, "
                "which holds numbers; expected a key of the model's config"
            )
        if id(bound.spread) in seen:
            tensor = info.inputs[bound.input]
            raise InvalidInput(
                f"[{SUBJECT}]: parameter {name!r} is one number, but input {tensor.name!r} has the "
                f"shape {list(tensor.shape)}; expected one for each entry, such as "
                f"input.{tensor.name}[0] = {name}"
            )
        seen.add(id(bound.spread))
        _check_type(by_name[name], info.inputs[bound.input])
    for tensor, held in zip(info.inputs, binding.fixed, strict=True):
        _check_held(held[np.isfinite(held)], tensor)
    return binding, sources


def _check_type(parameter: Parameter, tensor: TensorInfo) -> None:
    """Raise InvalidInput unless the input has room for every value of the parameter, as it is."""
    kind = numpy_dtype(tensor.dtype).kind
    if kind == "O" or (kind in "iub" and parameter.kind is ParameterKind.CONTINUOUS):
        what = "texts or images" if kind == "O" else "whole numbers"
        expected = "a key of the model's config" if kind == "O" else "par_type = integer"
        raise InvalidInput(
            f"[{SUBJECT}]: parameter {parameter.name!r} is {parameter.kind}, but input "
            f"{tensor.name!r} holds {what}, {tensor.dtype}; expected {expected}"
        )
    _check_held(np.array([parameter.lower, parameter.upper]), tensor)


def _check_held(values: Array, tensor: TensorInfo) -> None:
    """Raise InvalidInput when an input of whole numbers cannot hold these."""
    dtype = numpy_dtype(tensor.dtype)
    if dtype.kind not in "iub":
        return
    with np.errstate(invalid="ignore"):
        wrong = values[values.astype(dtype).astype(np.float64) != values]
    if wrong.size:
        raise InvalidInput(
            f"[{SUBJECT}]: input {tensor.name!r} holds whole numbers, {tensor.dtype}, of which "
            f"{wrong[0]:g} is none"
        )


def _plain(value: float | str | None) -> float | str | None:
    """A whole number as an int: in a config, 3 and 3.0 may not mean the same."""
    return int(value) if isinstance(value, float) and value == int(value) else value


def _spread(parameter: Parameter) -> Distribution:
    """A distribution of its own for each parameter, which the binding hands through."""
    match parameter.kind:
        case ParameterKind.INTEGER | ParameterKind.BINARY:
            return Integer(int(parameter.lower), int(parameter.upper))
        case ParameterKind.CATEGORICAL:
            return Choice(tuple(float(i) for i in range(len(parameter.choices))))
    return Uniform(parameter.lower, parameter.upper)


def _outcome_expressions(subject: Subject, info: ModelInfo) -> dict[str, Expression]:
    values = _output_values(
        info.outputs, tuple(np.ones(t.shape, numpy_dtype(t.dtype)) for t in info.outputs)
    )
    expressions = {}
    for outcome in subject.wanted:
        place = f"[{SUBJECT}] outcome.{outcome.name}"
        expression = subject.expressions.get(outcome.name)
        if expression is None:
            expression = Expression(_default_output(outcome, subject, info, place), place)
        unknown = sorted(expression.names - set(values))
        if unknown:
            raise InvalidInput(
                f"{place} names {unknown[0]!r}, which is no output of model {info.name!r}; "
                f"expected one of {', '.join(t.name for t in info.outputs)}"
            )
        expression.check_shapes({name: values[name] for name in expression.names})
        expressions[outcome.name] = expression
    return expressions


def _default_output(outcome: Outcome, subject: Subject, info: ModelInfo, place: str) -> str:
    single = [i for i, tensor in enumerate(info.outputs) if tensor.size == 1]
    named = [i for i in single if info.outputs[i].name == outcome.name]
    chosen = named or (single if len(subject.wanted) == 1 else [])
    if len(chosen) != 1:
        outputs = ", ".join(f"{t.name} {list(t.shape)}" for t in info.outputs)
        raise InvalidInput(
            f"{place} is missing; expected an expression over the outputs of model "
            f"{info.name!r}, which are {outputs}"
        )
    return f"out{chosen[0]}"


def _output_values(tensors: tuple[TensorInfo, ...], arrays: tuple[Array, ...]) -> dict[str, Array]:
    """Outputs by name, and by position as out0, out1; a name wins."""
    values: dict[str, Array] = {}
    for i, (tensor, array) in enumerate(zip(tensors, arrays, strict=True)):
        values.setdefault(f"out{i}", np.reshape(array, tensor.shape))
    named = {t.name: values[f"out{i}"] for i, t in reversed(list(enumerate(tensors)))}
    return {**values, **named}


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
