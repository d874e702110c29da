"""Points from the user's table: a csv, npy or HDF5 file, such as another sweep file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from farm.call import Array
from farm.sweep.design.errors import SweepError


class PointTable(NamedTuple):
    """A table of numbers. rows: shape (points, columns); names: of the columns, None if unnamed."""

    names: tuple[str, ...] | None
    rows: Array


def read_table(source: str) -> PointTable:
    """Read a table: `points.csv`, `points.npy`, `points.h5` or `points.h5:/group/dataset`.

    csv: a first line that is not numbers has the names. npy: two axes, or named fields. h5: the
    theta of a sweep file, or the named dataset. Raises SweepError.
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
    except (OSError, KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise SweepError(f"table {source!r} cannot be read: {error}") from error
    return _checked(source, table)


def _checked(source: str, table: PointTable) -> PointTable:
    rows = np.asarray(table.rows, dtype=np.float64)
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or not rows.size:
        raise SweepError(f"table {source!r} has shape {rows.shape}, expected (points, parameters)")
    if not np.all(np.isfinite(rows)):
        row, column = (int(k) for k in np.argwhere(~np.isfinite(rows))[0])
        raise SweepError(f"table {source!r}: row {row}, column {column} is {rows[row, column]}")
    if table.names is not None and len(set(table.names)) < rows.shape[1]:
        raise SweepError(f"table {source!r}: expected {rows.shape[1]} different column names")
    return PointTable(table.names, rows)


def _read_csv(path: Path) -> PointTable:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line and not line[0].startswith("#")]
    if not lines:
        raise ValueError("it is empty")
    names = None if _are_numbers(lines[0]) else tuple(cell.strip() for cell in lines.pop(0))
    width = len(lines[0]) if lines else 0
    for number, line in enumerate(lines):
        if len(line) != width or not _are_numbers(line):
            raise ValueError(f"row {number} is {','.join(line)!r}, expected {width} numbers")
    return PointTable(names, np.array([[float(cell) for cell in line] for line in lines]))


def _read_npy(path: Path) -> PointTable:
    array = np.load(path, allow_pickle=False)
    if array.dtype.names:
        columns = [array[name] for name in array.dtype.names]
        return PointTable(array.dtype.names, np.stack(columns, axis=1))
    return PointTable(None, array)


def _read_hdf5(path: Path, dataset: str) -> PointTable:
    with h5py.File(path, "r", locking="best-effort") as file:
        if dataset:
            return PointTable(None, file[dataset][:])
        if "theta" not in file or "param" not in file:
            raise ValueError(f"not a sweep file; name a dataset: {path}:/group/dataset")
        return PointTable(tuple(name.decode() for name in file["param"][:]), file["theta"][:])


def _are_numbers(cells: Sequence[str]) -> bool:
    try:
        [float(cell) for cell in cells]
    except ValueError:
        return False
    return True
