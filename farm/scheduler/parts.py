"""A call of many rows in parts that run side by side, and their answers put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from farm.call import Call, Result
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    TimeLimitExceeded,
    WorkerLost,
)
from farm.scheduler.actions import Outcome

OF_ROWS = (InvalidInput, InvalidOutput, ModelFailed, TimeLimitExceeded, WorkerLost)
"""Errors that some rows meet and others may not."""


def cut(call: Call, most: int) -> list[Call]:
    """The call's rows in their order, in parts of at most `most` rows and about equal size.

    The parts' arrays are views of the call's.
    """
    rows = call.rows or 1
    count = -(-rows // most)
    edges = [rows * k // count for k in range(count + 1)]
    return [
        replace(call, rows=end - start, inputs=tuple(array[start:end] for array in call.inputs))
        for start, end in pairwise(edges)
    ]


class Whole:
    """Waits for the outcomes of all parts, and tells one: theirs together, or the first error.

    rows: how many each part has, so that the error can say which rows it is about.
    """

    def __init__(self, rows: Sequence[int], on_done: Callable[[Outcome], None]) -> None:
        self._rows = rows
        self._results: list[Result | None] = [None] * len(rows)
        self._missing = len(rows)
        self._on_done = on_done

    def part(self, number: int) -> Callable[[Outcome], None]:
        """What is to be called with the outcome of one part."""
        return partial(self._done, number)

    def _done(self, number: int, outcome: Outcome) -> None:
        if not self._missing:
            return  # it has failed, and who asked has been told
        if isinstance(outcome, FarmError):
            self._missing = 0
            self._on_done(self._placed(outcome, number))
            return
        self._results[number] = outcome
        self._missing -= 1
        if not self._missing:
            try:
                outcome = joined([result for result in self._results if result is not None])
            except InvalidOutput as error:
                outcome = error
            self._on_done(outcome)

    def _placed(self, error: FarmError, number: int) -> FarmError:
        """The error of a part, with its rows where these are what is wrong."""
        if not isinstance(error, OF_ROWS):
            return error
        first = sum(self._rows[:number])
        last = first + self._rows[number] - 1
        where = f"row {first}" if first == last else f"rows {first} to {last}"
        return type(error)(f"{where}: {error.message}", detail=error.detail)


def joined(results: list[Result]) -> Result:
    """The answer to a call from those to its parts, in their order.

    Raises InvalidOutput where outputs whose sizes vary are not of one shape: no array holds them.

    run_time_s: seconds in the model, of all parts; queue_time_s: until the last part began.
    """
    columns = list(zip(*[result.outputs for result in results], strict=True))
    for number, column in enumerate(columns):
        shapes = {array.shape[1:] for array in column}
        if len(shapes) > 1:
            found = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
            raise InvalidOutput(
                f"output {number} has rows of the shapes {found}, which are no array; "
                "ask for these rows one by one"
            )
    workers = {result.worker for result in results}
    return Result(
        tuple(np.concatenate(column) for column in columns),
        run_time_s=sum(result.run_time_s for result in results),
        worker=workers.pop() if len(workers) == 1 else f"{len(workers)} workers",
        queue_time_s=max(result.queue_time_s for result in results),
        batch_rows=max(result.batch_rows for result in results),
    )
