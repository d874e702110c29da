"""Answers calls from evaluations that a memory has kept, and joins calls that ask for the same.

A call whose evaluation is kept needs no worker. A call for the same as another that is in the
scheduler waits for that one's outcome. Of a call of many rows, only those rows go to the scheduler
that the memory does not have, each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from farm.call import Array, Call, CallerName, Hints, Result, WorkerInfo
from farm.dispatcher.feeder import Part
from farm.dispatcher.partition import OF_ROWS
from farm.dispatcher.value_and_gradient import Half
from farm.errors import FarmError, InvalidOutput, ModelFailed, TimeLimitExceeded
from farm.scheduler.actions import Outcome, Reply
from farm.scheduler.state import TaskId

OnDone = Callable[[Outcome], None]
Begin = Callable[[Call, Hints, OnDone, float, tuple[str, ...]], TaskId]
Count = Callable[[Call, int, int, CallerName | None], None]


MOST_JOINED = 1000
"""Most calls that wait for one evaluation; further ones are queued, where limits apply to them."""

_OF_BATCH = (InvalidOutput, ModelFailed, TimeLimitExceeded)
"""Errors of all rows of a batch; rows of a lost worker run again one by one instead."""


class Memory(Protocol):
    """Keeps finished evaluations. `reuses`: whether calls are answered from them."""

    reuses: bool

    def joined(self, info: WorkerInfo) -> None:
        """Report that a worker joined, with the versions of its models."""

    def left(self, worker: str) -> None:
        """Report that a worker left."""

    def keep(self, replies: Iterable[Reply]) -> None:
        """Keep the evaluations that these replies answer; called before any of them is sent."""

    def keys(self, call: Call) -> Sequence[bytes] | None:
        """Return the key of each row of a call; None if it must not be answered from memory."""

    def find(self, key: bytes) -> Result | None:
        """Return the kept evaluation of a key, without a batch axis."""


class Counted:
    """A receiver of a task's outcome in place of a caller or a part, counted as that one is."""

    on_done: OnDone | None

    def calls(self, rows: int) -> int:
        """Return how many calls the task's rows count as."""
        return calls_of(self.on_done, rows)


def calls_of(on_done: OnDone | None, rows: int) -> int:
    """Return how many calls a task of `rows` rows counts as; 0 if its call is counted later."""
    return on_done.calls(rows) if isinstance(on_done, Part | Counted | Half) else 1


class _Evaluation(Counted):
    """One evaluation in the scheduler: its own caller, and the others that wait for it."""

    def __init__(self, key: bytes, on_done: OnDone, hints: Hints, *, has_rows: bool) -> None:
        self.key = key
        self.on_done: OnDone | None = on_done
        self.priority = hints.priority
        self.has_rows = has_rows
        self.joined: dict[TaskId, tuple[OnDone, Call, CallerName | None]] = {}
        self.task: TaskId | None = None
        self.end: Callable[[_Evaluation, Outcome], None]

    def may_be_joined(self, hints: Hints) -> bool:
        """Whether a call with these hints may wait for this evaluation."""
        return hints.priority <= self.priority and len(self.joined) < MOST_JOINED

    def __call__(self, outcome: Outcome) -> None:
        self.end(self, outcome)


class _SomeRows(Counted):
    """The rows of a call that are not in memory, as a task; adds the others to its outcome.

    numbers: for each row of the call, its number among the rows of the task, or -1 if it is known.
    is_cut: the task ends before the call does, whose other rows are unaffected by its error.
    """

    def __init__(
        self,
        on_done: OnDone,
        numbers: Sequence[int],
        known: Sequence[Result | None],
        *,
        is_cut: bool,
    ) -> None:
        self.on_done: OnDone | None = on_done
        self._numbers = numbers
        self._known = known
        self._is_cut = is_cut
        self._asked = max(numbers) + 1

    def __call__(self, outcome: Outcome) -> None:
        assert self.on_done is not None, "its caller never changes"
        if isinstance(outcome, FarmError):
            row = outcome.row
            if row is not None and 0 <= row < self._asked:
                outcome.row = self._numbers.index(row)
            elif self._is_cut and isinstance(outcome, OF_ROWS if self._asked == 1 else _OF_BATCH):
                outcome = Result((), failed=outcome)
        self.on_done(outcome if isinstance(outcome, FarmError) else self._whole(outcome))

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


