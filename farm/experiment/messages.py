"""Parses the values of a client's messages, in all the forms that clients use. Pure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from configparser import RawConfigParser
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput, UnsupportedFeature, shortened
from farm.experiment.config.definition import Config, Outcome, OutcomeKind, ParameterKind
from farm.experiment.config.option_table import number_of
from farm.experiment.space import Space, single
from farm.experiment.state.events import Told
from farm.experiment.state.experiment import Experiment
from farm.experiment.work import Answered, Query, QueryKind
from farm.expression import is_number

MAX_SEED = 2**31
FLAGS = {**RawConfigParser.BOOLEAN_STATES, "1.0": True, "0.0": False}


def config_source(message: Mapping[str, Any]) -> str | Mapping[str, Any]:
    """Return the config of a setup message, as text or sections."""
    unknown = [key for key in message if key not in ("config_str", "config_dict")]
    if unknown:
        raise InvalidInput(f"setup has {unknown[0]!r}; expected config_str or config_dict alone")
    given = {key: value for key, value in message.items() if value is not None}
    if len(given) != 1:
        have = "both" if given else "neither"
        raise InvalidInput(f"setup has {have} of config_str and config_dict; expected one")
    (key, value), *_ = given.items()
    if key == "config_str":
        if not isinstance(value, str):
            raise InvalidInput(f"config_str is {shown(value)}; expected INI text")
        return value
    if not isinstance(value, dict):
        raise InvalidInput(f"config_dict is {shown(value)}; expected an object of sections")
    return value


def seed_of(config: Config, number: int) -> int:
    """Return the seed of an experiment's random numbers: its option `seed`, or else its number."""
    for options in (config.farm or {}, config.sections.get("common", {})):
        seed = number_of(options.get("seed"))
        if seed is not None and seed.is_integer():
            return int(seed) % MAX_SEED
    return number


def whole_number(
    message: Mapping[str, Any], key: str, *, least: int, most: float = math.inf
) -> int | None:
    """Return the whole number under a key, which may be a text; None if it is missing."""
    value = message.get(key)
    if value is None:
        return None
    number = None if isinstance(value, bool) else number_of(value)
    expected = f"a whole number from {least}" + ("" if most == math.inf else f" to {most}")
    if number is None or not number.is_integer() or not least <= number <= most:
        raise InvalidInput(f"{key!r} is {shown(value)}; expected {expected}")
    return int(number)


def text(message: Mapping[str, Any], key: str) -> str | None:
    """Return the text under a key; None if it is missing."""
    value = message.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{key!r} is {shown(value)}; expected text")
    return value


def flag(message: Mapping[str, Any], key: str, default: bool) -> bool:
    """Return the flag under a key, which may be 0, 1 or a text."""
    value = message.get(key)
    if value is None:
        return default
    if str(value).lower() not in FLAGS:
        raise InvalidInput(f"{key!r} is {shown(value)}; expected true or false")
    return FLAGS[str(value).lower()]


def read_tell(experiment: Experiment, message: Mapping[str, Any], now: float) -> Told:
    """Return the trials of a tell, not matched with points yet. Raises InvalidInput."""
    config = experiment.config
    if message.get("config") is None:
        names = ", ".join(p.name for p in config.parameters)
        raise InvalidInput(f"'config' is missing in the tell; expected values of {names}")
    points, columns = experiment.space.encode(message["config"])
    if "outcome" not in message:
        raise InvalidInput(f"'outcome' is missing in the tell; expected {_wanted(config)}")
    outcomes = _outcomes(config, message["outcome"], len(points))
    fixed = {p.name: p.value for p in config.parameters if p.kind is ParameterKind.FIXED}
    known = ("config", "outcome", "model_data")
    extra = {key: value for key, value in message.items() if key not in known}
    for name, column in columns.items():
        if name not in fixed or not _all_are(fixed[name], column):
            extra[name if name not in extra else f"config.{name}"] = column
    return Told(
        experiment=experiment.number,
        time=now,
        points=points,
        outcomes=outcomes,
        ids=(),
        model_data=flag(message, "model_data", True),
        extra=extra,
    )


def most_trials(message: Mapping[str, Any]) -> int:
    """Return an upper bound of a tell's trials: the length of the longest list in it."""
    values = [message.get("config"), message.get("outcome")]
    lists = [*values, *[v for of in values if isinstance(of, Mapping) for v in of.values()]]
    return max([len(value) for value in lists if isinstance(value, list)], default=0)


def _all_are(value: float | str | None, column: Any) -> bool:
    """Whether a column, of one trial or stimulus each, has only this value."""
    if isinstance(column, list):
        return all(_all_are(value, entry) for entry in column)
    return column == value or number_of(column) == number_of(value) is not None


def _outcomes(config: Config, value: Any, count: int) -> Array:
    """Return the outcomes of `count` trials, shape (count, outcomes)."""
    names = [outcome.name for outcome in config.outcomes]
    if isinstance(value, dict):
        if set(value) != set(names):
            given = ", ".join(map(str, value)) or "nothing"
            raise InvalidInput(f"'outcome' names {given}; expected {', '.join(names)}")
        columns = [value[name] for name in names]
    elif len(names) == 1:
        columns = [value]
    else:
        raise InvalidInput(f"'outcome' is {shown(value)}; expected {_wanted(config)}")
    numbers = [_column(o, c, count) for o, c in zip(config.outcomes, columns, strict=True)]
    return np.array(numbers, dtype=np.float64).reshape(len(names), count).T


