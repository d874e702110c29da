"""A user's table of points: a csv, npy or HDF5 file, or a DataFrame of pandas or Polars.

Faults of a DataFrame are named by column and row label.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from farm.call import Array
from farm.expression import is_number, number
from farm.storage.hdf5 import HDF5_ERRORS, open_file
from farm.sweep.design.points import PointTable
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.grammar import parse_distribution
from farm.sweep.space.parameters import Category, is_plain_value
from farm.sweep.space.space import ParameterSpace
from farm.wording import worded


def read_table(source: str, *, gaps: bool = False) -> PointTable:
    """Read a table: `points.csv`, `points.npy`, `points.h5` or `points.h5:/group/dataset`.

    csv: a first line that is not numbers has the names; a column has numbers or words. npy: two
    axes, or named fields. h5: the theta of a sweep file, or the named dataset. gaps: whether cells
    may be empty. Raises SweepError.
    """
    path, _, dataset = source.partition(":")
    kind = Path(path).suffix.lower()
    readers = {".csv": _read_csv, ".npy": _read_npy}
    try:
        if kind in readers:
            table = readers[kind](Path(source))
        elif kind in (".h5", ".hdf5", ".nc"):
            table = _read_hdf5(Path(path), dataset)
        else:
            raise SweepError(f"table {source!r}: expected a file .csv, .npy or .h5")
    except HDF5_ERRORS as error:
        raise SweepError(f"table {source!r} cannot be read: {error}") from error
    return _checked(source, table, gaps=gaps)


def _checked(source: str, table: PointTable, *, gaps: bool) -> PointTable:
    rows = np.asarray(table.rows, dtype=np.float64)
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or not rows.size:
        raise SweepError(f"table {source!r} has shape {rows.shape}, expected (points, parameters)")
    bad = np.isinf(rows) | (np.isnan(rows) & (not gaps))
    if np.any(bad):
        row, column = (int(k) for k in np.argwhere(bad)[0])
        what = "empty or nan" if np.isnan(rows[row, column]) else rows[row, column]
        raise SweepError(
            f"table {source!r}: row {row}, column {column} is {what}; expected a value in each cell"
        )
    if table.names is not None and len(set(table.names)) < rows.shape[1]:
        raise SweepError(f"table {source!r}: expected {rows.shape[1]} different column names")
    return PointTable(table.names, rows, table.words)


def _read_csv(path: Path) -> PointTable:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line and not line[0].startswith("#")]
    if not lines:
        raise ValueError("it is empty")
    names = None if all(map(is_number, lines[0])) else tuple(cell.strip() for cell in lines.pop(0))
    width = len(lines[0]) if lines else 0
    for row, line in enumerate(lines):
        if len(line) != width:
            raise ValueError(f"row {row} is {','.join(line)!r}, expected {width} cells")
    found = [
        column_of([cell.strip() for cell in column], names[j] if names else str(j))
        for j, column in enumerate(zip(*lines, strict=True))
        if names is None or j < len(names)
    ]
    return _joined(names, found)


Values = tuple[Array, Category | None]
"""The numbers of a column, and its words if it has words."""


def column_of(cells: Sequence[str], name: str) -> Values:
    """Return a column of numbers, or of words by their index; an empty cell is NaN.

    Raises ValueError if it has both, as after a slip of the pen.
    """
    filled = [cell for cell in cells if cell]
    wordy = [cell for cell in filled if not is_number(cell)]
    if not wordy:
        return np.array([number(cell) if cell else np.nan for cell in cells]), None
    if len(wordy) < len(filled):
        row = next(k for k, cell in enumerate(cells) if cell == wordy[0])
        raise ValueError(
            f"column {name!r} has {wordy[0]!r} in row {row}, and numbers in other rows; expected "
            "only numbers or only words"
        )
    return _indexed([cell or None for cell in cells])


def _indexed(cells: Sequence[str | None]) -> Values:
    """Return words by their index, NaN for None."""
    category = Category(tuple(dict.fromkeys(str(cell) for cell in cells if cell is not None)))
    index = {word: k for k, word in enumerate(category.words)}
    return np.array([np.nan if c is None else index[c] for c in cells], dtype=float), category


def _joined(names: tuple[str, ...] | None, columns: Sequence[Values]) -> PointTable:
    rows = np.stack([values for values, _ in columns], axis=1) if columns else np.empty((0, 0))
    words = {j: category for j, (_, category) in enumerate(columns) if category is not None}
    return PointTable(names, rows, words)


def _read_npy(path: Path) -> PointTable:
    array = np.load(path, allow_pickle=False)
    if array.dtype.names:
        columns: list[Values] = []
        for name in array.dtype.names:
            column = array[name]
            if column.dtype.kind in "US":
                columns.append(column_of([str(cell).strip() for cell in column.astype(str)], name))
            else:
                columns.append((column.astype(np.float64), None))
        return _joined(array.dtype.names, columns)
    return PointTable(None, array)


def _read_hdf5(path: Path, dataset: str) -> PointTable:
    with open_file(path, "r") as file:
        if dataset:
            return PointTable(None, file[dataset][:])
        if "theta" not in file or "param" not in file:
            raise ValueError(f"not a sweep file; name a dataset: {path}:/group/dataset")
        names = tuple(name.decode() for name in file["param"][:])
        return PointTable(names, file["theta"][:], _words_of(file))


def _words_of(file: h5py.File) -> dict[int, Category]:
    """Return the words of the columns of a sweep file."""
    plan = json.loads(file["provenance"].attrs.get("plan", "{}"))
    spreads = [spread for _, spread, *_ in plan.get("parameters", ())]
    known = {j: parse_distribution(s) for j, s in enumerate(spreads) if s is not None}
    return {j: spread for j, spread in known.items() if isinstance(spread, Category)}


def rows_of(table: PointTable, space: ParameterSpace, source: str) -> tuple[Array, Array]:
    """Return the rows that satisfy the constraints, and the mask of these rows.

    The columns of the table are those of the space. Values of inactive parameters are NaN in the
    result. source: the table, for messages. Raises SweepError for an empty cell of an active one.
    """
    if space.correlations:
        raise SweepError(
            f"a table has its points as they are: {worded('--correlation', 'correlation')} is for "
            "designs with distributions"
        )
    theta = table.rows.astype(np.float64, copy=True)
    active = space.active(theta)
    gaps = np.argwhere(active & np.isnan(theta))
    if len(gaps):
        row, j = (int(k) for k in gaps[0])
        name = space.bound.parameters[j].name
        raise SweepError(
            f"table {source!r}: row {row} has no {name}; expected one in every row"
            + (" where its condition is true" if name in dict(space.when) else "")
        )
    theta[~active] = np.nan
    kept = space.kept(theta)
    if not np.any(kept):
        raise SweepError(
            f"no row of table {source!r} satisfies {' and '.join(space.where)}; nothing to evaluate"
        )
    return theta[kept], kept


def whole_columns(parameters: Sequence[BoundParameter], theta: Array) -> tuple[BoundParameter, ...]:
    """Return the columns, marked as whole where all their numbers are."""
    whole = np.all((theta == np.floor(theta)) | np.isnan(theta), axis=0)
    return tuple(replace(p, whole=bool(w)) for p, w in zip(parameters, whole, strict=True))


DATA_FRAME = "DataFrame"
"""The name of a table that is no file."""

LARGEST_WHOLE = 2**53
"""Whole numbers up to here are exact in float64, in which a sweep file holds parameters."""

MISSING = ("NAType", "NaTType", "NoneType")
"""Types of entries that have no value."""


def is_data_frame(value: Any) -> bool:
    """Whether a value is a table with named columns, such as a DataFrame of pandas or Polars."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def read_data_frame(frame: Any, *, gaps: bool = False) -> PointTable:
    """Return a DataFrame as a table. A column has finite numbers, or words.

    gaps: whether entries may be missing. Raises SweepError for other columns.
    """
    names = tuple(map(str, frame.columns))
    if not names:
        raise SweepError("the DataFrame has no columns; expected one for each parameter")
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise SweepError(
            f"the DataFrame has several columns {twice[0]!r}; expected one for each parameter"
        )
    if not len(frame):
        raise SweepError(
            f"the DataFrame has no rows, only the columns {', '.join(names)}; "
            "expected a row for each point"
        )
    columns: list[Values] = []
    for name in frame.columns:
        values, category = _words(frame, name) or (_numbers(frame, name, gaps=gaps), None)
        columns.append((values, category))
        if category is not None and not gaps and np.any(np.isnan(values)):
            row = int(np.flatnonzero(np.isnan(values))[0])
            raise _fault(name, f"has nothing in row {_label(frame, row)}", "expected a text")
    return _joined(names, columns)


