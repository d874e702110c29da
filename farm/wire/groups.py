"""Groups of calls, and of answers, as the rows of one call or of one result.

A group has one array for each input or output with an entry for each call. A front door that passes
it on as it is pays for the group, not for each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from farm.call import Call, Result
from farm.wire.arrays import ArrayWriter, arrays_of, calls_of, form_of, wrt_of
from farm.wire.runs import is_plain


@dataclass(frozen=True, slots=True, eq=False)
class CallGroup:
    """Calls that differ only in their numbers; iterating yields each with its id.

    call: all of them as one call with a row for each.
    """

    ids: list[int]
    call: Call

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[int, Call]]:
        call = self.call
        columns = [list(array) for array in call.inputs]
        calls = calls_of(call.model, call.operation, call.config, columns, ())
        return zip(self.ids, calls, strict=True)


def call_group(writer: ArrayWriter, run: Sequence[tuple[int, Call]]) -> list[Any]:
    """Return the row of a message for a run of similar calls: see `runs_of_calls`."""
    ids, calls = zip(*run, strict=True)
    first = calls[0]
    columns = [writer.put_column(c) for c in zip(*map(arrays_of, calls), strict=True)]
    return [ids, first.model, first.operation, columns, first.config, *(wrt_of(first) or ())]


def result_group(writer: ArrayWriter, run: Sequence[tuple[int, Result]]) -> list[Any]:
    """Return the row of a message for a run of similar results: see `runs_of_answers`."""
    ids, results = zip(*run, strict=True)
    columns = [writer.put_column(c) for c in zip(*[r.outputs for r in results], strict=True)]
    return [
        ids,
        columns,
        [r.run_time_s for r in results],
        [r.idle_s for r in results],
        results[0].worker,
        [r.queue_time_s for r in results],
        results[0].batch_rows,
    ]


def rows_group(writer: ArrayWriter, ids: Sequence[int], result: Result) -> list[Any]:
    """Return the row of a message for the rows of one result, each of which answers a call.

    It is read like one of `result_group`. The result must be `groupable`.
    """
    return [
        ids,
        [writer.put_rows(array) for array in result.outputs],
        _row_times_s(result, len(ids)),
        _idle_s(result, len(ids)),
        result.worker,
        _queue_times_s(result, len(ids)),
        result.batch_rows,
    ]


def groupable(result: Result) -> bool:
    """Whether the rows of a result can be sent as a group: if they are plain and small."""
    if not is_plain(result) or any(array.ndim < 2 for array in result.outputs):
        return False
    return form_of([array[0] for array in result.outputs]) is not None


def row_results(result: Result, count: int, *, has_axis: bool = False) -> list[Result]:
    """Return the results of each of the `count` rows of a result.

    has_axis: whether they have a batch axis, of length 1.
    """
    rows: list[Any] = [slice(row, row + 1) for row in range(count)] if has_axis else [*range(count)]
    return [
        Result(
            outputs,
            run_time_s,
            worker=result.worker,
            queue_time_s=queue_time_s,
            idle_s=idle_s,
            batch_rows=result.batch_rows,
            copied=result.copied,
            reused=result.reused,
        )
        for outputs, run_time_s, idle_s, queue_time_s in zip(
            [tuple([array[row, ...] for array in result.outputs]) for row in rows],
            _row_times_s(result, count),
            _idle_s(result, count),
            _queue_times_s(result, count),
            strict=True,
        )
    ]


def _row_times_s(result: Result, count: int) -> Sequence[float]:
    """Return the run time of each row: of the batch, or equal shares if there are no others."""
    if len(result.row_times_s) == count:
        return result.row_times_s
    if result.batch_rows > 1:
        return [result.run_time_s] * count
    return [result.run_time_s / count] * count


def _idle_s(result: Result, count: int) -> list[float]:
    return [result.idle_s] + [-1.0] * (count - 1)


def _queue_times_s(result: Result, count: int) -> list[float]:
    """Return how long each row waited: also for the rows before it in its run."""
    before = _row_times_s(result, count)[:-1]
    return list(accumulate(before, initial=result.queue_time_s))
