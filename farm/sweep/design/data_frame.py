"""Points from a DataFrame of pandas or Polars, whose faults are named by column and row label."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.design.errors import SweepError
from farm.sweep.design.tables import PointTable

DATA_FRAME = "DataFrame"
"""The name of a table that is no file."""

LARGEST_WHOLE = 2**53
"""Whole numbers up to here are exact in float64, in which a sweep file holds parameters."""

MISSING = ("NAType", "NaTType", "NoneType")
"""Types of entries that have no value."""


def is_data_frame(value: Any) -> bool:
    """Whether a value is a table with named columns, such as a DataFrame of pandas or Polars."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def read_data_frame(frame: Any) -> PointTable:
    """Return a DataFrame as a table. Raises SweepError if it is not one of finite numbers."""
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
    columns = [_numbers(frame, name) for name in frame.columns]
    return PointTable(names, np.stack(columns, 1))


def _numbers(frame: Any, name: Any) -> Array:
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
    bad = np.flatnonzero(~np.isfinite(numbers))
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
        remedy = "give each text a number, as .astype('category').cat.codes does in pandas"
        try:
            float(value)
            remedy = "turn the texts into numbers, as .astype(float) does in pandas"
        except ValueError:
            pass
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
