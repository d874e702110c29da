"""Hands calls of many rows to the scheduler: a few parts at a time, as many as workers can use.

So a call of millions of rows costs no more at once than one of hundreds, takes no room in the
queue that others need, and is cancelled in the time that its parts in the scheduler take.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from farm.call import Call, Hints, Operation, Result
from farm.errors import FarmError, InvalidOutput, Overloaded, WorkerLost
from farm.scheduler.actions import Outcome
from farm.scheduler.parts import Rows
from farm.scheduler.queues import Queue
from farm.scheduler.state import TaskId

RUN_S = 0.02
"""How long a worker may be busy with one run of rows; others wait for their turn as long."""

RUN_BYTES = 4 * 1024**2
"""Most bytes of inputs, or of outputs, of one run of rows, as they make one message."""

RUNS_A_WORKER = 4
"""Each worker gets at least this many runs of a call, so that all end at about the same time."""

MOST_ALIVE = 4096
"""Most parts of one call that are in the scheduler at once, beside two for each slot."""

PARTS_A_TURN = 128
"""Parts that are made before the event loop gets its turn again: some milliseconds."""

PARTS_IN_A_ROW = 8
"""Parts of one call that are made before the next call has its turn."""


def part_rows(queue: Queue, rows: int, left: int, row_bytes: int) -> int:
    """How many of the `left` next rows of a call of `rows` rows become one task of `queue`.

    Of a model with batches: at most a batch, in parts of about equal size. Of one without: a run
    of rows that takes about `RUN_S`, and one row while the run time is unknown.
    """
    if queue.max_batch > 1:
        return -(-left // -(-left // queue.max_batch))
    times = queue.run_times
    if not queue.repeatable or not times.count or queue.operation is not Operation.EVALUATE:
        return 1
    share = rows // (RUNS_A_WORKER * max(1, queue.model.slots()))
    in_time = int(RUN_S / times.of_rows(1))
    return max(1, min(left, share, in_time, RUN_BYTES // max(1, row_bytes)))


def most_alive(queue: Queue, rows: int) -> int:
    """How many parts of `rows` rows the workers can use, and one for each slot in reserve."""
    times = queue.run_times
    slots = max(1, queue.model.slots())
    if not times.count:
        lots = 2 * slots
    elif queue.max_batch == 1:
        lots = slots * (2 + times.prefetch_for(times.of_rows(rows)))
    else:
        lots = slots * (2 + times.prefetch) * max(1, queue.max_batch // rows)
    return min(lots, MOST_ALIVE + 2 * slots)


class Span(NamedTuple):
    """Rows from `first` up to `end`, without it; lost_on: what each of them was lost with."""

    first: int
    end: int
    lost_on: tuple[str, ...] = ()


class Part:
    """Some rows of a call as one task; to be called with the task's outcome."""

    __slots__ = ("parts", "span", "task")

    def __init__(self, parts: Parts, span: Span) -> None:
        self.parts = parts
        self.span = span
        self.task: TaskId | None = None

    def __call__(self, outcome: Outcome) -> None:
        self.parts.outcome(self, outcome)

    def calls(self, rows: int) -> int:
        """As how many calls so many rows count; those of one call count together, at its end."""
        return 0 if self.parts.is_one_call else rows


