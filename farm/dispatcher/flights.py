"""Tasks of many callers: their own, and others that wait for the evaluation of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from farm.call import Call, Hints, Result
from farm.dispatcher.partition import OF_ROWS
from farm.dispatcher.rows import with_rows
from farm.dispatcher.statistics import Counted, calls_of, fails_of
from farm.errors import FarmError, WorkerLost
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId

OnDone = Callable[[Outcome], None]


class InPlace(Counted):
    """A receiver of a task's outcome in place of a caller or a part, counted as that one is."""

    on_done: OnDone | None

    def calls(self, rows: int) -> int:
        """Return how many calls the task's rows count as."""
        return calls_of(self.on_done, rows)

    def fails(self, outcome: Outcome) -> int:
        """Return how many calls fail for good with this outcome."""
        return fails_of(self.on_done, outcome)


class Waiter(NamedTuple):
    """A call, or a part of one, that waits for rows of a task. since: when it was submitted."""

    rows: Sequence[int]
    on_done: OnDone
    call: Call
    hints: Hints
    since: float


class Flight(InPlace):
    """A task in the scheduler: its own caller, and the others that wait for rows of it."""

    def __init__(
        self,
        keys: Sequence[bytes],
        on_done: OnDone,
        priority: int,
        land: Callable[[Flight, Outcome], None],
        *,
        has_rows: bool,
    ) -> None:
        self.keys = keys
        self.on_done: OnDone | None = on_done
        self.priority = priority
        self.has_rows = has_rows
        self.joined: dict[TaskId, Waiter] = {}
        self.task: TaskId | None = None
        self._land = land

    def __call__(self, outcome: Outcome) -> None:
        self._land(self, outcome)

    def fails(self, outcome: Outcome) -> int:
        """Return how many calls fail for good with this outcome: those that waited for it too."""
        fails = fails_of(self.on_done, outcome)
        for waiter in self.joined.values():
            end = self.outcome_for(waiter, outcome)
            fails += 0 if end is None else fails_of(waiter.on_done, end)
        return fails

    @cached_property
    def places(self) -> Mapping[bytes, int]:
        """The row of each key."""
        return {key: row for row, key in enumerate(self.keys)}

    def outcome_for(self, waiter: Waiter, outcome: Outcome) -> Outcome | None:
        """Return a waiter's part of the task's outcome; None if it says nothing about its rows.

        As that of a run of rows it may end at the first row that failed, or that was not reached.
        """
        first = waiter.rows[0]
        if isinstance(outcome, FarmError):
            if len(self.keys) == 1 or not isinstance(outcome, OF_ROWS):
                return outcome
            if outcome.row != first or isinstance(outcome, WorkerLost):
                return None
            return _failed(waiter, outcome)
        done = outcome.rows_done(len(self.keys))
        if first >= done:
            is_next = first == done and outcome.failed is not None
            return _failed(waiter, outcome.failed) if is_next and outcome.failed else None
        rows = list(takewhile(lambda row: row < done, waiter.rows))
        stopped_at = waiter.rows[len(rows)] if len(rows) < len(waiter.rows) else -1
        if not self.has_rows:
            outputs = outcome.outputs
        elif waiter.call.rows is None:
            outputs = tuple([array[first, ...] for array in outcome.outputs])
        else:
            outputs = tuple([array[rows] for array in outcome.outputs])
        share = len(rows) / done if outcome.batch_rows == 1 else 1.0
        result = replace(
            outcome,
            outputs=outputs,
            run_time_s=outcome.run_time_s * share,
            failed=outcome.failed if stopped_at == done else None,
            reused=True,
            copied=False,
        )
        return with_rows(result) if waiter.call.rows is not None and not self.has_rows else result


def _failed(waiter: Waiter, error: FarmError) -> Outcome:
    return error if len(waiter.rows) == 1 else Result((), failed=error)


class SomeRows(InPlace):
    """The rows of a call that are not in memory, as a task; adds the others to its outcome.

    numbers: for each row of the call, its number among the rows of the task, or -1 if it is known.
    """

    def __init__(
        self, on_done: OnDone, numbers: Sequence[int], known: Sequence[Result | None]
    ) -> None:
        self.on_done: OnDone | None = on_done
        self._numbers = numbers
        self._known = known
        self._asked = max(numbers) + 1

    def __call__(self, outcome: Outcome) -> None:
        assert self.on_done is not None, "its caller never changes"
        if isinstance(outcome, FarmError):
            row = outcome.row
            if row is not None and 0 <= row < self._asked:
                outcome.row = self._numbers.index(row)
            self.on_done(outcome)
        else:
            self.on_done(self._whole(outcome))

    def _whole(self, result: Result) -> Result:
        """Return the result of the call's rows, up to the first one without an answer."""
        done = result.rows_done(self._asked)
        end = len(self._numbers) if done >= self._asked else self._numbers.index(done)
        known = self._known[:end]
        first = next((row.outputs for row in known if row is not None), result.outputs)
        outputs = tuple(
            np.stack(
                [
                    result.outputs[i][number, ...] if row is None else row.outputs[i]
                    for number, row in zip(self._numbers[:end], known, strict=True)
                ]
            )
            for i in range(len(first) if end else 0)
        )
        return replace(result, outputs=outputs, reused=end > done)


class Moved(InPlace):
    """The caller of a task that has an id of its own, because it waited for another task before."""

    def __init__(self, on_done: OnDone, end: Callable[[], object]) -> None:
        self.on_done: OnDone | None = on_done
        self._end = end

    def __call__(self, outcome: Outcome) -> None:
        self._end()
        assert self.on_done is not None, "its caller never changes"
        self.on_done(outcome)
