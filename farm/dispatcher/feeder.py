"""Feeds calls of many rows to the scheduler in parts, only as many as the workers can use.

Thus a call with millions of rows costs no more at once than one with hundreds, leaves room in the
queue for others, and is cancelled as soon as the few parts in the scheduler are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from farm.call import Call, Hints, Result
from farm.dispatcher.part_size import most_alive, part_rows
from farm.dispatcher.partition import Rows
from farm.dispatcher.statistics import Counted
from farm.errors import FarmError, InvalidInput, InvalidOutput, ModelFailed, Overloaded, WorkerLost
from farm.scheduler.actions import Outcome
from farm.scheduler.queues import Queue
from farm.scheduler.state import TaskId

PARTS_A_TURN = 128
"""Most parts to make per event-loop iteration; they take some milliseconds."""

PARTS_IN_A_ROW = 8
"""Most parts of one call to make before the next call gets its turn."""

MAY_BE_OF_ONE = (InvalidInput, InvalidOutput, ModelFailed, WorkerLost)
"""Errors of a batch that one of its rows may cause; the others may succeed by themselves."""


class Span(NamedTuple):
    """The rows from `first` up to, but not including, `end`.

    lost_on: messages of the worker losses that these rows were part of. one_by_one: each is to run
    by itself, as they did not run well together.
    """

    first: int
    end: int
    lost_on: tuple[str, ...] = ()
    one_by_one: bool = False


class Part(Counted):
    """Some rows of a call as one task; it is called with the task's outcome."""

    __slots__ = ("parts", "span", "task")

    def __init__(self, parts: PartitionedRows, span: Span) -> None:
        self.parts = parts
        self.span = span
        self.task: TaskId | None = None

    def __call__(self, outcome: Outcome) -> None:
        self.parts.outcome(self, outcome)

    def calls(self, rows: int) -> int:
        """Return how many calls `rows` rows count as; 0 if the whole call is counted at its end."""
        return 0 if self.parts.is_one_call else rows

    def fails(self, outcome: Outcome) -> int:
        """Return how many calls fail for good with this outcome."""
        return self.parts.fails(self, outcome)

    def split(self, rows: int) -> Part:
        """Keep the first `rows` rows, and return another part, which is open, of the rest."""
        return self.parts.split(self, rows)

    def again(self) -> None:
        """Submit the rows once more instead of reporting an outcome."""
        self.parts.again(self)


