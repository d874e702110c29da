"""Runs calls of a fast model that arrive together as the rows of one task.

To schedule, send and answer a call costs the farm more than a model of some microseconds. So calls
that arrive in one turn of the event loop and differ only in their numbers share that cost. Each of
them remains a call to its caller, with an answer, an error, a retry after the loss of a worker, and
a cancellation of its own. If one of them takes long against all expectation, its worker splits the
run: it answers those before it and leaves those behind it to others (`farm.worker.runner`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial

import numpy as np

from farm.call import Array, Call, Hints, Operation, Result, WorkerInfo
from farm.dispatcher.feeder import Feeder
from farm.dispatcher.partition import QUICK_RUN_S, Rows, check_answer
from farm.dispatcher.stage import CallStage, OnDone, StageContext
from farm.errors import BEFORE_IT_RAN, Cancelled, FarmError
from farm.scheduler.actions import Outcome
from farm.scheduler.state import TaskId
from farm.wire.groups import row_results
from farm.wire.usage import SPLITS_RUNS

LARGEST_BYTES = 4096
"""Calls with more bytes of input than this are not gathered: to copy their numbers once more costs
as much as it saves."""


class GatheredCalls(Rows):
    """Calls of one client that differ only in their numbers, as `Rows`.

    call, hints: those of the first. most: how many there may be. waiting: the receivers of the
    outcomes; None: it has ended, or was cancelled. task: the id of all rows once they are started,
    or of the only call.
    """

    are_callers = True
    rows_a_step = 64

    def __init__(
        self, call: Call, hints: Hints, most: int, is_open: dict[TaskId, GatheredCalls]
    ) -> None:
        """is_open: the calls that have no outcome, from which each is removed that gets one."""
        self.call = call
        self.config = call.config
        self.hints = hints
        self.most = most
        self.calls: list[Call] = []
        self.ids: list[TaskId] = []
        self.waiting: list[OnDone | None] = []
        self.task: TaskId | None = None
        self.row_bytes = sum([array.nbytes for array in call.inputs])
        self._is_open = is_open

    def __len__(self) -> int:
        return len(self.calls)

    def takes(self, call: Call, hints: Hints) -> bool:
        """Whether a call of the same model and client differs from the first in numbers only."""
        like = self.call
        if call.config != self.config or len(self.calls) >= self.most or call.rows != like.rows:
            return False
        mine = self.hints
        if (hints, hints.shown_as, hints.patient) != (mine, mine.shown_as, mine.patient):
            return False
        for array, first in zip(call.inputs, like.inputs, strict=True):
            if array.shape != first.shape or array.dtype is not first.dtype:
                return False
        return True

    def part(self, first: int, most: int) -> Call:
        """Return calls from `first` on as one. Raises Cancelled if that one is cancelled."""
        waiting, like = self.waiting, self.call
        if waiting[first] is None:
            raise Cancelled(BEFORE_IT_RAN)
        end = min(first + most, len(waiting))
        if None in waiting[first:end]:
            end = waiting.index(None, first)
        columns = zip(*[call.inputs for call in self.calls[first:end]], strict=True)
        stacked = _stacked if like.rows is None else np.concatenate
        inputs = tuple([stacked(column) for column in columns])
        return Call(like.model, like.operation, inputs, like.config, rows=end - first)

    def done(self, first: int, end: int, result: Result) -> None:
        """Answer these calls. Raises InvalidOutput."""
        count = end - first
        check_answer(result, count)
        has_axis = self.call.rows is not None
        for row, one in enumerate(row_results(result, count, has_axis=has_axis), first):
            self.answer(row, one)

    def failed(self, first: int, end: int, error: FarmError) -> bool:
        """Answer these calls with the error; the others go on."""
        for row in range(first, end):
            self.answer(row, error)
        return True

    def answer(self, row: int, outcome: Outcome) -> None:
        """Answer a call, unless it is cancelled."""
        on_done = self.waiting[row]
        if on_done is not None:
            self.waiting[row] = None
            self._is_open.pop(self.ids[row])
            on_done(outcome)

    def finished(self) -> None:
        """Do nothing: each call has its own answer."""

    def is_wanted(self, first: int, end: int) -> bool:
        """Whether one of these calls is still open."""
        return any(on_done is not None for on_done in self.waiting[first:end])


def _stacked(arrays: Sequence[Array]) -> Array:
    shape = arrays[0].shape
    if not shape:
        return np.array(arrays)
    return np.concatenate(arrays).reshape(len(arrays), *shape)


class Gathered:
    """The stage that joins calls which arrive in one turn of the event loop to one task.

    put_off: those of this turn; they are started at its end. open: the calls that have no outcome.
    were_several: calls were open at the last start. tasks: those without an outcome.
    """

    def __init__(
        self, context: StageContext, feeder: Feeder, tasks: Collection[TaskId], inner: CallStage
    ) -> None:
        self._context = context
        self._turns = context.turns
        self._feeder = feeder
        self._tasks = tasks
        self._inner = inner
        context.listeners.on_joined.append(self._joined)
        context.listeners.on_left.append(lambda worker, _: self._unable.discard(worker.name))
        self._unable: set[str] = set()  # workers that cannot split a run
        self.were_several = False
        self._by_client: dict[tuple[object, ...], GatheredCalls] = {}
        self.put_off: list[GatheredCalls] = []
        self.open: dict[TaskId, GatheredCalls] = {}

    def start(
        self, call: Call, hints: Hints, done: OnDone, now: float, lost_on: tuple[str, ...] = ()
    ) -> TaskId:
        """Keep a call to the end of the turn, or start it now. Raises FarmError."""
        group = None
        # A call stays alone if it has many rows, belongs to a chain, or is followed in logs.
        if (call.rows is None or call.rows == 1) and hints.chain is None and not hints.call_id:
            key = call.model, call.operation, hints.client
            group = self._by_client.get(key)
            if group is None or not group.takes(call, hints):
                group, most = None, self._most(call, hints)
                if most > 1:
                    group = self._by_client[key] = GatheredCalls(call, hints, most, self.open)
                    self.put_off.append(group)
        if group is None:
            return self._inner.start(call, hints, done, now, lost_on)
        task_id = next(self._context.ids)
        group.calls.append(call)
        group.ids.append(task_id)
        group.waiting.append(done)
        self.open[task_id] = group
        self._turns.later()
        return task_id

    def _most(self, call: Call, hints: Hints) -> int:
        """Return how many calls like this one may run as one task; below 2: only this one.

        Two calls of a slower model are better run by two workers.
        """
        if self._context.listeners.on_answered:  # each is followed
            return 0
        if call.operation is not Operation.EVALUATE or call.step is not None or hints.is_limited:
            return 0
        if sum([array.nbytes for array in call.inputs]) > LARGEST_BYTES:
            return 0
        info = self._context.descriptions.find(call.model, call.config)
        if info is None:
            return 0  # it was not checked
        view, open_calls = self._context.scheduler.view, len(self.open)
        if info.max_batch > 1:
            return view.batch_in(call, QUICK_RUN_S, more=open_calls)
        if call.rows is not None or self._unable:
            return 0
        return view.rows_in(call, QUICK_RUN_S, more=open_calls)

    def _joined(self, worker: WorkerInfo, before: WorkerInfo | None) -> None:
        self._unable.discard(worker.name)
        if SPLITS_RUNS not in worker.labels:
            self._unable.add(worker.name)

    def turn(self) -> None:
        """Start the new calls; one that cannot be accepted gets its error."""
        groups, self.put_off = self.put_off, []
        self._by_client.clear()
        self.were_several = len(self.open) + len(self._tasks) > 1
        now = time.monotonic()
        for group in groups:
            if not group.is_wanted(0, len(group)):
                continue
            call, hints = group.call, group.hints
            try:
                if len(group) == 1:
                    answer = partial(group.answer, 0)
                    group.task = self._inner.start(call, hints, answer, now)
                else:
                    start = self._feeder.begin
                    group.task = start(group, call.model, call.operation, hints, now, self._inner)
            except FarmError as error:
                for row, call in enumerate(group.calls):
                    if group.waiting[row] is not None:
                        self._context.listeners.ended.refused(call, group.hints, error)
                        group.answer(row, error)

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call; False if it is not open."""
        group = self.open.pop(task_id, None)
        if group is None:
            return self._inner.cancel(task_id)
        group.waiting[group.ids.index(task_id)] = None
        if group.task is not None:
            if group.task >= 0:
                self._inner.cancel(group.task)
            else:
                self._feeder.drop(group.task)
        return True

    def fail_all(self, error: FarmError) -> None:
        """Answer the calls that are not started with this error."""
        groups, self.put_off = self.put_off, []
        self._by_client.clear()
        for group in groups:
            group.failed(0, len(group), error)
