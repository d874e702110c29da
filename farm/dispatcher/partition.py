"""Partitions a call of many rows into parts, and joins their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from farm.call import Array, Call, ModelInfo, Result
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    TimeLimitExceeded,
    WorkerLost,
)
from farm.model import as_declared
from farm.scheduler.actions import Outcome

OF_ROWS = (InvalidInput, InvalidOutput, ModelFailed, TimeLimitExceeded, WorkerLost)
"""Errors that concern some rows of a call and not necessarily the others."""


class Rows(Protocol):
    """The rows of one request, and the receiver of their outcomes.

    row_bytes: approximate size of one row. is_one_call: the rows count as one call in the
    statistics; otherwise each row is a call. are_callers: each row is a caller by itself unless its
    hints name a chain; otherwise all rows are one. rows_a_step: number of rows that take as long to
    prepare as a part made of views.
    """

    row_bytes: int
    is_one_call: bool
    are_callers: bool
    rows_a_step: int

    def __len__(self) -> int: ...

    def most_open(self) -> int:
        """Return how many rows may be in the scheduler now."""

    def part(self, first: int, most: int) -> Call:
        """Return a call for the rows from `first` on, at least one and at most `most` rows.

        Raises FarmError if row `first` is invalid.
        """

    def done(self, first: int, end: int, result: Result) -> None:
        """Receive the result of rows `first` to `end`. Raises FarmError if it is not usable."""

    def failed(self, first: int, end: int, error: FarmError) -> bool:
        """Receive the error of rows `first` to `end`; False cancels the other rows."""

    def finished(self) -> None:
        """Called when every row has its outcome."""

    def is_wanted(self, first: int, end: int) -> bool:
        """Return whether the outcome of one of these rows is still wanted."""


class WholeCall:
    """The rows of one call. Their results are joined into one; the first error fails the call."""

    is_one_call = True
    are_callers = False
    rows_a_step = 1 << 60  # a part is made of views

    def __init__(
        self, call: Call, info: ModelInfo | None, on_done: Callable[[Outcome], None]
    ) -> None:
        """info: the model's description if known; parts are then converted to its dtypes."""
        self._call = call
        self._info = info if info is not None and info.max_batch > 1 else None
        self._on_done = on_done
        self._outputs: tuple[Array, ...] = ()
        self._run_time_s = 0.0
        self._queue_time_s = 0.0
        self._batch_rows = 1
        self._copied = self._reused = False
        self._workers: set[str] = set()
        self.row_bytes = sum([array[:1].nbytes for array in call.inputs])

    def __len__(self) -> int:
        return self._call.rows or 1

    def most_open(self) -> int:
        """Return the number of all rows: they may be open together."""
        return len(self)

    def part(self, first: int, most: int) -> Call:
        """Return a call with views of the whole call's arrays."""
        call = self._call
        end = min(first + most, len(self))
        inputs = tuple([array[first:end] for array in call.inputs])
        part = Call(call.model, call.operation, inputs, call.config, rows=end - first)
        return part if self._info is None else as_declared(part, self._info)

    def done(self, first: int, end: int, result: Result) -> None:
        """Copy the rows to their place in the outputs.

        Raises InvalidOutput if outputs of varying size differ in shape and so fit in no array.
        """
        if not self._workers:
            self._outputs = self._allocated(result)
        for number, (whole, part) in enumerate(zip(self._outputs, result.outputs, strict=True)):
            if whole.shape[1:] != part.shape[1:]:
                raise _unlike(number, whole, part)
            whole[first:end] = part
        self._run_time_s += result.run_time_s
        self._queue_time_s = max(self._queue_time_s, result.queue_time_s)
        self._batch_rows = max(self._batch_rows, result.batch_rows)
        self._copied |= result.copied
        self._reused |= result.reused
        self._workers.add(result.worker)

    def _allocated(self, result: Result) -> tuple[Array, ...]:
        try:
            return tuple([np.empty((len(self), *a.shape[1:]), a.dtype) for a in result.outputs])
        except (MemoryError, ValueError):
            row_bytes = sum([array[:1].nbytes for array in result.outputs])
            raise InvalidOutput(
                f"the answer has {len(self)} rows of {row_bytes} bytes, "
                "more than this machine can hold; send fewer rows per call"
            ) from None

    def failed(self, first: int, end: int, error: FarmError) -> bool:
        """Answer the call with the error; an error that concerns single rows names them."""
        if isinstance(error, OF_ROWS):
            where = f"row {first}" if end == first + 1 else f"rows {first} to {end - 1}"
            error = type(error)(f"{where}: {error.message}", detail=error.detail)
        self._on_done(error)
        return False

    def is_wanted(self, first: int, end: int) -> bool:
        """Return that all rows are wanted: they are cancelled together."""
        return True

    def finished(self) -> None:
        """Answer the call with the joined result.

        run_time_s: total seconds in the model; queue_time_s: longest queue time of a part.
        """
        workers = self._workers
        result = Result(
            self._outputs,
            run_time_s=self._run_time_s,
            worker=next(iter(workers)) if len(workers) == 1 else f"{len(workers)} workers",
            queue_time_s=self._queue_time_s,
            batch_rows=self._batch_rows,
            copied=self._copied,
            reused=self._reused,
        )
        self._on_done(result)


def _unlike(number: int, whole: Array, part: Array) -> InvalidOutput:
    found = sorted([whole.shape[1:], part.shape[1:]])
    shapes = " and ".join(str(list(shape)) for shape in found)
    return InvalidOutput(
        f"output {number} has rows of the shapes {shapes}, which do not form an array; "
        "send these rows in separate calls"
    )
