"""Runs calls of a fast model that arrive together as the rows of one task.

To schedule, send and answer a call costs the farm more than a model of some microseconds. So calls
that arrive in one turn of the event loop and differ only in their numbers share that cost. Each of
them remains a call to its caller, with an answer, an error, a retry after the loss of a worker, and
a cancellation of its own. If one of them takes long against all expectation, its worker splits the
run: it answers those before it and leaves those behind it to others (`farm.worker.row_run`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Sized
from functools import partial

import numpy as np

from farm.call import Array, Call, Hints, ModelInfo, Operation, Result, WorkerInfo
from farm.dispatcher.events import Departure
from farm.dispatcher.failing import tell_refused
from farm.dispatcher.feeder import Feeder
from farm.dispatcher.listeners import Listeners
from farm.dispatcher.part_size import QUICK_RUN_S
from farm.dispatcher.rows import check_answer
from farm.errors import Cancelled, FarmError
from farm.scheduler.actions import Outcome
from farm.scheduler.core import Scheduler
from farm.scheduler.state import TaskId
from farm.wire.groups import row_results
from farm.wire.labels import SPLITS_RUNS

LARGEST_BYTES = 4096
"""Calls with more bytes of input than this are not gathered: to copy their numbers once more costs
as much as it saves."""

OnDone = Callable[[Outcome], None]
Start = Callable[[Call, Hints, OnDone, float], TaskId]


class GatheredCalls:
    """Calls of one client that differ only in their numbers, as `Rows`.

    call, hints: those of the first. most: how many there may be. waiting: the receivers of the
    outcomes; None: it has ended, or was cancelled. task: the id of all rows once they are started,
    or of the only call.
    """

    is_one_call = False
    are_callers = True
    rows_a_step = 64

    def __init__(
        self, call: Call, hints: Hints, most: int, ended: Callable[[TaskId], object]
    ) -> None:
        """ended: gets the id of each call that ends."""
        self.call = call
        self.hints = hints
        self.most = most
        self.calls: list[Call] = []
        self.ids: list[TaskId] = []
        self.waiting: list[OnDone | None] = []
        self.task: TaskId | None = None
        self.row_bytes = sum([array.nbytes for array in call.inputs])
        self._ended = ended

    def __len__(self) -> int:
        return len(self.calls)

    def takes(self, call: Call, hints: Hints) -> bool:
        """Whether a call of the same model and client differs from the first in numbers only."""
        like = self.call
        if call.config != like.config or len(self.calls) >= self.most or call.rows != like.rows:
            return False
        if hints is not self.hints and not _are_alike(hints, self.hints):
            return False
        for array, first in zip(call.inputs, like.inputs, strict=True):
            if array.shape != first.shape or array.dtype is not first.dtype:
                return False
        return True

    def add(self, call: Call, task_id: TaskId, on_done: OnDone) -> None:
        """Add a call that `takes` accepts."""
        self.calls.append(call)
        self.ids.append(task_id)
        self.waiting.append(on_done)

    def cancel(self, task_id: TaskId) -> None:
        """Forget who waits for a call."""
        self.waiting[self.ids.index(task_id)] = None

    def most_open(self) -> int:
        """Return the number of all rows: they may be open together."""
        return len(self.calls)

    def part(self, first: int, most: int) -> Call:
        """Return calls from `first` on as one. Raises Cancelled if that one is cancelled."""
        waiting, like = self.waiting, self.call
        if waiting[first] is None:
            raise Cancelled("the call was cancelled before it ran")
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
            self._ended(self.ids[row])
            on_done(outcome)

    def finished(self) -> None:
        """Do nothing: each call has its own answer."""

    def is_wanted(self, first: int, end: int) -> bool:
        """Whether one of these calls is still open."""
        return any(on_done is not None for on_done in self.waiting[first:end])


def _are_alike(some: Hints, others: Hints) -> bool:
    return (some, some.shown_as, some.patient) == (others, others.shown_as, others.patient)


def _stacked(arrays: Sequence[Array]) -> Array:
    shape = arrays[0].shape
    if not shape:
        return np.array(arrays)
    return np.concatenate(arrays).reshape(len(arrays), *shape)


class CallGathering:
    """The calls that arrived in this turn of the event loop, and those of earlier ones.

    listeners, start, cancel: of the dispatcher, to start a call that is alone and to cancel any.
    open_tasks: those without an outcome. reuses: whether calls may share one run, or an earlier
    answer.
    """

    def __init__(
        self,
        listeners: Listeners,
        feeder: Feeder,
        scheduler: Scheduler,
        open_tasks: Sized,
        start: Start,
        cancel: Callable[[TaskId], None],
        *,
        reuses: bool,
    ) -> None:
        self._feeder = feeder
        self._view = scheduler.view
        self._queue = scheduler.queue
        self._open_tasks = open_tasks
        self._start = start
        self._cancel = cancel
        self._reuses = reuses
        self._listeners = listeners
        listeners.on_joined.append(self._joined)
        listeners.on_left.append(self._left)
        self._unable: set[str] = set()  # workers that cannot split a run
        self._were_several = False  # calls were open at the last start
        self._by_client: dict[tuple[object, ...], GatheredCalls] = {}
        self._new: list[GatheredCalls] = []
        self._group_of: dict[TaskId, GatheredCalls] = {}
        self._ended = self._group_of.pop

    def __len__(self) -> int:
        return len(self._group_of)

    @property
    def has_new(self) -> bool:
        """Whether calls wait for `start_all`."""
        return bool(self._new)

    def add(self, call: Call, hints: Hints, info: ModelInfo, on_done: OnDone) -> TaskId | None:
        """Keep a call for `start_all` and return its id, below 0; None: it cannot be a row."""
        if not self._were_several and not self._open_tasks:
            return None  # a lone caller pays nothing for the chance of company
        if (call.rows or 1) > 1 or hints.chain is not None or hints.call_id:
            return None  # it has many rows, belongs to a chain, or is followed in logs
        key = call.model, call.operation, hints.client
        group = self._by_client.get(key)
        if group is None or not group.takes(call, hints):
            most = self._most(call, hints, info)
            if most < 2:
                return None
            group = self._by_client[key] = GatheredCalls(call, hints, most, self._ended)
            self._new.append(group)
        task_id = self._feeder.new_id()
        group.add(call, task_id, on_done)
        self._group_of[task_id] = group
        return task_id

    def _most(self, call: Call, hints: Hints, info: ModelInfo) -> int:
        """Return how many calls like this one may run as one task; below 2: only this one.

        Two calls of a slower model are better run by two workers.
        """
        if self._reuses or self._listeners.on_answered:  # each is looked up, or followed
            return 0
        if call.operation is not Operation.EVALUATE or call.step is not None or hints.is_limited:
            return 0
        if sum([array.nbytes for array in call.inputs]) > LARGEST_BYTES:
            return 0
        open_calls = len(self._group_of)
        if info.max_batch > 1:
            return self._view.batch_in(call.model, QUICK_RUN_S, more=open_calls)
        if call.rows is not None or self._unable:
            return 0
        return self._view.rows_in(call.model, QUICK_RUN_S, more=open_calls)

    def _joined(self, worker: WorkerInfo, before: WorkerInfo | None) -> None:
        self._unable.discard(worker.name)
        if SPLITS_RUNS not in worker.labels:
            self._unable.add(worker.name)

    def _left(self, worker: WorkerInfo, departure: Departure) -> None:
        self._unable.discard(worker.name)

    def start_all(self) -> None:
        """Start the new calls; one that cannot be accepted gets its error."""
        groups, self._new = self._new, []
        self._by_client.clear()
        self._were_several = len(self._group_of) + len(self._open_tasks) > 1
        now = time.monotonic()
        for group in groups:
            if not group.is_wanted(0, len(group)):
                continue
            try:
                if len(group) == 1:
                    answer = partial(group.answer, 0)
                    group.task = self._start(group.call, group.hints, answer, now)
                else:
                    queue = self._queue(group.call.model, group.call.operation)
                    group.task = self._feeder.begin(group, queue, group.hints, now)
            except FarmError as error:
                for row in range(len(group)):
                    self._refuse(group, row, error)

    def _refuse(self, group: GatheredCalls, row: int, error: FarmError) -> None:
        if group.waiting[row] is not None:
            tell_refused(self._listeners.on_failed, group.calls[row], group.hints, error)
            group.answer(row, error)

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call; False if it is none of these."""
        group = self._group_of.pop(task_id, None)
        if group is None:
            return False
        group.cancel(task_id)
        if group.task is None:
            return True
        if group.task >= 0:
            self._cancel(group.task)
        else:
            self._feeder.drop(group.task)
        return True

    def close(self, error: FarmError) -> None:
        """Answer the calls that are not started with this error."""
        groups, self._new = self._new, []
        self._by_client.clear()
        for group in groups:
            group.failed(0, len(group), error)
