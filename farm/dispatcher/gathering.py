"""Runs calls of a fast model that arrive together as the rows of one task.

To schedule, send and answer a call costs the farm more than a model of some microseconds. So calls
that arrive in one turn of the event loop and differ only in their numbers share that cost. Each of
them remains a call to its caller, with an answer, an error, a retry after the loss of a worker, and
a cancellation of its own. If one of them takes long against all expectation, the others do not wait
for it: they are started again, each by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence, Sized
from functools import partial

import numpy as np

from farm.call import Array, Call, Hints, ModelInfo, Operation, Result
from farm.dispatcher.failing import tell_refused
from farm.dispatcher.feeder import QUICK_RUN_S, Feeder
from farm.dispatcher.listeners import Listeners
from farm.dispatcher.rows import check_answer
from farm.errors import Cancelled, FarmError
from farm.scheduler.actions import Outcome
from farm.scheduler.core import Scheduler
from farm.scheduler.phases import SENT
from farm.scheduler.state import TaskId
from farm.wire.groups import row_results

LATE_S = 0.2
"""Time at a worker after which the calls of a run are started again, each by itself. The run was to
take `QUICK_RUN_S`, and those sent ahead of it a few milliseconds."""

TOO_FEW_SLOTS = 2
"""With so many slots at workers no calls are gathered. A call that takes long is started once more
with those beside it, and would then hold both. One slot it holds in any case."""

LARGEST_BYTES = 4096
"""Calls with more bytes of input than this are not gathered: to copy their numbers once more costs
as much as it saves."""

OnDone = Callable[[Outcome], None]
Start = Callable[[Call, Hints, OnDone, float], TaskId]


class GatheredCalls:
    """Calls of one client that differ only in their numbers, as `Rows`.

    call, hints: those of the first. most: how many there may be. waiting: who gets each call's
    outcome; None: it has ended, or was cancelled. task: the id of all rows once they are started;
    alone: those of calls that were started by themselves, by row.
    """

    is_one_call = False
    are_callers = True
    rows_a_step = 64

    def __init__(
        self, call: Call, hints: Hints, most: int, ended: Callable[[TaskId], object]
    ) -> None:
        """ended: is told the id of each call that ends."""
        self.call = call
        self.hints = hints
        self.most = most
        self.calls: list[Call] = []
        self.ids: list[TaskId] = []
        self.waiting: list[OnDone | None] = []
        self.task: TaskId | None = None
        self.alone: dict[int, TaskId] = {}
        self.row_bytes = sum([array.nbytes for array in call.inputs])
        self._ended = ended

    def __len__(self) -> int:
        return len(self.calls)

    def takes(self, call: Call, hints: Hints) -> bool:
        """Whether a call of the same model and client differs from the first in numbers only."""
        like = self.call
        if call.config != like.config or len(self.calls) >= self.most:
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

    def cancel(self, task_id: TaskId) -> TaskId | None:
        """Forget who waits for a call; return its task if it was started by itself."""
        row = self.ids.index(task_id)
        self.waiting[row] = None
        return self.alone.get(row)

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
        inputs = tuple([_stacked(column) for column in columns])
        return Call(like.model, like.operation, inputs, like.config, rows=end - first)

    def done(self, first: int, end: int, result: Result) -> None:
        """Answer these calls. Raises InvalidOutput."""
        count = end - first
        check_answer(result, count)
        for row, one in enumerate(row_results(result, count), first):
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
        self._were_several = False  # calls were open at the last start
        self._by_client: dict[tuple[object, ...], GatheredCalls] = {}
        self._new: list[GatheredCalls] = []
        self._group_of: dict[TaskId, GatheredCalls] = {}
        self._ended = self._group_of.pop
        self._look: asyncio.TimerHandle | None = None

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
        if call.rows is not None or hints.chain is not None or hints.call_id:
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
        most = self._view.rows_in(call.model, QUICK_RUN_S, more=len(self._group_of))
        if most < 2 or not info.copies or any(tensor.varies for tensor in info.outputs):
            return 0
        if self._queue(call.model, call.operation).model.slots() == TOO_FEW_SLOTS:
            return 0
        return most if sum([array.nbytes for array in call.inputs]) <= LARGEST_BYTES else 0

    def start_all(self) -> None:
        """Start the new calls; one that cannot be accepted gets its error."""
        groups, self._new = self._new, []
        self._by_client.clear()
        self._were_several = len(self._group_of) + len(self._open_tasks) > 1
        now = time.monotonic()
        for group in groups:
            if not group.is_wanted(0, len(group)):
                continue
            if len(group) == 1:
                self._start_alone(group, 0, now)
                continue
            try:
                queue = self._queue(group.call.model, group.call.operation)
                group.task = self._feeder.begin(group, queue, group.hints, now)
            except FarmError as error:
                for row in range(len(group)):
                    self._refuse(group, row, error)
            else:
                self._look_later()

    def _start_alone(self, group: GatheredCalls, row: int, now: float) -> None:
        answer = partial(group.answer, row)
        try:
            group.alone[row] = self._start(group.calls[row], group.hints, answer, now)
        except FarmError as error:
            self._refuse(group, row, error)

    def _refuse(self, group: GatheredCalls, row: int, error: FarmError) -> None:
        if group.waiting[row] is not None:
            tell_refused(self._listeners.on_failed, group.calls[row], group.hints, error)
            group.answer(row, error)

    def _look_later(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LATE_S, self._look_for_late)

    def _look_for_late(self) -> None:
        self._look = None
        groups = {group.task: group for group in self._group_of.values() if group.task is not None}
        now = time.monotonic()
        for task, group in groups.items():
            for first, end, _ in self._feeder.take_back(task, partial(self._is_late, now)):
                for row in range(first, end):
                    if group.waiting[row] is not None:
                        self._start_alone(group, row, now)
        if groups:
            self._look_later()

    def _is_late(self, now: float, task_id: TaskId) -> bool:
        task = self._view.task(task_id)
        if task is None or task.phase is not SENT or task.queue.model.slots() < 2:
            return False
        return now - task.attempt.sent_at > LATE_S

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call; False if it is none of these."""
        group = self._group_of.pop(task_id, None)
        if group is None:
            return False
        alone = group.cancel(task_id)
        if alone is not None:
            self._cancel(alone)
        elif group.task is not None:
            self._feeder.drop(group.task, group.is_wanted)
        return True

    def close(self, error: FarmError) -> None:
        """Answer the calls that are not started with this error."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        groups, self._new = self._new, []
        self._by_client.clear()
        for group in groups:
            group.failed(0, len(group), error)
