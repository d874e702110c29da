"""The [farm] section: the model that evaluates points, its calls and its outcomes. Pure.

A parameter without an `input.` option goes to the input of its own name or an entry of one, or else
to the model's config. An outcome without an expression is the output of its name, if that has one
entry; a single outcome may also be the only output with one entry.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from farm.experiment.config import options
from farm.experiment.config.definition import Config, Outcome, OutcomeKind, Parameter, ParameterKind
from farm.experiment.config.ini import FARM, Section
from farm.experiment.config.option_table import number_of
from farm.experiment.space import single, spread_of
from farm.expression import Expression
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import Binding, bind
from farm.sweep.space.parameters import Distribution


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedModel:
    """The model that evaluates an experiment's points, and how points map to its calls.

    inputs: name of an input, entry or config key -> its parameter, or its constant value.
    config: keys of the model's config with JSON values. expressions: by outcome. The other fields
    are options of [farm].
    """

    name: str
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
    seed_data: tuple[str, ...] = ()

    def bound(self, info: ModelInfo) -> BoundModel:
        """Return how points map to calls of the described model.

        Raises InvalidInput unless every point makes a call and every result has all outcomes.
        """
        if Operation.EVALUATE not in info.operations:
            raise InvalidInput(f"model {info.name!r} offers no evaluation; expected one that does")
        for tensor in (*info.inputs, *info.outputs):
            if tensor.varies:
                raise InvalidInput(
                    f"model {info.name!r}: the size of {tensor.name!r} varies, "
                    f"{list(tensor.shape)}; expected sizes that the config settles"
                )
        binding, sources = _binding(self, info)
        return BoundModel(self, info, binding, sources, _outcome_expressions(self, info))


@dataclass(frozen=True, slots=True, eq=False)
class BoundModel:
    """The [farm] section matched to a model's description.

    sources: position in the binding's parameters, and the experiment's parameter.
    expressions: by outcome.
    """

    model: EvaluatedModel
    info: ModelInfo
    binding: Binding
    sources: tuple[tuple[int, str], ...]
    expressions: Mapping[str, Expression]

    def call(self, point: Mapping[str, Any]) -> Call:
        """Return the call that evaluates one point.

        point: the value of each parameter, or a list of one value. Raises InvalidInput.
        """
        arrays = [array.copy() for array in self.binding.fixed]
        config = dict(self.binding.config)
        for place, name in self.sources:
            parameter, value = self.binding.parameters[place], single(point[name])
            if parameter.input is not None:
                arrays[parameter.input][parameter.entry] = value
            elif parameter.whole and not isinstance(value, str):
                config[parameter.name] = int(value)
            else:
                config[parameter.name] = value
        inputs = tuple(
            array.astype(tensor.dtype).reshape(tensor.shape)
            for array, tensor in zip(arrays, self.info.inputs, strict=True)
        )
        return Call(self.model.name, Operation.EVALUATE, inputs, canonical_config(config))

    def outcomes(self, result: Result) -> dict[str, float]:
        """Return the outcomes of one evaluation by name; NaN where the model returned NaN.

        Raises InvalidInput if an expression has no value, InvalidOutput if a binary outcome is
        neither 0 nor 1.
        """
        arrays = _output_values(self.info.outputs, result.outputs)
        values = {}
        for outcome in self.model.wanted:
            value = self.expressions[outcome.name].number(arrays)
            if outcome.kind is OutcomeKind.BINARY and not math.isnan(value) and value not in (0, 1):
                raise InvalidOutput(
                    f"outcome {outcome.name!r} is binary, but its value is {value:g}; expected 0 "
                    f"or 1, as of a comparison: [{FARM}] outcome.{outcome.name} = x[0] > 1"
                )
            values[outcome.name] = value
        return values


def read_evaluated_model(config: Config) -> EvaluatedModel:
    """Return the model described by [farm]. Raises InvalidInput, UnsupportedFeature."""
    if config.farm is None:
        raise InvalidInput(f"section [{FARM}] is missing; expected model = the name of a model")
    if config.stimuli != 1:
        raise UnsupportedFeature(
            f"[{FARM}] needs stimuli_per_trial = 1: a model cannot compare pairs"
        )
    section = Section(FARM, config.farm, config.farm)
    for name in section.own:
        if not options.FARM.has(name):
            known = ", ".join(option.name for option in options.FARM.options)
            raise InvalidInput(f"[{FARM}] {name} is not known; expected one of {known}")
    values = options.FARM.read_all(section)
    return EvaluatedModel(
        name=values.pop("model"),
        parameters=config.parameters,
        wanted=config.outcomes,
        inputs=_inputs(section, config.parameters),
        config={key: _json(text) for key, text in _named(section, "config.").items()},
        expressions=_expressions(section, config.outcomes),
        time_limit_s=values.pop("time_limit"),
        max_time_s=values.pop("max_time"),
        seed_data=values.pop("seed_data") or (),
        **values,
    )


def _inputs(section: Section, parameters: tuple[Parameter, ...]) -> dict[str, str | float]:
    """Return the source of each input; parameters without an `input.` option use their own name."""
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
                f"[{FARM}] input.{name} takes the place of parameter {name!r}, which then goes "
                f"nowhere; expected input.<another> = {name}"
            )
        inputs[name] = name
    return inputs


def _expressions(section: Section, outcomes: tuple[Outcome, ...]) -> dict[str, Expression]:
    names = [outcome.name for outcome in outcomes]
    expressions = {}
    for name in _named(section, "outcome."):
        option = f"outcome.{name}"
        if name not in names:
            raise InvalidInput(
                f"[{FARM}] {option} is not an outcome; expected one of {', '.join(names)}"
            )
        if not section.has(option):
            raise options.FARM.wrong(section, option)
        expressions[name] = Expression(section.all[option], section.where(option))
    return expressions


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


def _binding(model: EvaluatedModel, info: ModelInfo) -> tuple[Binding, tuple[tuple[int, str], ...]]:
    by_name = {parameter.name: parameter for parameter in model.parameters}
    spreads: dict[str, Distribution | None] = {}
    fixes: dict[str, Any] = {}
    source_of: dict[int, str] = {}  # by the id of each spread, which the binding preserves
    for name, given in model.inputs.items():
        if not isinstance(given, str):
            fixes[name] = _plain(given)
        elif by_name[given].kind is ParameterKind.FIXED:
            fixes[name] = _plain(by_name[given].value)
        else:
            spreads[name] = spread = spread_of(by_name[given])
            source_of[id(spread)] = given
    try:
        expected = f"expected [{FARM}] input.<input>"
        binding = bind(info, spreads, fixes, model.config, remedy=expected)
    except SweepError as error:
        raise InvalidInput(f"[{FARM}] does not fit the model: {error}") from None
    sources = tuple((i, source_of[id(p.spread)]) for i, p in enumerate(binding.parameters))
    seen: set[int] = set()
    for (_, name), bound in zip(sources, binding.parameters, strict=True):
        if bound.input is None:
            continue
        if by_name[name].kind is ParameterKind.CATEGORICAL:
            raise InvalidInput(
                f"[{FARM}]: parameter {name!r} is categorical, but {bound.name!r} is an input, "
                "which holds numbers; expected a key of the model's config"
            )
        if id(bound.spread) in seen:
            tensor = info.inputs[bound.input]
            raise InvalidInput(
                f"[{FARM}]: parameter {name!r} is one number, but input {tensor.name!r} has the "
                f"shape {list(tensor.shape)}; expected one for each entry, such as "
                f"input.{tensor.name}[0] = {name}"
            )
        seen.add(id(bound.spread))
        _check_type(by_name[name], info.inputs[bound.input])
    for tensor, held in zip(info.inputs, binding.fixed, strict=True):
        _check_held(held[np.isfinite(held)], tensor)
    return binding, sources


def _check_type(parameter: Parameter, tensor: TensorInfo) -> None:
    """Raise InvalidInput unless the input can hold every value of the parameter unchanged."""
    kind = numpy_dtype(tensor.dtype).kind
    if kind == "O" or (kind in "iub" and parameter.kind is ParameterKind.CONTINUOUS):
        what = "texts or images" if kind == "O" else "whole numbers"
        expected = "a key of the model's config" if kind == "O" else "par_type = integer"
        raise InvalidInput(
            f"[{FARM}]: parameter {parameter.name!r} is {parameter.kind}, but input "
            f"{tensor.name!r} holds {what}, {tensor.dtype}; expected {expected}"
        )
    _check_held(np.array([parameter.lower, parameter.upper]), tensor)


def _check_held(values: Array, tensor: TensorInfo) -> None:
    """Raise InvalidInput if an integer input cannot hold these values."""
    dtype = numpy_dtype(tensor.dtype)
    if dtype.kind not in "iub":
        return
    with np.errstate(invalid="ignore"):
        wrong = values[values.astype(dtype).astype(np.float64) != values]
    if wrong.size:
        raise InvalidInput(
            f"[{FARM}]: input {tensor.name!r} has type {tensor.dtype}, which cannot hold "
            f"{wrong[0]:g}"
        )


def _plain(value: float | str | None) -> float | str | None:
    """Return a whole number as an int: a model's config may distinguish 3 and 3.0."""
    return int(value) if isinstance(value, float) and value == int(value) else value


