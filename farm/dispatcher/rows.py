"""The rows of calls and results: taken out, numbered and put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from farm.call import Array, Call, Result
from farm.errors import InvalidOutput


def some_rows(call: Call, rows: slice | Sequence[int]) -> Call:
    """Return a call for these rows."""
    inputs = tuple([array[rows] for array in call.inputs])
    return replace(call, inputs=inputs, rows=len(inputs[0]))


def numbered(keys: Sequence[bytes], known: Sequence[Result | None]) -> tuple[list[int], list[int]]:
    """Return each row's number among the unknown ones, and the position of each of those.

    Equal rows share a number; known ones have -1.
    """
    positions: dict[bytes, int] = {}
    rows: list[int] = []
    numbers: list[int] = []
    for row, (key, found) in enumerate(zip(keys, known, strict=True)):
        if found is not None:
            numbers.append(-1)
            continue
        if key not in positions:
            positions[key] = len(rows)
            rows.append(row)
        numbers.append(positions[key])
    return numbers, rows


def check_answer(result: Result, count: int) -> None:
    """Raise InvalidOutput unless every output of a result has `count` rows."""
    for array in result.outputs:
        if array.ndim < 1 or len(array) != count:
            shape = list(array.shape)
            raise InvalidOutput(f"the worker's answer to {count} rows has the shape {shape}")


def with_rows(result: Result) -> Result:
    """Return a result of no batch axis as that of one row."""
    outputs: list[Array] = [array[np.newaxis] for array in result.outputs]
    return replace(result, outputs=tuple(outputs))


def stacked(found: Sequence[Result]) -> Result:
    """Return results of no batch axis as one result of as many rows."""
    columns = zip(*[result.outputs for result in found], strict=True)
    return replace(
        found[0],
        outputs=tuple([np.stack(column) for column in columns]),
        run_time_s=sum([result.run_time_s for result in found]),
    )
