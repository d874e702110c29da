"""Which input entry or config key a name on the command line means. Pure.

A name given to --param or --fix means an input of the model when the model has one of that name,
and a key of its config otherwise:

    k          the only entry of input k; of a longer input every entry, each on its own
    x[2]       entry 2 of input x (from 0; x[1,2] in a matrix); it wins over a plain x
    in0[2]     the same by position, for models whose inputs have no telling names
    mesh       no input of that name: the config key "mesh"

Every entry of every input needs a value, so a misspelt input is always noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from farm.call import Array, ModelInfo, Operation, TensorInfo
from farm.sweep.errors import SweepError
from farm.sweep.parameters import Choice, Distribution, Integer

ONE_ENTRY = re.compile(r"(?P<stem>.+?)\[(?P<index>\d+(,\s*\d+)*)\]$")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One column of the table and where its values go.

    spread: None when a table gives the values; input, entry: the model's input, by position, and
    the place in it (in C order); input None: the config key `name`; whole: whole numbers, which
    a config gets as such.
    """

    name: str
    spread: Distribution | None = None
    input: int | None = None
    entry: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """Names matched to a model: the columns, the inputs' fixed entries (NaN: free), the config."""

    parameters: tuple[Parameter, ...]
    fixed: tuple[Array, ...]
    config: Mapping[str, Any]


class Place(NamedTuple):
    """Entries of one tensor; `single` when the name had an index."""

    tensor: int
    entries: Sequence[int]
    single: bool


def bind(
    info: ModelInfo,
    spreads: Mapping[str, Distribution | None],
    fixes: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Binding:
    """Match names to the inputs of `info`, by the rule at the top; what matches none is config.

    spreads: name -> distribution, None where a table gives the values; fixes: name -> value.
    Raises SweepError when an entry has no value or two, or a value does not fit.
    """
    for name in spreads:
        if name in fixes:
            raise SweepError(f"{name!r} is both a parameter and fixed")
    places = {name: _input(name, info) for name in [*spreads, *fixes]}
    givers = _givers(info, places)
    parameters: list[Parameter] = []
    for name, spread in spreads.items():
        place, whole = places[name], _is_whole(spread)
        if place is None:
            parameters.append(Parameter(name, spread, whole=whole))
            continue
        parameters += [
            Parameter(entry_name(info.inputs[place.tensor], e), spread, place.tensor, e, whole)
            for e in place.entries
            if givers[place.tensor, e] == name
        ]
    fixed = tuple(np.full(tensor.size, np.nan) for tensor in info.inputs)
    settings = dict(config)
    for name, value in fixes.items():
        place = places[name]
        if place is None:
            settings[name] = value
            continue
        numbers = _numbers(name, value, len(place.entries))
        for e, number in zip(place.entries, numbers, strict=True):
            if givers[place.tensor, e] == name:
                fixed[place.tensor][e] = number
    return Binding(tuple(parameters), fixed, settings)


def open_entries(info: ModelInfo, fixes: Iterable[str]) -> list[str]:
    """The names of all input entries that `fixes` leaves open, in the model's order."""
    closed = {
        (place.tensor, e)
        for place in (_input(name, info) for name in fixes)
        if place is not None
        for e in place.entries
    }
    return [
        entry_name(tensor, e)
        for i, tensor in enumerate(info.inputs)
        for e in range(tensor.size)
        if (i, e) not in closed
    ]


def wanted_gradients(info: ModelInfo, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(output, entry) pairs of names such as "u" (all its entries) or "u[3]". Raises SweepError."""
    if names and Operation.GRADIENT not in info.operations:
        raise SweepError(f"model {info.name!r} offers no gradient")
    pairs: dict[tuple[int, int], None] = {}
    for name in names:
        place = _place(name, info.outputs, "out")
        if place is None:
            offered = ", ".join(tensor.name for tensor in info.outputs)
            raise SweepError(f"gradient of {name!r}: no such output; the outputs are {offered}")
        pairs.update(dict.fromkeys((place.tensor, e) for e in place.entries))
    return tuple(pairs)


def entry_name(tensor: TensorInfo, entry: int) -> str:
    """`k` for the only entry of k, else `x[3]` or `x[1,2]`."""
    if tensor.size == 1:
        return tensor.name
    place = np.unravel_index(entry, tensor.shape)
    return f"{tensor.name}[{','.join(str(int(k)) for k in place)}]"


def _givers(info: ModelInfo, places: Mapping[str, Place | None]) -> dict[tuple[int, int], str]:
    """The name that gives each entry: one with an index wins over a plain one."""
    givers: dict[tuple[int, int], str] = {}
    for single in (False, True):
        level: dict[tuple[int, int], str] = {}
        for name, place in places.items():
            if place is None or place.single != single:
                continue
            for e in place.entries:
                other = level.setdefault((place.tensor, e), name)
                if other != name:
                    label = entry_name(info.inputs[place.tensor], e)
                    raise SweepError(f"{other!r} and {name!r} both give {label}")
        givers |= level
    missing = [
        entry_name(tensor, e)
        for i, tensor in enumerate(info.inputs)
        for e in range(tensor.size)
        if (i, e) not in givers
    ]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        keys = ", ".join(name for name, place in places.items() if place is None)
        raise SweepError(
            f"no value for {', '.join(missing[:5])}{more}: give --param or --fix; the inputs of "
            f"{info.name!r} are "
            + ", ".join(f"{t.name} {list(t.shape)}" for t in info.inputs)
            + (f", and {keys} went to its config" if keys else "")
        )
    return givers


def _input(name: str, info: ModelInfo) -> Place | None:
    return _place(name, info.inputs, "in")


def _place(name: str, tensors: Sequence[TensorInfo], prefix: str) -> Place | None:
    """What `name` means among `tensors`; None when it is no name of theirs."""
    match = None if any(t.name == name for t in tensors) else ONE_ENTRY.match(name)
    stem = match["stem"] if match else name
    by_name = {tensor.name: i for i, tensor in reversed(list(enumerate(tensors)))}
    by_position = {f"{prefix}{i}": i for i in range(len(tensors))}
    index = by_name.get(stem, by_position.get(stem))
    if index is None:
        return None
    tensor = tensors[index]
    if match is None:
        return Place(index, range(tensor.size), single=False)
    place = tuple(int(part) for part in match["index"].split(","))
    shape = tensor.shape if len(place) > 1 else (tensor.size,)
    if len(place) != len(shape) or any(k >= n for k, n in zip(place, shape, strict=True)):
        raise SweepError(f"{name!r} is out of range: {tensor.name!r} has shape {tensor.shape}")
    return Place(index, [int(np.ravel_multi_index(place, shape))], single=True)


def _is_whole(spread: Distribution | None) -> bool:
    if isinstance(spread, Choice):
        return all(value == int(value) for value in spread.values)
    return isinstance(spread, Integer)


def _numbers(name: str, value: Any, count: int) -> Array:
    try:
        numbers = np.asarray(value, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if numbers.size not in (1, count) or not np.all(np.isfinite(numbers)):
        expected = "a finite number" if count == 1 else f"{count} finite numbers, or one for all"
        raise SweepError(f"{name!r} is an input: expected {expected}, got {value!r}")
    return np.broadcast_to(numbers, (count,))
