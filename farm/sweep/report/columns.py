"""The columns of a report: parameters and outputs with one number for each point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from farm.call import Array, TensorInfo
from farm.report.interactive import packed
from farm.sweep.design.plan import Column, Plan
from farm.sweep.errors import SweepError
from farm.sweep.file import layout
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.category import Category

MOST_PARAMETERS = 40
"""Most parameters in a report."""

MOST_OUTPUTS = 24
"""Most output columns in a report."""

MOST_ENTRIES = 6
"""Up to this size, each entry of an output is a column; of a larger output, only its mean."""

MOST_LEVELS = 24
"""Up to this number of values, a whole-number parameter or a choice has an axis of categories."""

READ_BYTES = 32 * 1024**2
"""Bytes of an output that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An output column. entry: which entry of the output; None: the mean of its entries."""

    name: str
    column: Column
    tensor: TensorInfo
    entry: int | None


def parameters_of(plan: Plan) -> list[int]:
    """Return the positions of the parameters that a report has: the first ones."""
    return list(range(min(len(plan.parameters), MOST_PARAMETERS)))


def parameter_column(plan: Plan, position: int, points: Array) -> dict[str, Any]:
    """Return a parameter as JSON data: name, unit, axis, and its values at `points`.

    The value of a parameter with levels is the position of its level. NaN: it has no value there.
    """
    parameter = plan.parameters[position]
    values = plan.theta[points, position]
    levels, labels = _levels(parameter, plan.theta[:, position])
    if len(levels):
        known = np.isfinite(values)
        place = np.searchsorted(levels, np.where(known, values, levels[0]))
        values = np.where(known, place, np.nan)
    tensor = plan.tensor_of(parameter)
    return {
        "name": parameter.name,
        "unit": tensor.unit if tensor else "",
        "description": tensor.description if tensor else "",
        "log": parameter.spread is not None and parameter.spread.scale == "log",
        "levels": labels,
        "values": packed(values),
    }


def _levels(parameter: BoundParameter, values: Array) -> tuple[Array, list[str]]:
    """Return the values of an axis of categories, ascending, and their labels; both may be empty.

    Whole numbers and choices have such an axis, if they are few.
    """
    if isinstance(parameter.spread, Category):
        words = parameter.spread.words
        return np.arange(len(words), dtype=float), list(words)
    scale = "" if parameter.spread is None else parameter.spread.scale
    if not (parameter.whole or scale in ("integer", "choice")):
        return np.array([]), []
    distinct = np.unique(values[np.isfinite(values)])
    if len(distinct) > MOST_LEVELS or not len(distinct):
        return np.array([]), []
    return distinct, [f"{value:.6g}" for value in distinct]


def outputs_of(plan: Plan) -> list[tuple[Column, TensorInfo]]:
    """Return the outputs with at least one entry."""
    return [(c, plan.info.outputs[c.output]) for c in plan.columns if c.input is None]


def quantities_of(plan: Plan, wanted: str | None) -> tuple[list[Quantity], int]:
    """Return the output columns, and the position of the one to show first.

    wanted: an output such as u or u[3]; None: the first. Raises SweepError.
    """
    found = [q for column, tensor in outputs_of(plan) for q in _of_output(column, tensor)]
    first = 0
    if wanted is not None:
        chosen = _wanted(plan, wanted)
        same = [k for k, q in enumerate(found) if (q.column, q.entry) == (chosen[0], chosen[1])]
        if not same:
            tensor = plan.info.outputs[chosen[0].output]
            found.insert(0, Quantity(wanted, *(chosen[0], tensor), chosen[1]))
        first = same[0] if same else 0
    if first >= MOST_OUTPUTS:
        found.insert(0, found.pop(first))
        first = 0
    return found[:MOST_OUTPUTS], first


def _of_output(column: Column, tensor: TensorInfo) -> Iterator[Quantity]:
    if column.size == 1:
        yield Quantity(tensor.name, column, tensor, 0)
        return
    yield Quantity(f"mean of {tensor.name}", column, tensor, None)
    if column.size <= MOST_ENTRIES:
        for entry in range(column.size):
            yield Quantity(f"{tensor.name}[{entry}]", column, tensor, entry)


def _wanted(plan: Plan, wanted: str) -> tuple[Column, int | None]:
    outputs = {tensor.name: column for column, tensor in outputs_of(plan)}
    stem, _, index = wanted.removesuffix("]").partition("[")
    if wanted in outputs:
        stem, index = wanted, ""
    if stem not in outputs or (index and not index.isdecimal()):
        raise SweepError(f"no output {wanted!r}; the outputs are {', '.join(outputs) or 'none'}")
    column = outputs[stem]
    if index and int(index) >= column.size:
        raise SweepError(f"output {stem!r} has the entries 0 to {column.size - 1}, got {index}")
    return column, int(index) if index else 0 if column.size == 1 else None


def quantity_columns(
    file: h5py.File, quantities: Sequence[Quantity], points: Array, done: Array
) -> list[dict[str, Any]]:
    """Return the output columns as JSON data; NaN where a point of `points` is not done.

    done: mask over `points`.
    """
    values = {k: np.full(len(points), np.nan) for k in range(len(quantities))}
    for column in dict.fromkeys(q.column for q in quantities):
        of_column = [(k, q.entry) for k, q in enumerate(quantities) if q.column == column]
        places = np.flatnonzero(done)
        for part, rows in read_rows(file, column, points[places]):
            for k, entry in of_column:
                with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs
                    numbers = np.mean(rows, axis=1) if entry is None else rows[:, entry]
                values[k][places[part]] = numbers
    return [
        {
            "name": q.name,
            "output": q.tensor.name,
            "unit": q.tensor.unit,
            "description": q.tensor.description,
            "values": packed(values[k]),
        }
        for k, q in enumerate(quantities)
    ]


def read_rows(file: h5py.File, column: Column, points: Array) -> Iterator[tuple[slice, Array]]:
    """Read the values of `points`, which ascend, in parts: the place in `points`, and the rows."""
    step = max(1, READ_BYTES // (8 * column.size))
    for start in range(0, len(points), step):
        part = slice(start, start + step)
        yield part, layout.read_values(file, [column], points[part])