def _words(frame: Any, name: Any) -> Values | None:
    """Return a column of words by their index, NaN for missing ones; None for other columns.

    Texts that are all numbers do not count: they were read without their type.
    """
    entries = [None if _is_missing(v) else v for v in np.asarray(frame[name], dtype=object)]
    texts = [entry for entry in entries if entry is not None]
    if not all(isinstance(text, str) for text in texts) or all(map(is_plain_value, texts)):
        return None
    try:
        return _indexed(entries)
    except SweepError as error:
        raise _fault(name, f"has no words: {error}", "expected texts that can be printed") from None


def _is_missing(value: Any) -> bool:
    return type(value).__name__ in MISSING or (isinstance(value, float) and value != value)


def _numbers(frame: Any, name: Any, *, gaps: bool) -> Array:
    """Return a column as finite numbers. Raises SweepError for the first entry that is not one."""
    column = frame[name]
    values = np.asarray(column)
    kind = values.dtype.kind
    if kind in "mM":
        raise _fault(
            name,
            f"has {'dates' if kind == 'M' else 'durations'} ({column.dtype})",
            "expected numbers, such as the seconds since a start",
        )
    if kind == "c":
        raise _fault(
            name, "has complex numbers", "expected real ones; give real and imaginary part a column"
        )
    if kind not in "biuf":
        values = np.array([_entry(frame, name, k, value) for k, value in enumerate(values)])
    numbers: Array = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(np.isinf(numbers) if gaps else ~np.isfinite(numbers))
    if bad.size:
        row, more = int(bad[0]), f", as in {bad.size - 1} more" if bad.size > 1 else ""
        raise _fault(
            name,
            f"has {numbers[row]} in row {_label(frame, row)}{more}",
            "expected a finite number; leave such rows out, as frame.dropna() does for NaN",
        )
    if values.dtype.kind in "iu":
        large = np.flatnonzero((values > LARGEST_WHOLE) | (values < -LARGEST_WHOLE))
        if large.size:
            row = int(large[0])
            raise _fault(
                name,
                f"has {values[row]} in row {_label(frame, row)}",
                "whole numbers above 2**53 do not fit the file's float64",
            )
    return numbers


def _entry(frame: Any, name: Any, row: int, value: Any) -> Any:
    """Return an entry of a column of objects as a number; NaN if it has none."""
    if type(value).__name__ in MISSING:
        return np.nan
    if isinstance(value, Real | np.number | np.bool_):
        return value
    if isinstance(value, str):
        remedy = "or texts only, none of them a number"
        if is_plain_value(value):
            remedy = "turn the texts into numbers, as .astype(float) does in pandas"
    else:
        remedy = f"not {type(value).__name__}"
    raise _fault(name, f"has {value!r} in row {_label(frame, row)}", f"expected numbers; {remedy}")


def _fault(name: Any, problem: str, remedy: str) -> SweepError:
    return SweepError(f"column {str(name)!r} of the DataFrame {problem}; {remedy}")


def _label(frame: Any, row: int) -> str:
    """Return the label of a row in the index of a pandas.DataFrame, otherwise its number."""
    if not hasattr(frame, "index"):
        return str(row)
    label = frame.index[row]
    if isinstance(label, tuple):  # of an index with several levels
        return f"({', '.join(map(_shown, label))})"
    return _shown(label)


def _shown(label: Any) -> str:
    return repr(label) if isinstance(label, str) else str(label)
