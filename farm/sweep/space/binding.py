"""Binds names from the command line to input entries and config keys of a model. Pure.

A name passed to --param or --fix means an input if the model has one of that name, and a key of
its config otherwise:

    k          every entry of input k, as a parameter each; often k has only one
    x[2]       entry 2 of input x (from 0; x[1,2] in a matrix); overrides a plain x
    in0[2]     the same by position, for models whose inputs have no meaningful names
    mesh       the config key "mesh", if there is no input of that name

Every entry of every input needs a value, so a misspelt input is always detected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from farm.call import BYTES, Array, ModelInfo, Operation, TensorInfo
from farm.sweep.errors import SweepError
from farm.sweep.space.parameters import Category, Choice, Distribution, Integer, ScipyDistribution
from farm.wording import worded

ONE_ENTRY = re.compile(r"(?P<stem>.+?)\[(?P<index>\d+(,\s*\d+)*)\]$")


@dataclass(frozen=True, slots=True)
class BoundParameter:
    """One column of the table and the destination of its values.

    spread: None if a table has the values, unless they are words. input, entry: position of the
    model's input, and index into it in C order; input None: the config key `name`. whole: the
    values are whole numbers and enter a config as integers.
    """

    name: str
    spread: Distribution | None = None
    input: int | None = None
    entry: int = 0
    whole: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundValues:
    """A model, the columns of the points, the inputs' fixed entries (NaN: free), the config.

    texts: the fixed entries of inputs of texts, as input, entry and text. The config is without
    parameters.
    """

    info: ModelInfo
    parameters: tuple[BoundParameter, ...]
    fixed: tuple[Array, ...]
    config: Mapping[str, Any]
    texts: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Binding(BoundValues):
    """Names bound to a model. columns: those of each name that varies."""

    columns: Mapping[str, Collection[int]]


class TensorEntries(NamedTuple):
    """Entries of one tensor. single: the name had an index."""

    tensor: int
    entries: Sequence[int]
    single: bool


def bind(
    info: ModelInfo,
    spreads: Mapping[str, Distribution | None],
    fixes: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    remedy: str = "",
    conditional: Collection[str] = (),
    with_texts: bool = False,
) -> Binding:
    """Bind names to inputs of `info`, or to config keys; the rule is at the top of this file.

    spreads: name -> distribution, None if a table has the values; fixes: name -> value.
    remedy: what the error says about entries without a value; "": what a sweep needs. conditional:
    names that may be both, as their fixed value is the one where they are inactive. with_texts:
    inputs may have texts; otherwise the caller checks the kind of each input's values.
    Raises SweepError if an entry has no value or two values, or a value does not fit.
    """
    for name in spreads:
        if name in fixes and name not in conditional:
            raise SweepError(f"{name!r} is both a parameter and fixed")
    places = {name: _input(name, info) for name in [*spreads, *fixes]}
    remedy = remedy or "give " + worded("--param or --fix", "a range or a number for each")
    givers = _givers(info, places, remedy)
    parameters: list[BoundParameter] = []
    columns: dict[str, Collection[int]] = {}
    for name, spread in spreads.items():
        place, whole = places[name], is_whole(spread)
        start = len(parameters)
        if place is None:
            parameters.append(BoundParameter(name, spread, whole=whole))
            columns[name] = range(start, start + 1)
            continue
        if with_texts:
            _check_kind(name, spread, info.inputs[place.tensor])
        parameters += [
            BoundParameter(entry_name(info.inputs[place.tensor], e), spread, place.tensor, e, whole)
            for e in place.entries
            if givers[place.tensor, e] == name
        ]
        columns[name] = range(start, len(parameters))
    fixed = tuple(np.full(tensor.size, np.nan) for tensor in info.inputs)
    settings = dict(config)
    texts: list[tuple[int, int, str]] = []
    for name, value in fixes.items():
        place = places[name]
        if place is None:
            settings[name] = value
            continue
        are_texts = with_texts and info.inputs[place.tensor].dtype == BYTES
        of_entries = (_texts if are_texts else _numbers)(name, value, len(place.entries))
        for e, of_entry in zip(place.entries, of_entries, strict=True):
            if givers[place.tensor, e] != name:
                continue
            if are_texts:
                texts.append((place.tensor, e, of_entry))
            else:
                fixed[place.tensor][e] = of_entry
    return Binding(
        info=info,
        parameters=tuple(parameters),
        fixed=fixed,
        config=settings,
        texts=tuple(texts),
        columns=columns,
    )


def open_entries(info: ModelInfo, fixes: Iterable[str]) -> list[str]:
    """Return the names of all input entries that `fixes` does not set, in the model's order."""
    places = [place for name in fixes if (place := _input(name, info)) is not None]
    return _entries_without(info, {(place.tensor, e) for place in places for e in place.entries})


def _entries_without(info: ModelInfo, given: Collection[tuple[int, int]]) -> list[str]:
    return [
        entry_name(tensor, e)
        for i, tensor in enumerate(info.inputs)
        for e in range(tensor.size)
        if (i, e) not in given
    ]