def _wanted(config: Config) -> str:
    names = [outcome.name for outcome in config.outcomes]
    if len(names) == 1:
        return "a number for each trial"
    return f"an object with a number for each trial of {', '.join(names)}"


def _column(outcome: Outcome, value: Any, count: int) -> list[float]:
    entries = value if isinstance(value, list) else [value]
    if len(entries) != count:
        raise InvalidInput(
            f"outcome {outcome.name!r} has {len(entries)} values, but config has {count} trials; "
            "expected one for each"
        )
    if outcome.kind is OutcomeKind.CONTINUOUS and set(map(type, entries)) <= {float}:
        return entries
    return [_number(outcome, entry) for entry in entries]


def _number(outcome: Outcome, value: Any) -> float:
    value = single(value)
    expected = "0 or 1" if outcome.kind is OutcomeKind.BINARY else "a number"
    number = None
    if is_number(value) if isinstance(value, str) else isinstance(value, int | float):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if number is None:
        raise InvalidInput(f"outcome {outcome.name!r} is {shown(value)}; expected {expected}")
    if outcome.kind is OutcomeKind.BINARY and math.isfinite(number) and number not in (0.0, 1.0):
        raise InvalidInput(f"outcome {outcome.name!r} is {shown(value)}; expected {expected}")
    return number


def read_query(experiment: Experiment, message: Mapping[str, Any]) -> Query:
    """Return the work that a query requests. Raises InvalidInput, UnsupportedFeature."""
    kind = _query_kind(message)
    config, space = experiment.config, experiment.space
    strategy = experiment.with_surrogate()
    if strategy is None:
        raise InvalidInput("a query needs a model, but no strategy of the experiment has one")
    if not experiment.has_data(strategy):
        raise InvalidInput("a query needs data, but no modelled trial is recorded yet")
    probability = flag(message, "probability_space", False)
    if probability and not all(o.kind is OutcomeKind.BINARY for o in config.outcomes):
        raise InvalidInput(
            "probability_space is true, but not all outcomes are binary; expected false for "
            f"{', '.join(o.name for o in config.outcomes if o.kind is not OutcomeKind.BINARY)}"
        )
    return Query(
        config=config,
        strategy=strategy,
        kind=kind,
        data=experiment.data(strategy),
        x=_x(space, message.get("x")) if kind is QueryKind.PREDICTION else None,
        y=_y(config, message) if kind is QueryKind.INVERSE else None,
        constraints=space.held(message.get("constraints"), "constraints"),
        probability=probability,
        max_time_s=_max_time(message.get("max_time")),
        seed=experiment.seed,
    )


def query_answer(query: Query, message: Mapping[str, Any], result: Answered) -> dict[str, Any]:
    """Return the answer to a query; `y` is a bare number if there is one outcome."""
    x = result.x if query.x is None else query.x
    y = [float(value) for value in result.y]
    return {
        "query_type": str(query.kind),
        "probability_space": query.probability,
        "constraints": message.get("constraints") or {},
        "x": Space(query.config.parameters, x.shape[1]).decode(x),
        "y": y[0] if len(y) == 1 else y,
    }


def _query_kind(message: Mapping[str, Any]) -> QueryKind:
    value = message.get("query_type")
    if value is None or value == "":
        return QueryKind.MAX
    if value not in list(QueryKind):
        expected = ", ".join(QueryKind)
        raise InvalidInput(f"'query_type' is {shown(value)}; expected one of {expected}")
    return QueryKind(value)


def _x(space: Space, value: Any) -> Array:
    """Return the point of a prediction, shape (1, stimuli, d), or (1, 1, d) for one of a pair."""
    if not isinstance(value, dict) or not value:
        names = ", ".join(p.name for p in space.free)
        raise InvalidInput(f"'x' is {shown(value)}; expected values of {names} for a prediction")
    value = {p.name: p.value for p in space.parameters if p.value is not None} | value
    if space.stimuli > 1 and any(_is_pair(value.get(p.name)) for p in space.free):
        fixed = [p for p in space.parameters if p not in space.free]
        points, _ = space.encode(value | {p.name: [[p.value] * space.stimuli] for p in fixed})
    else:
        points, _ = Space(space.parameters).encode(value)
    if len(points) != 1:
        raise InvalidInput(f"'x' has {len(points)} points; expected one")
    return points


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and (len(value) > 1 or _is_pair(value[0] if value else None))


def _y(config: Config, message: Mapping[str, Any]) -> float:
    if len(config.outcomes) > 1:
        raise UnsupportedFeature(
            f"an inverse query needs a single outcome, but there are {len(config.outcomes)}"
        )
    value = message.get("y")
    number = number_of(single(value))
    if number is None:
        raise InvalidInput(f"'y' is {shown(value)}; expected the value to search for")
    return number


def _max_time(value: Any) -> float | None:
    if value is None:
        return None
    number = number_of(value)
    if number is None or number <= 0:
        raise InvalidInput(f"'max_time' is {shown(value)}; expected seconds above 0")
    return number


def shown(value: object) -> str:
    """Return the value as an error message shows it, shortened."""
    text = "missing" if value is None else repr(value)
    return shortened(text, 60)
