"""Summarises the inputs of a call in a short text, to help find the cause of its failure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from farm.call import EMPTY_CONFIG, Array, Call
from farm.errors import printable
from farm.monitoring.texts import cut

MOST_INPUTS = 8
SHOWN_WHOLE = 8
"""Values of an input that are all shown; of more, the first `AT_START` and the last `AT_END`."""

AT_START, AT_END = 5, 2

LONGEST_VALUE = 40
LONGEST_CONFIG = 100
LONGEST_SUMMARY = 500


def summary(call: Call, row: int | None, names: Sequence[str] = ()) -> str:
    """Return the inputs of a call in one line, such as `x = [1.0, 2.5]; config {"mesh": 2}`.

    row: of a call of rows, the one to show; None: the first. names: of the model's inputs, if it
    has some. The cost is bounded, however long the inputs are.
    """
    parts = []
    for number, array in enumerate(call.inputs[:MOST_INPUTS]):
        name = names[number] if number < len(names) else ""
        values = array if call.rows is None else array[row or 0, ...]
        parts.append(f"{name or f'input {number}'} = {_values(values)}")
    if len(call.inputs) > MOST_INPUTS:
        parts.append(f"and {len(call.inputs) - MOST_INPUTS} more inputs")
    if call.config != EMPTY_CONFIG:
        parts.append(f"config {cut(call.config, LONGEST_CONFIG)}")
    if call.rows is not None and call.rows > 1 and row is None:
        parts.append(f"the first of {call.rows} rows that ran together")
    return cut(printable("; ".join(parts)), LONGEST_SUMMARY)


def _values(values: Array) -> str:
    if values.ndim == 0:
        return _value(values[()])
    if values.size <= SHOWN_WHOLE:
        text = f"[{', '.join(map(_value, values.flat))}]"
        return text if values.ndim == 1 else f"{text} of shape {list(values.shape)}"
    first = ", ".join(_value(value) for value in islice(values.flat, AT_START))
    last = ", ".join(_value(values.flat[i]) for i in range(values.size - AT_END, values.size))
    size = f"{values.size} values" if values.ndim == 1 else f"of shape {list(values.shape)}"
    return f"[{first}, \u2026, {last}] ({size})"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        value = value[:LONGEST_VALUE]
    plain = value.item() if hasattr(value, "item") else value
    return cut(repr(plain), LONGEST_VALUE)