def wanted_gradients(info: ModelInfo, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Parse names such as "u" (all entries) or "u[3]" to (output, entry). Raises SweepError."""
    if names and Operation.GRADIENT not in info.operations:
        raise SweepError(f"model {info.name!r} does not offer gradients")
    pairs: dict[tuple[int, int], None] = {}
    for name in names:
        place = _place(name, info.outputs, "out")
        if place is None:
            offered = ", ".join(tensor.name for tensor in info.outputs)
            raise SweepError(f"gradient of {name!r}: no such output; the outputs are {offered}")
        pairs.update(dict.fromkeys((place.tensor, e) for e in place.entries))
    return tuple(pairs)


def output_entries(name: str, info: ModelInfo) -> TensorEntries:
    """Parse a name such as "u" (all entries) or "u[3]" of an output. Raises SweepError."""
    place = _place(name, info.outputs, "out")
    if place is None:
        offered = ", ".join(tensor.name for tensor in info.outputs)
        raise SweepError(f"no output {name!r}; the outputs are {offered}")
    return place


def entry_name(tensor: TensorInfo, entry: int) -> str:
    """Return the name of an entry: `k` if it is the only one, otherwise `x[3]` or `x[1,2]`."""
    if tensor.size == 1:
        return tensor.name
    place = np.unravel_index(entry, tensor.shape)
    return f"{tensor.name}[{','.join(str(int(k)) for k in place)}]"


def _givers(
    info: ModelInfo, places: Mapping[str, TensorEntries | None], remedy: str
) -> dict[tuple[int, int], str]:
    """Return the name that sets each entry: a name with an index overrides a plain one."""
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
                    raise SweepError(f"{other!r} and {name!r} both set {label}")
        givers |= level
    if missing := _entries_without(info, givers):
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        keys = ", ".join(name for name, place in places.items() if place is None)
        raise SweepError(
            f"no value for {', '.join(missing[:5])}{more}: {remedy}; the inputs of "
            f"{info.name!r} are "
            + ", ".join(f"{t.name} {list(t.shape)}" for t in info.inputs)
            + (f", and {keys} went to its config" if keys else "")
        )
    return givers


def _input(name: str, info: ModelInfo) -> TensorEntries | None:
    return _place(name, info.inputs, "in")


def tensor_index(name: str, tensors: Sequence[TensorInfo], prefix: str) -> int | None:
    """Return the index of the tensor of this name, or at this position, as `in0`."""
    by_position = {f"{prefix}{i}": i for i in range(len(tensors))}
    by_name = {tensor.name: i for i, tensor in reversed(list(enumerate(tensors)))}
    return (by_position | by_name).get(name)


def _place(name: str, tensors: Sequence[TensorInfo], prefix: str) -> TensorEntries | None:
    """Find the entries that `name` means among `tensors`; None if it names none of them."""
    match = None if any(t.name == name for t in tensors) else ONE_ENTRY.match(name)
    stem = match["stem"] if match else name
    if (index := tensor_index(stem, tensors, prefix)) is None:
        return None
    tensor = tensors[index]
    if match is None:
        return TensorEntries(index, range(tensor.size), single=False)
    place = tuple(int(part) for part in match["index"].split(","))
    shape = tensor.shape if len(place) > 1 else (tensor.size,)
    if len(place) != len(shape) or any(k >= n for k, n in zip(place, shape, strict=True)):
        raise SweepError(f"{name!r} is out of range: {tensor.name!r} has shape {tensor.shape}")
    return TensorEntries(index, [int(np.ravel_multi_index(place, shape))], single=True)


def is_whole(spread: Distribution | None) -> bool:
    """Whether all values of a distribution are whole numbers."""
    if isinstance(spread, Choice):
        return all(value == int(value) for value in spread.values)
    return isinstance(spread, Integer) or (isinstance(spread, ScipyDistribution) and spread.whole)


def _check_kind(name: str, spread: Distribution | None, tensor: TensorInfo) -> None:
    """Raise SweepError for words of an input of numbers, and for numbers of one of texts."""
    words = isinstance(spread, Category)
    if words == (tensor.dtype == BYTES):
        return
    if isinstance(spread, Category):
        raise SweepError(
            f"{name!r} is an input of numbers ({tensor.dtype}), and has words such as "
            f"{spread.words[0]!r}; expected numbers, or the name of a key of the model's config"
        )
    raise SweepError(
        f"{name!r} is an input of texts: expected words, such as "
        + worded(f"--param {name}=choice:a,b", f"{{{name!r}: ['a', 'b']}}")
    )


def _texts(name: str, value: Any, count: int) -> Sequence[str]:
    """Return the fixed texts of the entries of an input."""
    words = [value] * count if isinstance(value, str) else value
    if not (
        isinstance(words, list | tuple)
        and len(words) == count
        and all(isinstance(word, str) for word in words)
    ):
        expected = "a text" if count == 1 else f"{count} texts, or one for all"
        raise SweepError(f"{name!r} is an input of texts: expected {expected}, got {value!r}")
    return words


def _numbers(name: str, value: Any, count: int) -> Array:
    try:
        numbers = np.asarray(value, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if numbers.size not in (1, count) or not np.all(np.isfinite(numbers)):
        expected = "a finite number" if count == 1 else f"{count} finite numbers, or one for all"
        raise SweepError(f"{name!r} is an input: expected {expected}, got {value!r}")
    return np.broadcast_to(numbers, (count,))
