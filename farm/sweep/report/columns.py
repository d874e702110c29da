"""What a report shows: its points, columns of one number for each, and fields of several entries.

A field is an output with one or two axes: curves with quantile bands, or images.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from farm.call import Array, TensorInfo
from farm.report.page import packed
from farm.sweep.design.plan import Column, Plan
from farm.sweep.errors import SweepError
from farm.sweep.file import layout
from farm.sweep.file.journal import PointStatus
from farm.sweep.file.point_columns import PointColumns
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.parameters import Category

MOST_POINTS = 10_000
"""Most points in a report; more are slow to draw and show no more."""

LEAST_POINTS = 1_000
"""Points that a report may have however many parameters and outputs there are."""

MOST_NUMBERS = 120_000
"""Most numbers of parameters and outputs in a report: 1.3 MB of text."""

LEAST_DONE = 0.2
"""Share of a report's points that is kept for done ones where very many failed."""


@dataclass(frozen=True, eq=False)
class ShownPoints:
    """The points of a report. points: ascending; all counts are of the sweep's finished points."""

    points: Array
    done: int
    done_shown: int
    failed: int
    failed_shown: int

    @property
    def note(self) -> str:
        """A sentence about points that are left out; "" if there are none."""
        total, count = self.done + self.failed, len(self.points)
        if count == total:
            return ""
        parts = []
        if self.failed:
            every = self.failed == self.failed_shown
            parts.append(
                f"all {self.failed:,} that failed"
                if every
                else f"{self.failed_shown:,} of {self.failed:,} that failed"
            )
        parts.append(f"{self.done_shown:,} of {self.done:,} that are done")
        return f"{count:,} of {total:,} points are shown, drawn at random: {' and '.join(parts)}."


def shown_points(known: PointColumns, columns: int) -> ShownPoints:
    """Choose points of a sweep: failed ones first, done ones at random, the same each time.

    columns: numbers that the report has for each point. Pending points are left out. Points are
    drawn at random because every n-th point of a grid would miss whole levels.
    """
    most = min(MOST_POINTS, max(LEAST_POINTS, MOST_NUMBERS // max(columns, 1)))
    done = np.flatnonzero(known.status == PointStatus.DONE)
    failed = np.flatnonzero(known.status > PointStatus.DONE)
    rng = np.random.default_rng(0)
    room = most - min(len(done), int(LEAST_DONE * most))
    failed_kept = some_of(failed, room, rng)
    done_kept = some_of(done, most - len(failed_kept), rng)
    points = np.sort(np.concatenate([done_kept, failed_kept]))
    return ShownPoints(points, len(done), len(done_kept), len(failed), len(failed_kept))


def some_of(items: Array, most: int, rng: np.random.Generator) -> Array:
    """Return at most `most` items, drawn at random, in their order."""
    if len(items) <= most:
        return items
    kept: Array = items[np.sort(rng.choice(len(items), most, replace=False))]
    return kept


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


def quantities_of(plan: Plan, wanted: str | None) -> tuple[list[Quantity], int]:
    """Return the output columns, and the position of the one to show first.

    wanted: an output such as u or u[3]; None: the first. Raises SweepError.
    """
    found = [q for column, tensor in plan.outputs for q in _of_output(column, tensor)]
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
    outputs = {tensor.name: column for column, tensor in plan.outputs}
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


MOST_FIELDS = 6
"""Most fields in a report."""

MOST_FIELD_NUMBERS = 160_000
"""Most numbers of single points' fields in a report: 0.9 MB of text."""

MOST_ON_CURVE = 256
"""Most entries of a curve; of a longer one, every n-th is shown."""

MOST_ON_SIDE = 48
"""Most entries along a side of an image; those of a larger one are means of blocks."""

MOST_ROWS = 1_000
"""Most points from which quantiles, means and standard deviations are computed."""

MOST_BYTES = 256 * 1024**2
"""Most bytes that are read for those."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def is_field(column: Column, tensor: TensorInfo) -> bool:
    """Whether an output has more than one entry, along one or two axes."""
    return column.size > 1 and len(_long(tensor)) in (1, 2)


def _long(tensor: TensorInfo) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape if size > 1)


def field_of(
    file: h5py.File, column: Column, tensor: TensorInfo, points: Array, done: Array, *, share: int
) -> dict[str, Any]:
    """Return a field as JSON data.

    points: those of the report; done: mask over them; share: numbers for single points' fields.
    """
    places = np.flatnonzero(done)
    rng = np.random.default_rng(1)
    most = max(1, min(MOST_ROWS, MOST_BYTES // (8 * column.size)))
    places = some_of(places, most, rng)
    shape = _long(tensor)
    parts = [_reduced(np.empty((0, *shape)))]
    for _, values in read_rows(file, column, points[places]):
        parts.append(_reduced(values.reshape(-1, *shape)))
    rows = np.concatenate(parts)
    size = int(np.prod(rows.shape[1:]))
    kept = some_of(np.arange(len(places)), max(1, share // size), rng)
    field = {
        "name": tensor.name,
        "unit": tensor.unit,
        "description": tensor.description,
        "shape": list(shape),
        "reduced": list(rows.shape[1:]),
        "rows": len(places),
        "places": packed(places[kept], "i4"),
        "values": packed(rows[kept], "f4"),
    }
    finite = np.where(np.isfinite(rows), rows, np.nan)
    if not len(places):
        finite = np.full((1, *rows.shape[1:]), np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # entries that are NaN at every point
        if len(shape) == 1:
            return field | {
                "entries": packed(_picked(shape[0]), "i4"),
                "bands": packed(np.nanquantile(finite, QUANTILES, axis=0)),
            }
        return field | {
            "mean": packed(np.nanmean(finite, axis=0)),
            "sd": packed(np.nanstd(finite, axis=0)),
        }


def _picked(size: int) -> Array:
    """Return the entries of a curve that are shown: both ends, and evenly between them."""
    picked: Array = np.unique(np.linspace(0, size - 1, min(size, MOST_ON_CURVE)).astype(np.int64))
    return picked


def _reduced(values: Array) -> Array:
    """Return curves or images with fewer entries; shape (rows, ...)."""
    if values.ndim == 2:
        picked: Array = values[:, _picked(values.shape[1])]
        return picked
    for axis in (1, 2):
        starts = _starts(values.shape[axis])
        lengths = np.diff([*starts, values.shape[axis]])
        with np.errstate(invalid="ignore", over="ignore"):
            sums = np.add.reduceat(values, starts, axis=axis)
        values = sums / lengths.reshape((1, -1, 1) if axis == 1 else (1, 1, -1))
    return values


def _starts(size: int) -> Array:
    """Return the starts of the blocks along a side of an image."""
    count = min(size, MOST_ON_SIDE)
    starts: Array = np.unique(np.linspace(0, size, count, endpoint=False).astype(np.int64))
    return starts
