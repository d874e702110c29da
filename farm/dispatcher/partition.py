"""Partitions a call of many rows into parts of a fitting size, and joins their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from farm.call import RUN_BYTES, RUN_S, Array, Call, ModelInfo, Operation, Result, numpy_dtype
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
from farm.scheduler.queues import Queue
from farm.scheduler.run_times import RunTimes

OF_ROWS = (InvalidInput, InvalidOutput, ModelFailed, TimeLimitExceeded, WorkerLost)
"""Errors that concern some rows of a call and not necessarily the others."""


class Rows(Protocol):
    """The rows of one request, and the receiver of their outcomes.

    config: of all rows. row_bytes: approximate size of one row. is_one_call: the rows count as one
    call in the statistics; otherwise each row is a call. are_callers: each row is a caller by
    itself unless its hints name a chain; otherwise all rows are one. rows_a_step: number of rows
    that take as long to prepare as a part made of views.
    """

    config: str
    row_bytes: int
    is_one_call: bool = False
    are_callers: bool = False
    rows_a_step: int = 1 << 60

    def __len__(self) -> int: ...

    def most_open(self) -> int:
        """Return how many rows may be in the scheduler now; usually all of them."""
        return len(self)

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
        """Whether the outcome of one of these rows is still wanted; usually that of each."""
        return True


class WholeCall(Rows):
    """The rows of one call. Their results are joined into one; the first error fails the call."""

    is_one_call = True

    def __init__(
        self, call: Call, info: ModelInfo | None, on_done: Callable[[Outcome], None]
    ) -> None:
        """info: the model's description if known; parts are then converted to its dtypes.

        A call without rows needs it: its outputs have no rows, and 0 for sizes that vary.
        """
        self.config = call.config
        self._call = call
        self._info = info if info is not None and info.max_batch > 1 else None
        self._on_done = on_done
        self._outputs: tuple[Array, ...] = ()
        if info is not None and not len(self):
            shapes = [(0, *(max(0, size) for size in each.shape)) for each in info.outputs]
            dtypes = [numpy_dtype(each.dtype) for each in info.outputs]
            self._outputs = tuple(map(np.empty, shapes, dtypes))
        self._joined = Result(())
        self._workers: set[str] = set()
        self.row_bytes = sum([array[:1].nbytes for array in call.inputs])

    def __len__(self) -> int:
        return 1 if self._call.rows is None else self._call.rows

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
                found = sorted([whole.shape[1:], part.shape[1:]])
                shapes = " and ".join(str(list(shape)) for shape in found)
                raise InvalidOutput(
                    f"output {number} has rows of the shapes {shapes}, which do not form an array; "
                    "send these rows in separate calls"
                )
            whole[first:end] = part
        so_far = self._joined
        self._joined = Result(
            (),
            run_time_s=so_far.run_time_s + result.run_time_s,
            queue_time_s=max(so_far.queue_time_s, result.queue_time_s),
            batch_rows=max(so_far.batch_rows, result.batch_rows),
            copied=so_far.copied or result.copied,
            reused=so_far.reused or result.reused,
        )
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
        self._on_done(of_rows(error, first, end))
        return False

    def finished(self) -> None:
        """Answer the call with the joined result.

        run_time_s: total seconds in the model; queue_time_s: longest queue time of a part.
        """
        workers = self._workers
        worker = f"{len(workers)} workers" if len(workers) > 1 else "".join(workers)
        self._on_done(replace(self._joined, outputs=self._outputs, worker=worker))


def of_rows(error: FarmError, first: int, end: int) -> FarmError:
    """Return an error of these rows, which names them if it concerns them and not the others."""
    if not isinstance(error, OF_ROWS):
        return error
    where = f"row {first}" if end == first + 1 else f"rows {first} to {end - 1}"
    return type(error)(f"{where}: {error.message}", detail=error.detail)


RUNS_A_WORKER = 4
"""Least number of runs of a call per worker, so that all workers finish at about the same time."""

QUICK_RUN_S = 1e-4
"""Rows that take no longer than this together run on one worker, even if others are idle: to
schedule and send another run takes about as long."""

MOST_ALIVE = 4096
"""Most parts of one call in the scheduler at once, in addition to two for each slot."""


def part_rows(queue: Queue, times: RunTimes, rows: int, left: int, row_bytes: int) -> int:
    """Return how many of the next `left` rows of a call of `rows` rows become one task of `queue`.

    times: of the call's kind. For a model with batches: at most a batch, in parts of about equal
    size. For one without: a run of rows that takes about `RUN_S`, or one row while the run time is
    unknown.
    """
    if queue.max_batch > 1:
        return -(-left // -(-left // queue.max_batch))
    if not queue.repeatable or not times.count or queue.operation is not Operation.EVALUATE:
        return 1
    share = max(rows, queue.counts.to_come) // (RUNS_A_WORKER * max(1, queue.model.slots()))
    row_s = times.of_rows(1)
    share = max(share, int(QUICK_RUN_S / row_s))
    return max(1, min(left, share, int(RUN_S / row_s), RUN_BYTES // max(1, row_bytes)))


def most_alive(queue: Queue, times: RunTimes, rows: int) -> int:
    """Return how many parts of `rows` rows the workers can use, plus one per slot in reserve."""
    slots = max(1, queue.model.slots())
    if not times.count:
        lots = 2 * slots
    elif queue.max_batch == 1:
        lots = slots * (2 + times.prefetch_for(times.of_rows(rows)))
    else:
        lots = slots * (2 + times.prefetch) * max(1, queue.max_batch // rows)
    return min(lots, MOST_ALIVE + 2 * slots)


def some_rows(call: Call, rows: slice | Sequence[int]) -> Call:
    """Return a call for these rows."""
    inputs = tuple([array[rows] for array in call.inputs])
    return replace(call, inputs=inputs, rows=len(inputs[0]))


def check_answer(result: Result, count: int) -> None:
    """Raise InvalidOutput unless every output of a result has `count` rows."""
    for array in result.outputs:
        if array.ndim < 1 or len(array) != count:
            shape = list(array.shape)
            raise InvalidOutput(f"the worker's answer to {count} rows has the shape {shape}")


def stacked(found: Sequence[Result]) -> Result:
    """Return results of no batch axis as one result of as many rows."""
    columns = zip(*[result.outputs for result in found], strict=True)
    return replace(
        found[0],
        outputs=tuple([np.stack(column) for column in columns]),
        run_time_s=sum([result.run_time_s for result in found]),
    )
