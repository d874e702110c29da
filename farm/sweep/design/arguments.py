"""Plain functions in a sweep: the sizes of their arguments and of their value."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from farm.call import TensorInfo
from farm.declared import Tensors
from farm.functions import Function, PlainFunction, plain_function
from farm.model import Inputs, info_of
from farm.sweep.design.points import COUNTED, Design, PointTable, parse_design
from farm.sweep.design.prepare import SweepRequest, make_plan
from farm.sweep.design.tables import DATA_FRAME, is_data_frame, read_data_frame
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import ONE_ENTRY, is_whole
from farm.sweep.space.grammar import as_distribution
from farm.sweep.space.parameters import Category, Distribution
from farm.worker.runner import named

MOST_TRIES = 3
"""Points that are evaluated to find the outputs, as a function may fail at some."""

REMEDY = "give it a range or a number"


def model_of(function: Function, request: SweepRequest) -> PlainFunction:
    """Return a function as a model whose inputs have the sizes that a sweep gives them.

    An argument without a size in its annotation is a single number, or has the entries that the
    names of parameters have, as `x[0]` and `x[1]`, or the shape of its fixed value. It gets whole
    numbers as int. Raises SweepError for names that the function does not take.
    """
    try:
        taken = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:  # no function, or one of C without a signature
        raise SweepError(
            f"{error}; expected a function of Python, a Model, or the name of its file"
        ) from None
    table = request.points()
    by_config, whole = _kinds_of(request, table)
    varying = [name for name in whole if name not in by_config]
    places = _places({**dict.fromkeys(varying, 0.0), **request.fixes})
    for name, value in request.fixes.items():
        whole[name] = whole.get(name, True) and _kind(value) in "iu"
    sizes = {
        stem: TensorInfo(stem, shape, "int64" if all(whole[n] for n in named) else "float64")
        for stem, (shape, named) in places.items()
    }
    texts = {name for name in request.fixes if name not in sizes}
    _check_optional(function, taken, request, by_config)
    options = {*texts, *by_config, *request.config, *filter(None, [request.seed_key])}
    if table is not None and table.names is None:
        for name, argument in taken.items():
            if argument.default is argument.empty and name not in ("config", *options):
                sizes.setdefault(name, TensorInfo(name, ()))
    try:
        model = plain_function(function, sizes, options, remedy=REMEDY)
    except TypeError as error:
        others = [repr(name) for name in places if name not in taken]
        none = f"; it has no argument {', '.join(others)}" if others else ""
        raise SweepError(f"{error}{none}") from None
    for name in [*places, *options]:
        if not model.takes(name):
            takes = ", ".join([*model.inputs, *sorted(model.options)]) or "no arguments"
            raise SweepError(f"{model.name!r} has no argument {name!r}; it takes {takes}")
    return model


def _kinds_of(request: SweepRequest, table: PointTable | None) -> tuple[set[str], dict[str, bool]]:
    """Return the names that the config gives, and which parameters are whole where active."""
    names = () if table is None else table.names or ()
    # Words, and what is left out where it is inactive, are arguments that the config gives.
    by_config = {name for name, spread in request.spreads.items() if isinstance(spread, Category)}
    by_config |= {name for name in request.when if name not in request.fixes}
    whole = {name: is_whole(spread) for name, spread in request.spreads.items()}
    if table is not None:
        by_config |= {names[j] for j in table.words if names}
        whole |= {
            name: bool(np.all((column == np.floor(column)) | np.isnan(column)))
            for name, column in zip(names, table.rows.T, strict=False)
            if name != request.cost_column
        }
    return by_config, whole


def _check_optional(
    function: Function,
    taken: Mapping[str, inspect.Parameter],
    request: SweepRequest,
    by_config: Collection[str],
) -> None:
    """Raise SweepError for a conditional argument without a value where it is inactive."""
    for name in request.when:
        argument = taken.get(name)
        required = argument is not None and argument.default is argument.empty
        if required and name in by_config and name not in request.fixes:
            label = getattr(function, "__name__", type(function).__name__)
            raise SweepError(
                f"the argument {name!r} of {label!r} has a condition and no default: expected a "
                f"default, as in def {label}({name}=...), or fix={{{name!r}: value}}, for the "
                "points where the condition is false"
            )


def outputs_of(model: PlainFunction, request: SweepRequest) -> Tensors:
    """Return the outputs of a function, from its value at the first point of a sweep.

    Raises SweepError if it fails, or if its value is not numbers.
    """
    plan = make_plan(request, lambda config: info_of(model, dict(config)))
    points = plan.mixed()[:MOST_TRIES].tolist()
    for tries, point in enumerate(points, 1):
        inputs = Inputs(zip(model.inputs, plan.inputs_of(point), strict=True))
        try:
            return model.outputs_of(model.evaluate(inputs, plan.config_of(point)))
        except (Exception, SystemExit) as error:
            if tries == len(points):
                frames = error.__traceback__
                failure = named(error.with_traceback(frames and frames.tb_next))
                raise SweepError(
                    f"{model.name!r} failed at the first {tries} points, the last with {failure}; "
                    "to run the others, give the size of its value: annotate it, or use "
                    "@farm.model(inputs=..., outputs=...)",
                    detail=failure.detail,
                ) from None
    raise AssertionError("a sweep has a point")


def _places(values: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], set[str]]]:
    """Return the shape of each argument that gets numbers, and the names that give it entries."""
    found: dict[str, tuple[tuple[int, ...], set[str]]] = {}
    for name, value in values.items():
        if _kind(value) not in "iuf":
            continue
        match = ONE_ENTRY.match(name)
        stem = match["stem"] if match else name
        shape, named = found.get(stem, ((), set()))
        least = np.shape(value)
        if match:
            least = tuple(int(k) + 1 for k in match["index"].split(","))
        if shape and least and len(shape) != len(least):
            raise SweepError(f"{', '.join(sorted(named))} and {name} have other numbers of indices")
        longest = tuple(map(max, shape, least)) if shape and least else shape or least
        found[stem] = longest, {*named, name}
    return found


def _kind(value: Any) -> str:
    try:
        return np.asarray(value).dtype.kind
    except ValueError:  # rows of different lengths
        return "O"


DEFAULT_DESIGN = "sobol"


def request_of(
    parameters: Mapping[str, Any] | Any,
    fix: Mapping[str, Any],
    design: str,
    n: int | None,
    *,
    correlation: Mapping[tuple[str, str], float] | None = None,
    where: str | Sequence[str] = (),
    when: Mapping[str, str] | None = None,
) -> SweepRequest:
    """Return a request with the points that are asked for, without a seed. Raises SweepError.

    parameters: name -> range, or a number, which is held fixed; or a DataFrame, whose columns are
    the parameters. design, n: "sobol" and 256, or both as "sobol:256". correlation, where, when:
    see `SweepRequest`; one constraint may be a text.
    """
    if is_data_frame(parameters):
        if n is not None or design != DEFAULT_DESIGN:
            raise SweepError("a DataFrame has the points of the sweep; give no design and no n")
        table = read_data_frame(parameters, gaps=bool(when))
        request = SweepRequest(Design("file", option=DATA_FRAME), 0, fixes=fix, table=table)
        return replace(request, **_space(correlation, where, when))
    if not isinstance(parameters, Mapping):
        raise SweepError(
            f"parameters is a {type(parameters).__name__}; expected a dict of name -> range, "
            "such as {'load': (1, 10)}, or a DataFrame of points, such as "
            "pandas.DataFrame(rows, columns=names)"
        )
    for name in [*parameters, *fix]:
        if not isinstance(name, str):
            raise SweepError(
                f"the parameter {name!r} is a {type(name).__name__}; expected the name of an input"
            )
    numbers = {name: value for name, value in parameters.items() if _is_number(value)}
    if both := sorted(numbers.keys() & fix.keys()):
        raise SweepError(f"{both[0]!r} is both a parameter and fixed")
    if n is None and design in COUNTED:
        raise SweepError(f"the design {design!r} needs a number of points, such as n=256")
    return SweepRequest(
        design=parse_design(design if n is None else f"{design}:{n}"),
        seed=0,
        spreads={
            name: _distribution(name, value)
            for name, value in parameters.items()
            if name not in numbers
        },
        fixes={**numbers, **fix},
        **_space(correlation, where, when),
    )


def _space(
    correlation: Mapping[tuple[str, str], float] | None,
    where: str | Sequence[str],
    when: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the arguments of a request about its space. Raises SweepError for other types."""
    texts = [where] if isinstance(where, str) else list(where)
    for what, given in (("correlation", correlation), ("when", when)):
        if given is not None and not isinstance(given, Mapping):
            raise SweepError(f"{what} is a {type(given).__name__}; expected a dict")
    for text in [*texts, *(when or {}).values()]:
        if not isinstance(text, str):
            raise SweepError(f"{text!r} is a {type(text).__name__}; expected a text, as 'a < 3*b'")
    return {"correlations": correlation or {}, "where": texts, "when": when or {}}


def _distribution(name: str, value: Any) -> Distribution:
    try:
        return as_distribution(value)
    except SweepError as error:
        raise SweepError(f"parameter {name!r}: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.number) and not isinstance(value, bool)
