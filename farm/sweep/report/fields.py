"""The outputs with several entries in a report: curves with quantile bands, and images."""

from __future__ import annotations

import warnings
from typing import Any

import h5py
import numpy as np

from farm.call import Array, TensorInfo
from farm.report.interactive import packed
from farm.sweep.design.plan import Column
from farm.sweep.report.columns import read_rows, some_of

MOST_FIELDS = 6
"""Most fields in a report."""

MOST_NUMBERS = 160_000
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
    rows = np.empty((len(places), *_reduced_shape(shape)))
    for part, values in read_rows(file, column, points[places]):
        rows[part] = _reduced(values.reshape(-1, *shape))
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
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # entries that are NaN at every point
        if len(shape) == 1:
            picked = _picked(shape[0])
            bands = np.nanquantile(finite, QUANTILES, axis=0) if len(places) else None
            return field | {
                "entries": packed(picked, "i4"),
                "bands": packed(np.full((5, size), np.nan) if bands is None else bands),
            }
        empty = np.full(rows.shape[1:], np.nan)
        return field | {
            "mean": packed(np.nanmean(finite, axis=0) if len(places) else empty),
            "sd": packed(np.nanstd(finite, axis=0) if len(places) else empty),
        }


def _picked(size: int) -> Array:
    """Return the entries of a curve that are shown: both ends, and evenly between them."""
    picked: Array = np.unique(np.linspace(0, size - 1, min(size, MOST_ON_CURVE)).astype(np.int64))
    return picked


def _reduced_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 1:
        return (len(_picked(shape[0])),)
    return tuple(len(_starts(size)) for size in shape)


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