class PartitionedRows:
    """The rows of one call: those in the scheduler and those still to be submitted."""

    def __init__(self, feeder: Feeder, rows: Rows, queue: Queue, hints: Hints, now: float) -> None:
        self.id = feeder.new_id()
        self.since = now
        if hints.chain is None and not rows.are_callers:  # one, however many parts are open
            hints = replace(hints, chain=f"rows {self.id}")
        self.hints = hints
        self.alive: dict[Part, None] = {}
        self._feeder = feeder
        self._rows = rows
        self._queue = queue
        self._to_make: deque[Span] = deque()
        self._put_back(Span(0, len(rows)))
        self._open = 0  # rows in the scheduler
        self._over = False

    @property
    def is_one_call(self) -> bool:
        """Whether the statistics count all rows as one call."""
        return self._rows.is_one_call

    @property
    def are_callers(self) -> bool:
        """Whether each row is a call of its own caller."""
        return self._rows.are_callers

    def wants_more(self) -> bool:
        """Whether another part should be in the scheduler now."""
        if not self._to_make or self._open >= self._rows.most_open():
            return False
        return not self.alive or len(self.alive) < most_alive(self._queue, self._next_rows())

    def _next_rows(self) -> int:
        """Return the number of rows for the next part."""
        rows, span = self._rows, self._to_make[0]
        if span.lost_on or span.one_by_one:  # so that only the row fails that is at fault
            return 1
        return part_rows(self._queue, len(rows), span.end - span.first, rows.row_bytes)

    def begin(self) -> None:
        """Start the first part. Raises FarmError if it is not accepted."""
        if self._to_make:
            self.start_next()
        else:
            self._end_if_over()

    def start_next(self) -> int:
        """Submit the next part to the scheduler and return the work that this took, in parts.

        Raises FarmError if the scheduler does not accept it.
        """
        most = min(self._next_rows(), max(1, self._rows.most_open() - self._open))
        span = self._to_make.popleft()
        first, end = span.first, span.end
        self._queue.to_come -= end - first
        try:
            call = self._rows.part(first, most)
        except FarmError as error:
            self._put_back(span._replace(first=first + 1))
            self._failed(first, first + 1, error)
            self._end_if_over()
            return 1
        made, alive = call.rows or 1, len(self.alive)
        part = Part(self, span._replace(end=first + made))
        try:
            part.task = self._feeder.start(call, part)
        except FarmError:
            self._put_back(span)
            raise
        self._put_back(span._replace(first=first + made))
        self.alive[part] = None
        if self.hints.start_within_s is not None:  # the call starts in time if its first part does
            self.hints = replace(self.hints, start_within_s=None)
        self._open += made
        return len(self.alive) - alive + made // self._rows.rows_a_step

    def _put_back(self, span: Span) -> None:
        if span.first < span.end:
            self._to_make.appendleft(span)
            self._queue.to_come += span.end - span.first

    def split(self, part: Part, rows: int) -> Part:
        """Leave a part the first `rows` of its rows; return an open part of the others."""
        middle = part.span.first + rows
        rest = Part(self, part.span._replace(first=middle))
        part.span = part.span._replace(end=middle)
        self.alive[rest] = None
        return rest

    def again(self, part: Part) -> None:
        """Submit the rows of a part once more."""
        if self.alive.pop(part, part) is None:
            self._open -= part.span.end - part.span.first
            self._put_back(part.span)
            self._feeder.look_at(self)

    def fails(self, part: Part, outcome: Outcome) -> int:
        """Return how many calls fail for good with this outcome of a part."""
        if part not in self.alive or self._runs_again(part.span, outcome):
            return 0
        if isinstance(outcome, Result):
            return int(outcome.failed is not None)
        rows = part.span.end - part.span.first
        return 1 if self.is_one_call or _names_a_row(outcome, rows) else rows

    def outcome(self, part: Part, outcome: Outcome) -> None:
        """Receive the outcome of a part, or one of the answers of a stream."""
        if part not in self.alive:
            return  # the call has ended, and its outcome was reported
        first, end = part.span.first, part.span.end
        if isinstance(outcome, Result) and outcome.more:
            if not self._queue.streams:
                self._shrink(part, outcome)
            elif not self._is_wanted(first, end, outcome):
                self._forget(part)
            return
        del self.alive[part]
        self._open -= end - first
        if isinstance(outcome, Result):
            self._answered(first, end, outcome)
        elif not self._runs_again(part.span, outcome):
            self._failed(first, end, outcome)
        elif isinstance(outcome, WorkerLost):
            self._lost(part.span, outcome)
        else:
            self._put_back(Span(first, end, one_by_one=True))
        self._feeder.look_at(self)
        self._end_if_over()

    def _runs_again(self, span: Span, outcome: Outcome) -> bool:
        """Whether the rows of a part are retried: of a lost run, or of a batch of many callers."""
        if span.end - span.first == 1 or not self._queue.repeatable:
            return False
        if self._queue.max_batch == 1:
            return isinstance(outcome, WorkerLost)
        return self._rows.are_callers and isinstance(outcome, MAY_BE_OF_ONE)

    def _shrink(self, part: Part, done: Result) -> None:
        """Leave a part the row that its worker runs: the rows before it are done."""
        span, count = part.span, len(done.row_times_s)
        at = span.first + count
        part.span = Span(at, at + 1, span.lost_on)
        self._open -= span.end - span.first - 1
        self._put_back(span._replace(first=at + 1))
        if count:
            self._report(span.first, at, done)
        if self._rows.is_wanted(at, at + 1):
            self._feeder.look_at(self)
        else:
            self._forget(part)

    def _report(self, first: int, end: int, result: Result) -> None:
        try:
            self._rows.done(first, end, result)
        except FarmError as error:
            self._failed(first, end, error)

    def _answered(self, first: int, end: int, result: Result) -> None:
        """Report finished rows. A worker may answer fewer rows, and the error of the next one."""
        count = result.rows_done(end - first)
        if count > end - first or (not count and result.failed is None):
            wrong = f"a worker answered {count} rows, expected {end - first}"
            self._failed(first, end, InvalidOutput(wrong))
            return
        if count:
            self._report(first, first + count, result)
        first += count
        if self._over:
            return
        if result.failed is None:  # the run took long, or a row's outputs have another shape
            self._put_back(Span(first, end, one_by_one=self.are_callers))
        elif first < end:
            self._put_back(Span(first + 1, end))
            self._failed(first, first + 1, result.failed)

    def _is_wanted(self, first: int, end: int, answer: Result) -> bool:
        """Report one answer of a stream; return whether more answers are wanted."""
        try:
            self._rows.done(first, end, answer)
        except FarmError as error:
            self._failed(first, end, error)
            return False
        return True

    def drop(self) -> None:
        """Cancel the parts of which no row is wanted any more."""
        is_wanted = self._rows.is_wanted
        if not is_wanted(0, len(self._rows)):
            self.give_up()
            return
        for part in list(self.alive):
            if not is_wanted(part.span.first, part.span.end):
                self._forget(part)

    def _forget(self, part: Part) -> None:
        if self.alive.pop(part, part) is None:  # not if the whole call was given up
            self._open -= part.span.end - part.span.first
            self._feeder.cancel_parts((part,))
            self._feeder.look_at(self)
            self._end_if_over()

    def _lost(self, span: Span, loss: WorkerLost) -> None:
        """Retry the rows of a lost run.

        The row that was running is retried alone, or every row if that row is unknown.
        """
        row = loss.row
        if row is None or not 0 <= row < span.end - span.first:
            self._put_back(Span(span.first, span.end, (loss.message,)))
            return
        guilty = span.first + row
        self._put_back(Span(guilty + 1, span.end))
        self._put_back(Span(guilty, guilty + 1, (loss.message,)))
        self._put_back(Span(span.first, guilty))

    def _failed(self, first: int, end: int, error: FarmError) -> None:
        if error.row is not None and _names_a_row(error, end - first):
            guilty = first + error.row
            self._put_back(Span(guilty + 1, end))
            self._put_back(Span(first, guilty))
            first, end = guilty, guilty + 1
        if not self._rows.failed(first, end, error):
            self.give_up()

    def _end_if_over(self) -> None:
        if not self.alive and not self._to_make and not self._over:
            self.give_up()
            self._rows.finished()

    def _left(self) -> int:
        return sum([span.end - span.first for span in self._to_make])

    def give_up(self) -> None:
        """Cancel the parts in the scheduler and submit no more."""
        self._over = True
        self._queue.to_come -= self._left()
        self._to_make.clear()
        alive, self.alive = self.alive, {}
        self._feeder.over(self, alive)

    def fail(self, error: FarmError) -> None:
        """Fail all rows that have no outcome with `error`."""
        spans = [*[part.span for part in self.alive], *self._to_make]
        self.give_up()
        for span in spans:
            if not self._rows.failed(span.first, span.end, error):
                return
        self._rows.finished()

    def fail_waiting(self, error: FarmError) -> int:
        """Fail the rows that are not in the scheduler; return how many calls these count as."""
        spans, count = list(self._to_make), 0
        self._queue.to_come -= self._left()
        self._to_make.clear()
        for span in spans:
            count += 1 if self.is_one_call else span.end - span.first
            if not self._rows.failed(span.first, span.end, error):
                self.give_up()
                break
        if count:
            self._end_if_over()
        return count