def _outcome_expressions(model: EvaluatedModel, info: ModelInfo) -> dict[str, Expression]:
    values = _output_values(
        info.outputs, tuple(np.ones(t.shape, numpy_dtype(t.dtype)) for t in info.outputs)
    )
    expressions = {}
    for outcome in model.wanted:
        place = f"[{FARM}] outcome.{outcome.name}"
        expression = model.expressions.get(outcome.name)
        if expression is None:
            expression = Expression(_default_output(outcome, model, info, place), place)
        unknown = sorted(expression.names - set(values))
        if unknown:
            raise InvalidInput(
                f"{place} names {unknown[0]!r}, which is not an output of model {info.name!r}; "
                f"expected one of {', '.join(t.name for t in info.outputs)}"
            )
        expression.check_shapes({name: values[name] for name in expression.names})
        expressions[outcome.name] = expression
    return expressions


def _default_output(outcome: Outcome, model: EvaluatedModel, info: ModelInfo, place: str) -> str:
    single = [i for i, tensor in enumerate(info.outputs) if tensor.size == 1]
    named = [i for i in single if info.outputs[i].name == outcome.name]
    chosen = named or (single if len(model.wanted) == 1 else [])
    if len(chosen) != 1:
        outputs = ", ".join(f"{t.name} {list(t.shape)}" for t in info.outputs)
        raise InvalidInput(
            f"{place} is missing; expected an expression over the outputs of model "
            f"{info.name!r}, which are {outputs}"
        )
    return f"out{chosen[0]}"


def _output_values(tensors: tuple[TensorInfo, ...], arrays: tuple[Array, ...]) -> dict[str, Array]:
    shaped = [np.reshape(a, t.shape) for a, t in zip(arrays, tensors, strict=True)]
    return {name: shaped[i] for name, i in output_places(tensors).items()}


def output_places(tensors: Sequence[TensorInfo]) -> dict[str, int]:
    """Return outputs by position as out0, out1, and by name; a name takes precedence."""
    by_position = {f"out{i}": i for i in range(len(tensors))}
    return by_position | {t.name: i for i, t in reversed(list(enumerate(tensors)))}