class Parts:
    """The rows of one call: which are in the scheduler, which still have to go there."""

    def __init__(self, feeder: Feeder, rows: Rows, queue: Queue, hints: Hints, now: float) -> None:
        self.id = feeder.new_id()
        self.since = now
        self.hints = hints
        self.alive: dict[Part, None] = {}
        self._feeder = feeder
        self._rows = rows
        self._queue = queue
        self._to_make: deque[Span] = deque()
        self._put_back(0, len(rows))
        self._open = 0  # rows in the scheduler
        self._over = False

    @property
    def is_one_call(self) -> bool:
        """Whether all rows are one call to the statistics."""
        return self._rows.is_one_call

    def wants_more(self) -> bool:
        """Whether another part should be in the scheduler now."""
        if not self._to_make or self._open >= self._rows.most_open():
            return False
        return not self.alive or len(self.alive) < most_alive(self._queue, self._next_rows())

    def _next_rows(self) -> int:
        """How many rows the next part is to have."""
        rows, span = self._rows, self._to_make[0]
        if span.lost_on:  # each runs alone from now on, so that only the guilty one fails
            return 1
        return part_rows(self._queue, len(rows), span.end - span.first, rows.row_bytes)

    def begin(self) -> None:
        """Start the first part. Raises FarmError if it is not taken."""
        if self._to_make:
            self.start_next()
        else:
            self._end_if_over()

    def start_next(self) -> int:
        """Make the next part and give it to the scheduler. Raises FarmError if it is not taken.

        How much that was, in parts of little work each.
        """
        most = min(self._next_rows(), max(1, self._rows.most_open() - self._open))
        first, end, lost_on = self._to_make.popleft()
        self._queue.to_come -= end - first
        try:
            call = self._rows.part(first, most)
        except FarmError as error:
            self._put_back(first + 1, end, lost_on)
            self._failed(first, first + 1, error)
            self._end_if_over()
            return 1
        part = Part(self, Span(first, first + (call.rows or 1), lost_on))
        try:
            part.task = self._feeder.start(call, part)
        except FarmError:
            self._put_back(first, end, lost_on)
            raise
        self._put_back(part.span.end, end, lost_on)
        self.alive[part] = None
        if self.hints.start_within_s is not None:  # the call has begun in time if this part does
            self.hints = replace(self.hints, start_within_s=None)
        made = part.span.end - first
        self._open += made
        return 1 + made // self._rows.rows_a_step

    def _put_back(self, first: int, end: int, lost_on: tuple[str, ...] = ()) -> None:
        if first < end:
            self._to_make.appendleft(Span(first, end, lost_on))
            self._queue.to_come += end - first

    def outcome(self, part: Part, outcome: Outcome) -> None:
        """Take in the outcome of a part, or one of the answers of a stream."""
        if part not in self.alive:
            return  # the call is over, and its caller knows the outcome
        first, end, _ = part.span
        if isinstance(outcome, Result) and outcome.more:
            if not self._is_wanted(first, end, outcome):
                self._forget(part)
            return
        del self.alive[part]
        self._open -= end - first
        if isinstance(outcome, Result):
            self._answered(first, end, outcome)
        elif isinstance(outcome, WorkerLost) and end - first > 1 and self._may_run_again():
            self._lost(part.span, outcome)
        else:
            self._failed(first, end, outcome)
        self._feeder.look_at(self)
        self._end_if_over()

    def _may_run_again(self) -> bool:
        """Whether the rows of a run that was lost are made again, one by one."""
        return self._queue.max_batch == 1 and self._queue.repeatable

    def _answered(self, first: int, end: int, result: Result) -> None:
        """Pass rows on. A worker may answer fewer rows than asked, and how the next one failed."""
        count = result.rows_done(end - first)
        if count > end - first or (not count and result.failed is None):
            wrong = f"a worker answered {count} rows, it was asked for {end - first}"
            self._failed(first, end, InvalidOutput(wrong))
            return
        try:
            if count:
                self._rows.done(first, first + count, result)
        except FarmError as error:
            self._failed(first, first + count, error)
        first += count
        if self._over:
            return
        if result.failed is None:
            self._put_back(first, end)
        elif first < end:
            self._put_back(first + 1, end)
            self._failed(first, first + 1, result.failed)

    def _is_wanted(self, first: int, end: int, answer: Result) -> bool:
        """Pass on one of the answers of a stream; whether more of it are of use."""
        try:
            self._rows.done(first, end, answer)
        except FarmError as error:
            self._failed(first, end, error)
            return False
        return True

    def _forget(self, part: Part) -> None:
        if self.alive.pop(part, part) is None:  # else the whole call was given up
            self._open -= part.span.end - part.span.first
            self._feeder.take_back((part,))
            self._feeder.look_at(self)
            self._end_if_over()

    def _lost(self, span: Span, loss: WorkerLost) -> None:
        """Make the rows of a run again: the row that ran alone, or all if that is not known."""
        row = loss.row
        if row is None or not 0 <= row < span.end - span.first:
            self._put_back(span.first, span.end, (loss.message,))
            return
        guilty = span.first + row
        self._put_back(guilty + 1, span.end)
        self._put_back(guilty, guilty + 1, (loss.message,))
        self._put_back(span.first, guilty)

    def _failed(self, first: int, end: int, error: FarmError) -> None:
        if error.row is not None and 0 <= error.row < end - first:
            first, end = first + error.row, first + error.row + 1
        if not self._rows.failed(first, end, error):
            self.give_up()

    def _end_if_over(self) -> None:
        if not self.alive and not self._to_make and not self._over:
            self.give_up()
            self._rows.finished()

    def give_up(self) -> None:
        """Take back what is in the scheduler, and make no more parts."""
        self._over = True
        self._queue.to_come -= sum([end - first for first, end, _ in self._to_make])
        self._to_make.clear()
        alive, self.alive = self.alive, {}
        self._feeder.over(self, alive)

    def fail(self, error: FarmError) -> None:
        """Let all rows that have no outcome have this one."""
        spans = [*[part.span for part in self.alive], *self._to_make]
        self.give_up()
        for first, end, _ in spans:
            if not self._rows.failed(first, end, error):
                return
        self._rows.finished()


