"""Points from a DataFrame of pandas or Polars, whose faults are named by column and row label."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.design.tables import PointTable
from farm.sweep.errors import SweepError
from farm.sweep.space.category import Category, is_plain_value

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
    columns, words = [], {}
    for j, name in enumerate(frame.columns):
        found = _words(frame, name)
        if found is None:
            columns.append(_numbers(frame, name, gaps=gaps))
        else:
            values, words[j] = found
            columns.append(values)
            if not gaps and np.any(np.isnan(values)):
                row = int(np.flatnonzero(np.isnan(values))[0])
                raise _fault(name, f"has nothing in row {_label(frame, row)}", "expected a text")
    return PointTable(names, np.stack(columns, 1), words)


def _words(frame: Any, name: Any) -> tuple[Array, Category] | None:
    """Return a column of words by their index, NaN for missing ones; None for other columns.

    Texts that are all numbers do not count: they were read without their type.
    """
    entries = [None if _is_missing(v) else v for v in np.asarray(frame[name], dtype=object)]
    there = [entry for entry in entries if entry is not None]
    if not there or not all(isinstance(entry, str) for entry in there):
        return None
    if all(is_plain_value(entry) for entry in there):
        return None
    try:
        category = Category(tuple(dict.fromkeys(map(str, there))))
    except SweepError as error:
        raise _fault(name, f"has no words: {error}", "expected texts that can be printed") from None
    index = {word: k for k, word in enumerate(category.words)}
    return np.array([np.nan if e is None else index[e] for e in entries], dtype=float), category


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
