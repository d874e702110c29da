"""A call of many rows in parts that run side by side, and their answers put together again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from farm.call import Call, Result
from farm.errors import FarmError
from farm.scheduler.actions import Outcome


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
    """Waits for the outcomes of all parts, and tells one: theirs together, or the first error."""

    def __init__(self, count: int, on_done: Callable[[Outcome], None]) -> None:
        self._results: list[Result | None] = [None] * count
        self._missing = count
        self._on_done = on_done

    def part(self, number: int) -> Callable[[Outcome], None]:
        """What is to be called with the outcome of one part."""
        return partial(self._done, number)

    def _done(self, number: int, outcome: Outcome) -> None:
        if not self._missing:
            return  # it has failed, and who asked has been told
        if isinstance(outcome, FarmError):
            self._missing = 0
            self._on_done(outcome)
            return
        self._results[number] = outcome
        self._missing -= 1
        if not self._missing:
            self._on_done(joined([result for result in self._results if result is not None]))


def joined(results: list[Result]) -> Result:
    """The answer to a call from those to its parts, in their order.

    run_time_s: seconds in the model, of all parts; queue_time_s: until the last part began.
    """
    columns = zip(*[result.outputs for result in results], strict=True)
    workers = {result.worker for result in results}
    return Result(
        tuple(np.concatenate(column) for column in columns),
        run_time_s=sum(result.run_time_s for result in results),
        worker=workers.pop() if len(workers) == 1 else f"{len(workers)} workers",
        queue_time_s=max(result.queue_time_s for result in results),
        batch_rows=max(result.batch_rows for result in results),
    )