class Feeder:
    """The calls in parts of one dispatcher; makes their next parts in turn.

    start: gives the scheduler a call for a part; raises FarmError. cancel: takes a task back.
    soon: has `feed` called in the next turn of the event loop.
    """

    def __init__(
        self,
        start: Callable[[Call, Part], TaskId],
        cancel: Callable[[TaskId], None],
        soon: Callable[[], None],
    ) -> None:
        self.start = start
        self._cancel = cancel
        self._soon = soon
        self._ids = count(-1, -1)  # those of tasks count up
        self._open: dict[TaskId, Parts] = {}
        self._hungry: OrderedDict[Parts, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def new_id(self) -> TaskId:
        """An id for a call in parts, which no task has."""
        return TaskId(next(self._ids))

    def begin(self, rows: Rows, queue: Queue, hints: Hints, now: float) -> TaskId:
        """Take a call in; its id is below 0. Raises FarmError if its first part is not taken."""
        parts = Parts(self, rows, queue, hints, now)
        self._open[parts.id] = parts
        try:
            parts.begin()
        except FarmError:
            del self._open[parts.id]
            raise
        self.look_at(parts)
        return parts.id

    def look_at(self, parts: Parts) -> None:
        """Note whether a call wants more parts in the scheduler."""
        if parts not in self._hungry and parts.wants_more():
            self._hungry[parts] = None
            self._soon()

    def feed(self) -> bool:
        """Make parts for the calls that want some; True: call again in the next turn.

        Where the queue is full, a call waits until there is room: it is called again after any
        fact.
        """
        left = PARTS_A_TURN
        refused: list[Parts] = []
        while self._hungry and left > 0:
            parts, _ = self._hungry.popitem(last=False)
            most = left - PARTS_IN_A_ROW
            while parts.wants_more():
                if left <= max(0, most):
                    self._hungry[parts] = None
                    break
                try:
                    left -= parts.start_next()
                except Overloaded:
                    left -= 1
                    refused.append(parts)
                    break
                except FarmError as error:
                    left -= 1
                    parts.fail(error)
        hungry = bool(self._hungry)
        self._hungry.update(dict.fromkeys(refused))
        return hungry

    def more(self, call_id: TaskId) -> None:
        """Look again whether a call wants more parts: it may have more rows open than before."""
        parts = self._open.get(call_id)
        if parts is not None:
            self.look_at(parts)

    def cancel(self, call_id: TaskId) -> None:
        """Take a call back: nobody hears of its rows any more."""
        parts = self._open.get(call_id)
        if parts is not None:
            parts.give_up()

    def over(self, parts: Parts, alive: Iterable[Part]) -> None:
        """Forget a call, and take the tasks of its parts back."""
        self._open.pop(parts.id, None)
        self._hungry.pop(parts, None)
        self.take_back(alive)

    def take_back(self, alive: Iterable[Part]) -> None:
        """Take the tasks of parts back."""
        for part in alive:
            if part.task is not None:
                self._cancel(part.task)

    def fail_all(self, error: FarmError) -> None:
        """Let all rows of all calls that have no outcome have this one."""
        for parts in list(self._open.values()):
            parts.fail(error)
