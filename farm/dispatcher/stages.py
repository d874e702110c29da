"""The stages of a call, put together, with the outermost and the innermost; see `stage.py`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sized
from dataclasses import replace
from functools import partial
from typing import Any

from farm.call import BOTH, EMPTY_CONFIG, Call, Hints, ModelInfo, Operation, Result, halves, joined
from farm.dispatcher.feeder import Feeder, Part
from farm.dispatcher.first_worker import Expectation, FirstWorker
from farm.dispatcher.gathering import Gathered
from farm.dispatcher.partition import Rows
from farm.dispatcher.reuse import Memory, Reusing
from farm.dispatcher.stage import CallStage, OnDone, StageContext, tell
from farm.errors import Cancelled, FarmError, InvalidInput, Overloaded, Unavailable
from farm.model import as_declared, check_call
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId

AT_ONCE = 256
"""Calls that are cancelled in one iteration of the event loop, so that others get their turn."""


class Stages:
    """The outermost stage of one dispatcher, with all others inside, and what it offers to callers.

    It refuses calls of unknown models, with inputs that do not fit, or while the farm ends. For
    models with batches it converts inputs to the declared dtypes, so that calls form batches. It
    starts a call of more rows than a batch, or of no row at all, in parts.

    context: what the stages share. tasks: the innermost stage; feeder: the calls in parts.
    gathered: those that were joined and have no outcome. closed: whether all calls are refused.
    """

    def __init__(
        self,
        context: StageContext,
        memory: Memory | None,
        expected: Expectation | None = None,
        first_worker_s: float = math.inf,
    ) -> None:
        """expected, first_worker_s: as for the dispatcher.

        memory: keeps evaluations; None, or one that does not reuse them: no call has another's.

        Calls that may be answered by others are not gathered: each is looked up by itself.
        """
        self.closed = False
        self.context = context
        self._descriptions = context.descriptions
        self.tasks = Tasks(context, expected, first_worker_s)
        self.feeder = Feeder(context)
        if memory is not None and memory.reuses:
            self._waiting: Tasks | Reusing = Reusing(context, memory, self.feeder, self.tasks)
            self._pairs = Pairs(context, self._waiting)
            self._gathering: Gathered | None = None
            self.gathered: Sized = ()
            self._found: Sized = self._waiting.put_off  # calls that are answered next
            self._ends: tuple[Gathered | Feeder | Tasks, ...] = self.feeder, self.tasks
            context.turns.each_turn(self.feeder, self._waiting)
        else:
            self._waiting = self.tasks
            self._pairs = Pairs(context, self.tasks)
            self._gathering = Gathered(context, self.feeder, self.tasks.open, self.tasks)
            self.gathered = self._gathering.open
            self._found = ()
            self._ends = self._gathering, self.feeder, self.tasks
            context.turns.each_turn(self._gathering, self.feeder)

    def start_call(self, call: Call, hints: Hints, on_done: OnDone) -> TaskId:
        """Start a call without waiting; `on_done` receives its outcome later, exactly once.

        For a stream it receives every answer, each marked as having more to follow, and then the
        end. A call with more rows than the model's max_batch runs in parallel parts.
        Raises FarmError at once, and never calls `on_done`, if the call cannot be accepted: unknown
        model, full queue, or an input that does not fit a known description.
        """
        try:
            if self.closed or (served := self._descriptions.models.get(call.model)) is None:
                raise self._refusal(call.model)
            most = served.max_batch
            if call.operation is not Operation.DESCRIBE:
                usual, find = call.config == EMPTY_CONFIG, self._descriptions.find
                info = served if usual else find(call.model, call.config)
                if info is not None:
                    check_call(call, info)
                    if 1 < most >= (call.rows or 1):  # parts of a longer call follow one by one
                        call = as_declared(call, info)
            if hints.deadline_s is not None and math.isnan(hints.deadline_s):
                raise InvalidInput("the deadline is not a number of seconds")
            now, rows = time.monotonic(), call.rows
            is_long = rows is not None and (rows > most or not rows)
            if call.operation is Operation.VALUE_AND_GRADIENT:
                return self._pairs.start(call, hints, on_done, now)
            if is_long and call.operation is Operation.EVALUATE:
                return self.feeder.begin_call(call, hints, on_done, now, self._waiting)
            gathering = self._gathering
            # A lone caller pays nothing for the chance of company.
            if gathering is not None and (gathering.were_several or self.tasks.open):
                return gathering.start(call, hints, on_done, now)
            return self._waiting.start(call, hints, on_done, now)
        except (Overloaded, Unavailable) as error:
            if not self.closed:
                self.context.listeners.ended.refused(call, hints, error)
            raise

    def start_rows(self, rows: Rows, model: str, operation: Operation, hints: Hints) -> TaskId:
        """Start many rows, each of which has its own outcome, reported to `rows`.

        Raises FarmError at once if the first row cannot be accepted.
        """
        if self.closed or (served := self._descriptions.models.get(model)) is None:
            raise self._refusal(model)
        queued_as = runs_as(operation, served)[-1]
        return self.feeder.begin(rows, model, queued_as, hints, time.monotonic(), self._pairs)

    def _refusal(self, model: str) -> FarmError:
        if self.closed:
            return Unavailable("the farm is shutting down")
        return self.tasks.first_worker.not_served(model)

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call, and its parts: its outcome is not reported. False if it is not open."""
        stages = self._gathering or self._waiting, self.feeder, self._pairs
        return any(stage.cancel(task_id) for stage in stages)

    async def cancel_waiting(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Cancel the waiting calls of the argument `client`, and `chain` if given: their number.

        They are answered with Cancelled; those that run go on. Of a call of many rows, those rows
        are cancelled that no worker has; if the rows have one answer together, it is the error.
        """
        client, chain = arguments.get("client"), arguments.get("chain")
        if client is None:
            raise InvalidInput("the argument 'client' is missing; it is empty for nameless clients")
        of_chain = "" if chain is None else f", chain {chain!r}"
        error = Cancelled(
            f"the owner of the farm cancelled the waiting calls of {client!r}{of_chain}"
        )
        count = 0
        calls = [*self.feeder.of_client(client, chain), *self._waiting.waiting(client, chain)]
        for number, call_id in enumerate(calls, 1):
            count += self.cancel_if_waiting(call_id, error)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        text = f"the owner cancelled {count} waiting calls"
        self.context.listeners.note("cancelled", client, text)
        return {"cancelled": count}

    def cancel_if_waiting(self, call_id: TaskId, error: Cancelled) -> int:
        """Answer a call, or those of its rows, that no worker has; return how many these are."""
        count, tasks = self.feeder.fail_waiting(call_id, error)
        return count + sum([self._waiting.fail(task, error) for task in tasks])

    def calls_open(self) -> int:
        """Return how many calls, or tasks, have no outcome: many of one may be one of the other."""
        tasks = len(self.tasks.open)
        return max(tasks, len(self.gathered)) if self.gathered else tasks

    def close(self) -> None:
        """Refuse all calls from now on; those that are open go on."""
        self.closed = True

    def are_over(self) -> bool:
        """Whether every call has its outcome."""
        return not (self.calls_open() or self.feeder or self._found)

    def fail_all(self, error: FarmError) -> None:
        """Answer all open calls with an error."""
        for stage in self._ends:
            stage.fail_all(error)


def runs_as(operation: Operation, info: ModelInfo) -> tuple[Operation, ...]:
    """Return the operations that a call of this operation runs as: itself, or two others."""
    split = operation is Operation.VALUE_AND_GRADIENT and not info.keeps_point
    if split and operation not in info.operations and info.operations >= BOTH:
        return Operation.EVALUATE, Operation.GRADIENT
    return (operation,)


class Pairs:
    """The stage that runs value_and_gradient as two calls for models that do not define it.

    Both run side by side, on any workers. This is not for models that keep their point: their
    worker evaluates and then differentiates within one task.
    """

    def __init__(self, context: StageContext, inner: CallStage) -> None:
        self._descriptions = context.descriptions
        self._ended = context.listeners.ended
        self._ids = context.ids
        self._inner = inner
        self._open: dict[TaskId, tuple[TaskId, TaskId]] = {}  # the tasks of each pair

    def start(
        self, call: Call, hints: Hints, done: OnDone, now: float, lost_on: tuple[str, ...] = ()
    ) -> TaskId:
        """Start a call, or both halves of it. Raises FarmError if one is refused."""
        if call.operation is Operation.VALUE_AND_GRADIENT:
            known = self._descriptions.find(call.model, call.config)
            info = known or self._descriptions.models[call.model]
            if len(runs_as(call.operation, info)) > 1:
                return self._start_both(call, hints, done, now)
        return self._inner.start(call, hints, done, now, lost_on)

    def _start_both(self, call: Call, hints: Hints, done: OnDone, now: float) -> TaskId:
        pair_id = next(self._ids)
        results: list[Result | None] = [None, None]

        def half(place: int, outcome: Outcome) -> tuple[int, int]:
            """Receive an outcome; the second result, or the first error, ends the pair.

            The pair is counted as one call at its end, so its halves are none.
            """
            end = outcome
            if not isinstance(outcome, FarmError):
                results[place] = outcome
                value, gradient = results
                if value is None or gradient is None:
                    return 0, 0
                end = joined(value, gradient)
            if pair_id in self._open:
                self.cancel(pair_id)  # a half may still run after the other's error
                self._ended.whole(call, end, hints, now)
                done(end)
            return 0, int(isinstance(outcome, FarmError))

        # Both halves are one caller.
        of_both = replace(hints, chain=f"pair {pair_id}") if hints.chain is None else hints
        evaluation, gradient = halves(call)
        first = self._inner.start(evaluation, of_both, partial(half, 0), now)
        try:
            second = self._inner.start(gradient, of_both, partial(half, 1), now)
        except FarmError:
            self._inner.cancel(first)
            raise
        self._open[pair_id] = first, second
        return pair_id

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel both halves of a pair, which then report nothing, or another call."""
        tasks = self._open.pop(task_id, None)
        if tasks is None:
            return self._inner.cancel(task_id)
        for task in tasks:
            self._inner.cancel(task)
        return True


class Tasks:
    """Submits calls to the scheduler.

    open: the receivers of the outcomes of its tasks, from which the dispatcher removes those that
    it calls for the last time. first_worker: limits how long they wait while their model has no
    worker.
    """

    def __init__(
        self, context: StageContext, expected: Expectation | None, first_worker_s: float
    ) -> None:
        """expected, first_worker_s: as for the dispatcher."""
        self._scheduler = context.scheduler
        self._view = context.scheduler.view
        self._turns = context.turns
        self._chains = context.chains
        self.open: dict[TaskId, OnDone] = {}
        self.first_worker = FirstWorker(
            context.descriptions.models,
            self.open,
            self._end,
            context.listeners.ended,
            expected,
            first_worker_s,
        )

    def start(
        self, call: Call, hints: Hints, done: OnDone, now: float, lost_on: tuple[str, ...] = ()
    ) -> TaskId:
        """Submit a call as a task. Raises FarmError if the scheduler does not accept it."""
        task_id = self._scheduler.submit(
            hints.named(call) if hints.call_id else call,
            client=hints.client,
            chain=hints.chain,
            priority=hints.priority,
            deadline=None if hints.deadline_s is None else now + hints.deadline_s,
            start_by=None if hints.start_within_s is None else now + hints.start_within_s,
            lost_on=lost_on,
            gathered=isinstance(done, Part) and done.parts.rows.are_callers,
            now=now,
        )
        self.open[task_id] = done
        if hints.shown_as is not None:
            self._chains.opened(task_id, call, hints.shown_as, now)
        if self.first_worker.workers[call.model] <= 0:
            self.first_worker.call_begins(task_id, call.model, hints, now)
        self._turns.soon()
        return task_id

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a task; False if it has its outcome, or is none."""
        if self.open.pop(task_id, None) is None:
            return False
        self._scheduler.cancel(task_id)
        self._chains.cancelled(task_id)
        self._turns.soon()
        return True

    def _end(self, task_id: TaskId, error: FarmError) -> None:
        """Have the scheduler answer a task with an error."""
        self._scheduler.fail(task_id, error, now=time.monotonic())
        self._turns.soon()

    def waiting(self, client: str, chain: str | None) -> list[TaskId]:
        """Return the tasks of a client, or of one of its chains, that no worker has."""
        return [task.id for task in self._view.waiting(client, chain)]

    def fail(self, task_id: TaskId, error: FarmError) -> int:
        """Answer a task, if no worker has it; return how many calls it counts as."""
        done, task = self.open.get(task_id), self._view.task(task_id)
        if done is None or task is None or task.line is None:
            return 0
        self.cancel(task_id)
        return max(1, tell(done, error, task.rows)[0])

    def fail_all(self, error: FarmError) -> None:
        """Answer all tasks with an error."""
        self.first_worker.close()
        for task_id, done in list(self.open.items()):
            self.cancel(task_id)
            done(error)