def _names_a_row(error: FarmError, rows: int) -> bool:
    """Whether an error concerns one of so many rows, and the others may be run again."""
    return error.row is not None and 0 <= error.row < rows


class Feeder:
    """Submits the parts of a dispatcher's partitioned calls, call by call in turn.

    start: submits the call of a part to the scheduler; raises FarmError. cancel: cancels a task.
    soon: schedules a call of `feed` in the next iteration of the event loop.
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
        self._ids = count(-1, -1)  # negative; ids of tasks are positive
        self._open: dict[TaskId, PartitionedRows] = {}
        self._to_feed: OrderedDict[PartitionedRows, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def new_id(self) -> TaskId:
        """Return a new id for a call in parts; no task has such an id."""
        return TaskId(next(self._ids))

    def begin(self, rows: Rows, queue: Queue, hints: Hints, now: float) -> TaskId:
        """Start a call and return its id, below 0. Raises FarmError if part one is refused."""
        parts = PartitionedRows(self, rows, queue, hints, now)
        self._open[parts.id] = parts
        try:
            parts.begin()
        except FarmError:
            parts.give_up()
            raise
        self.look_at(parts)
        return parts.id

    def look_at(self, parts: PartitionedRows) -> None:
        """Note whether a call wants more parts in the scheduler."""
        if parts not in self._to_feed and parts.wants_more():
            self._to_feed[parts] = None
            self._soon()

    def feed(self) -> bool:
        """Submit parts of the calls that want more; True: call again in the next iteration.

        If the queue is full, a call waits until there is room: `feed` runs again after any fact.
        """
        left = PARTS_A_TURN
        refused: list[PartitionedRows] = []
        while self._to_feed and left > 0:
            parts, _ = self._to_feed.popitem(last=False)
            most = left - PARTS_IN_A_ROW
            while parts.wants_more():
                if left <= max(0, most):
                    self._to_feed[parts] = None
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
        more_to_feed = bool(self._to_feed)
        self._to_feed.update(dict.fromkeys(refused))
        return more_to_feed

    def more(self, call_id: TaskId) -> None:
        """Check again whether a call wants more parts, as more of its rows may be open now."""
        parts = self._open.get(call_id)
        if parts is not None:
            self.look_at(parts)

    def joined(self, *_: object) -> None:
        """Check all calls again, as a worker has joined that may take more parts."""
        for parts in self._open.values():
            self.look_at(parts)

    def drop(self, call_id: TaskId) -> None:
        """Cancel the parts of a call of which no row is wanted any more."""
        parts = self._open.get(call_id)
        if parts is not None:
            parts.drop()

    def open_of(self, client: str, chain: str | None) -> list[PartitionedRows]:
        """Return the open calls of a client, or of one of its chains."""
        return [
            parts
            for parts in self._open.values()
            if parts.hints.client == client and chain in (None, parts.hints.chain)
        ]

    def cancel(self, call_id: TaskId) -> None:
        """Cancel a call: outcomes of its rows are no longer reported."""
        parts = self._open.get(call_id)
        if parts is not None:
            parts.give_up()

    def over(self, parts: PartitionedRows, alive: Iterable[Part]) -> None:
        """Forget a call, and cancel the tasks of its parts."""
        self._open.pop(parts.id, None)
        self._to_feed.pop(parts, None)
        self.cancel_parts(alive)

    def cancel_parts(self, alive: Iterable[Part]) -> None:
        """Cancel the tasks of parts."""
        for part in alive:
            if part.task is not None:
                self._cancel(part.task)

    def fail_all(self, error: FarmError) -> None:
        """Fail all rows of all calls that have no outcome with `error`."""
        for parts in list(self._open.values()):
            parts.fail(error)