class Reuse:
    """The calls of one dispatcher that are answered without a worker, and those that wait.

    begin, drop: submit a call to the scheduler, and cancel it there. new_id: returns ids that no
    task has. soon: schedules a call of `answer`. count: counts the calls, and the rows, that are
    answered without a run of their own, for the chain with these names.
    """

    def __init__(
        self,
        memory: Memory,
        begin: Begin,
        drop: Callable[[TaskId], object],
        new_id: Callable[[], TaskId],
        soon: Callable[[], None],
        count: Count,
    ) -> None:
        self._memory = memory
        self._begin = begin
        self._drop = drop
        self._new_id = new_id
        self._soon = soon
        self._count = count
        self._flights: dict[bytes, _Evaluation] = {}
        self._of_task: dict[TaskId, _Evaluation] = {}
        self._waiting: dict[TaskId, _Evaluation] = {}
        self._answers: dict[TaskId, tuple[OnDone, Call, Result, CallerName | None]] = {}

    def start(
        self, call: Call, hints: Hints, on_done: OnDone, now: float, lost_on: tuple[str, ...]
    ) -> TaskId:
        """Answer a call from memory, or join it to another, or submit it; return its id.

        Raises FarmError if the scheduler does not accept it.
        """
        keys = None if lost_on else self._memory.keys(call)
        if keys is None:
            return self._begin(call, hints, on_done, now, lost_on)
        if len(keys) > 1:
            return self._start_rows(call, keys, hints, on_done, now)
        (key,) = keys
        has_rows = call.rows is not None
        found = self._memory.find(key)
        if found is not None:
            result = _with_rows(found) if has_rows else found
            return self._answer_soon(on_done, call, result, hints.shown_as)
        # The end of a call with a time limit of its own says nothing about the others.
        is_limited = hints.deadline_s is not None or hints.start_within_s is not None
        flight = self._flights.get(key)
        if is_limited or (flight is not None and not flight.may_be_joined(hints)):
            return self._begin(call, hints, on_done, now, ())
        if flight is not None:
            joined = self._new_id()
            flight.joined[joined] = on_done, call, hints.shown_as
            self._waiting[joined] = flight
            return joined
        flight = _Evaluation(key, on_done, hints, has_rows=has_rows)
        flight.end = self._landed
        flight.task = self._begin(call, hints, flight, now, ())
        self._flights[key] = self._of_task[flight.task] = flight
        return flight.task

    def _start_rows(
        self, call: Call, keys: Sequence[bytes], hints: Hints, on_done: OnDone, now: float
    ) -> TaskId:
        known = [self._memory.find(key) for key in keys]
        whole = len(keys)
        if isinstance(on_done, Part) and not on_done.parts.is_one_call:
            # Each row is a call of its own, known or not: answer rows up to the first of the other
            # kind. The caller of a part sends the rest again.
            first = known[0] is not None
            end = next((i for i, row in enumerate(known) if (row is not None) != first), len(keys))
            keys, known = keys[:end], known[:end]
        numbers, rows = _numbered(keys, known)
        if not rows:
            found = [result for result in known if result is not None]
            return self._answer_soon(on_done, call, _stacked(found), hints.shown_as)
        if len(rows) < whole:
            self._count(call, 0, len(keys) - len(rows), None)
            on_done = _SomeRows(on_done, numbers, known, is_cut=len(keys) < whole)
            call = replace(call, inputs=tuple([a[rows] for a in call.inputs]), rows=len(rows))
        return self._begin(call, hints, on_done, now, ())

    def _answer_soon(
        self, on_done: OnDone, call: Call, result: Result, name: CallerName | None
    ) -> TaskId:
        answered = self._new_id()
        self._answers[answered] = on_done, call, result, name
        self._soon()
        return answered

    def answer(self) -> None:
        """Answer the calls whose evaluations were found since the last time."""
        while self._answers:
            on_done, call, result, name = self._answers.pop(next(iter(self._answers)))
            rows = result.rows_done(call.rows or 1)
            self._count(call, calls_of(on_done, rows), rows, name)
            on_done(result)

    def _landed(self, flight: _Evaluation, outcome: Outcome) -> None:
        """Report the outcome of an evaluation to its own caller and to all that joined it."""
        del self._flights[flight.key]
        if flight.task is not None:
            self._of_task.pop(flight.task, None)
        if flight.on_done is not None:
            flight.on_done(outcome)
        if isinstance(outcome, Result) and outcome.failed is not None:
            outcome = outcome.failed
        for joined, (on_done, call, name) in flight.joined.items():
            del self._waiting[joined]
            if isinstance(outcome, FarmError):
                on_done(outcome)
                continue
            result = outcome
            if flight.has_rows and call.rows is None:
                result = replace(result, outputs=tuple([a[0, ...] for a in result.outputs]))
            elif call.rows is not None and not flight.has_rows:
                result = _with_rows(result)
            self._count(call, calls_of(on_done, 1), 1, name)
            on_done(replace(result, reused=True, copied=False))

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call; False: its task, if it has one, must be cancelled in the scheduler.

        A task that others wait for goes on without its own caller.
        """
        if self._answers.pop(task_id, None) is not None:
            return True
        flight = self._waiting.pop(task_id, None)
        if flight is not None:
            del flight.joined[task_id]
            if flight.on_done is None and not flight.joined and flight.task is not None:
                self._forget(flight)
                self._drop(flight.task)
            return True
        flight = self._of_task.get(task_id)
        if flight is None:
            return False
        if flight.joined:
            flight.on_done = None
            return True
        self._forget(flight)
        return False

    def _forget(self, flight: _Evaluation) -> None:
        """Let later calls for the same evaluation start one of their own."""
        del self._flights[flight.key]
        if flight.task is not None:
            del self._of_task[flight.task]

    def __len__(self) -> int:
        return len(self._answers)


def _numbered(keys: Sequence[bytes], known: Sequence[Result | None]) -> tuple[list[int], list[int]]:
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


def _with_rows(result: Result) -> Result:
    return replace(result, outputs=tuple([_row(array) for array in result.outputs]))


def _row(array: Array) -> Array:
    return array[np.newaxis]


def _stacked(found: Sequence[Result]) -> Result:
    columns = zip(*[result.outputs for result in found], strict=True)
    return replace(
        found[0],
        outputs=tuple([np.stack(column) for column in columns]),
        run_time_s=sum([result.run_time_s for result in found]),
    )
