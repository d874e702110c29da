"""Points from the user's table, such as a csv, npy or HDF5 file, and its rows in a space."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from farm.call import Array
from farm.expression import is_number, number
from farm.storage.hdf5 import HDF5_ERRORS, open_file
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.category import Category
from farm.sweep.space.grammar import parse_distribution
from farm.sweep.space.space import ParameterSpace
from farm.wording import worded

NO_WORDS: Mapping[int, Category] = {}


class PointTable(NamedTuple):
    """A table of points. rows: shape (points, columns), a word by its index, NaN for an empty cell.

    names: of the columns, None if unnamed. words: those of each column that has words.
    """

    names: tuple[str, ...] | None
    rows: Array
    words: Mapping[int, Category] = NO_WORDS


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
    category = Category(tuple(dict.fromkeys(filled)))
    index = {word: k for k, word in enumerate(category.words)}
    return np.array([index[cell] if cell else np.nan for cell in cells]), category


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
