"""Answers value_and_gradient for models that do not define it, by an evaluation and a gradient.

Both run side by side, on any workers. This is not for models that keep their point: their worker
evaluates and then differentiates within one task.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from farm.call import BOTH, Call, Hints, ModelInfo, Operation, Result, halves, joined
from farm.dispatcher.statistics import Counted, Statistics
from farm.errors import FarmError
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId

OnDone = Callable[[Outcome], None]
Start = Callable[[Call, Hints, OnDone, float], TaskId]


def runs_as(operation: Operation, info: ModelInfo) -> tuple[Operation, ...]:
    """Return the operations that a call of this operation runs as: itself, or two others."""
    split = operation is Operation.VALUE_AND_GRADIENT and not info.keeps_point
    if split and operation not in info.operations and info.operations >= BOTH:
        return Operation.EVALUATE, Operation.GRADIENT
    return (operation,)


class Half(Counted):
    """The evaluation or the gradient of a pair; it is called with its outcome."""

    __slots__ = ("_pair", "_place")

    def __init__(self, pair: Pair, place: int) -> None:
        self._pair = pair
        self._place = place

    def __call__(self, outcome: Outcome) -> None:
        self._pair.outcome(self._place, outcome)

    def calls(self, rows: int) -> int:
        """Return 0: a pair is counted as one call at its end."""
        return 0


class Pair:
    """One open call of value_and_gradient that runs as two tasks.

    It has no references to its halves: a cycle of the three would be freed too late.
    """

    __slots__ = ("_on_end", "_results", "id", "tasks")

    def __init__(self, pair_id: TaskId, on_end: Callable[[Pair, Outcome], None]) -> None:
        self.id = pair_id
        self.tasks: list[TaskId] = []
        self._results: list[Result | None] = [None, None]
        self._on_end = on_end

    def outcome(self, place: int, outcome: Outcome) -> None:
        """Receive the outcome of a half; the second result, or the first error, ends the pair."""
        if isinstance(outcome, FarmError):
            self._on_end(self, outcome)
            return
        self._results[place] = outcome
        value, gradient = self._results
        if value is not None and gradient is not None:
            self._on_end(self, joined(value, gradient))


class Pairs:
    """The open pairs of one dispatcher.

    start, cancel: start and cancel a task; start raises FarmError. new_id: returns a negative id,
    which no task has.
    """

    def __init__(
        self,
        start: Start,
        cancel: Callable[[TaskId], None],
        new_id: Callable[[], TaskId],
        statistics: Statistics,
    ) -> None:
        self._start = start
        self._cancel = cancel
        self._new_id = new_id
        self._statistics = statistics
        self._open: dict[TaskId, Pair] = {}

    def start(self, call: Call, hints: Hints, on_done: OnDone, now: float) -> TaskId:
        """Start both halves of a call and return the pair's id. Raises FarmError if one is refused.

        on_done: receives one outcome. now: time of the submission, from which deadlines count.
        """

        def ended(pair: Pair, outcome: Outcome) -> None:
            if self.cancel(pair.id):  # a half may still run after the other's error
                name, ended_at = hints.shown_as, time.monotonic()
                self._statistics.add_whole(call, outcome, name, now, ended_at, time.time())
                on_done(outcome)

        pair = Pair(self._new_id(), ended)
        if hints.chain is None:  # both halves are one caller
            hints = replace(hints, chain=f"pair {pair.id}")
        evaluation, gradient = halves(call)
        pair.tasks.append(self._start(evaluation, hints, Half(pair, 0), now))
        try:
            pair.tasks.append(self._start(gradient, hints, Half(pair, 1), now))
        except FarmError:
            self._cancel(pair.tasks[0])
            raise
        self._open[pair.id] = pair
        return pair.id

    def cancel(self, pair_id: TaskId) -> bool:
        """Cancel both halves, which then report nothing. False if no such pair is open."""
        pair = self._open.pop(pair_id, None)
        if pair is None:
            return False
        for task in pair.tasks:
            self._cancel(task)
        return True
