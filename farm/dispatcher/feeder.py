"""Feeds calls of many rows to the scheduler in parts, only as many as the workers can use.

Thus a call with millions of rows costs no more at once than one with hundreds, leaves room in the
queue for others, and is cancelled as soon as the few parts in the scheduler are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from farm.call import Call, Hints, Operation, Result
from farm.dispatcher.partition import Rows, WholeCall, most_alive, part_rows
from farm.dispatcher.stage import CallStage, OnDone, StageContext
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


@dataclass(eq=False, slots=True)
class Part:
    """Some rows of a call as one task; it is called with the task's outcome."""

    parts: PartitionedRows
    span: Span
    task: TaskId | None = None

    def __call__(self, outcome: Outcome) -> tuple[int, int]:
        return self.parts.outcome(self, outcome)


class PartitionedRows:
    """The rows of one call: those in the scheduler and those still to be submitted."""

    def __init__(
        self, feeder: Feeder, rows: Rows, queue: Queue, hints: Hints, now: float, inner: CallStage
    ) -> None:
        """inner: the stage that starts the parts."""
        self.id = next(feeder.ids)  # no task has such an id
        self._since = now
        self._inner = inner
        if hints.chain is None and not rows.are_callers:  # one, however many parts are open
            hints = replace(hints, chain=f"rows {self.id}")
        self.hints = hints
        self.alive: dict[Part, None] = {}
        self._feeder = feeder
        self.rows = rows
        self._queue = queue
        self._times = queue.kinds.of(rows.config)
        self._to_make: deque[Span] = deque()
        self._put_back(Span(0, len(rows)))
        self._open = 0  # rows in the scheduler
        self._over = False

    def wants_more(self) -> bool:
        """Whether another part should be in the scheduler now."""
        if not self._to_make or self._open >= self.rows.most_open():
            return False
        return not self.alive or len(self.alive) < most_alive(
            self._queue, self._times, self._next_rows()
        )

    def _next_rows(self) -> int:
        """Return the number of rows for the next part."""
        rows, span = self.rows, self._to_make[0]
        if span.lost_on or span.one_by_one:  # so that only the row fails that is at fault
            return 1
        left = span.end - span.first
        return part_rows(self._queue, self._times, len(rows), left, rows.row_bytes)

    def start_next(self) -> int:
        """Submit the next part to the scheduler and return the work that this took, in parts.

        Raises FarmError if the scheduler does not accept it.
        """
        most = min(self._next_rows(), max(1, self.rows.most_open() - self._open))
        span = self._to_make.popleft()
        first = span.first
        try:
            call = self.rows.part(first, most)
        except FarmError as error:
            self._take_from(span, 1)
            self._failed(first, first + 1, error)
            self.end_if_over()
            return 1
        made, alive = call.rows or 1, len(self.alive)
        part = Part(self, span._replace(end=first + made))
        try:
            part.task = self._inner.start(call, self.hints, part, self._since, span.lost_on)
        except FarmError:
            self._to_make.appendleft(span)
            raise
        self._take_from(span, made)
        self.alive[part] = None
        if self.hints.start_within_s is not None:  # the call starts in time if its first part does
            self.hints = replace(self.hints, start_within_s=None)
        self._open += made
        return len(self.alive) - alive + made // self.rows.rows_a_step

    def _take_from(self, span: Span, rows: int) -> None:
        self._queue.counts.expect(-rows)
        if span.first + rows < span.end:
            self._to_make.appendleft(span._replace(first=span.first + rows))

    def _put_back(self, span: Span) -> None:
        if span.first < span.end:
            self._to_make.appendleft(span)
            self._queue.counts.expect(span.end - span.first)

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

    def outcome(self, part: Part, outcome: Outcome) -> tuple[int, int]:
        """Receive the outcome of a part, or one of the answers of a stream.

        Returns how many calls end, and fail for good; the rows of one call are counted at its end.
        """
        if part not in self.alive:
            return 0, 0  # the call has ended, and its outcome was reported
        first, end = part.span.first, part.span.end
        calls = 0 if self.rows.is_one_call else end - first
        fails = int(isinstance(outcome, Result) and outcome.failed is not None)
        if isinstance(outcome, Result) and outcome.more:
            if not self._queue.streams:
                self._shrink(part, outcome)
            elif not self._report(first, end, outcome):
                self._forget(part)
            return calls, fails
        del self.alive[part]
        self._open -= end - first
        if isinstance(outcome, Result):
            self._answered(first, end, outcome)
        elif not self._runs_again(part.span, outcome):
            fails = calls if calls and _guilty(outcome, first, end) is None else 1
            self._failed(first, end, outcome)
        elif isinstance(outcome, WorkerLost):
            self._lost(part.span, outcome)
        else:
            self._put_back(Span(first, end, one_by_one=True))
        self._feeder.look_at(self)
        self.end_if_over()
        return calls if isinstance(outcome, Result) else min(calls, fails), fails

    def _runs_again(self, span: Span, outcome: Outcome) -> bool:
        """Whether the rows of a part are retried: of a lost run, or of a batch of many callers."""
        if span.end - span.first == 1 or not self._queue.repeatable:
            return False
        if self._queue.max_batch == 1:
            return isinstance(outcome, WorkerLost)
        return self.rows.are_callers and isinstance(outcome, MAY_BE_OF_ONE)

    def _shrink(self, part: Part, done: Result) -> None:
        """Leave a part the row that its worker runs: the rows before it are done."""
        span, count = part.span, len(done.row_times_s)
        at = span.first + count
        part.span = Span(at, at + 1, span.lost_on)
        self._open -= span.end - span.first - 1
        self._put_back(span._replace(first=at + 1))
        if count:
            self._report(span.first, at, done)
        if self.rows.is_wanted(at, at + 1):
            self._feeder.look_at(self)
        else:
            self._forget(part)

    def _report(self, first: int, end: int, result: Result) -> bool:
        """Report the result of rows, or one answer of a stream; return whether it is usable."""
        try:
            self.rows.done(first, end, result)
        except FarmError as error:
            self._failed(first, end, error)
            return False
        return True

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
            self._put_back(Span(first, end, one_by_one=self.rows.are_callers))
        elif first < end:
            self._put_back(Span(first + 1, end))
            self._failed(first, first + 1, result.failed)

    def drop(self) -> None:
        """Cancel the parts of which no row is wanted any more."""
        is_wanted = self.rows.is_wanted
        if not is_wanted(0, len(self.rows)):
            self.give_up()
            return
        for part in list(self.alive):
            if not is_wanted(part.span.first, part.span.end):
                self._forget(part)

    def _forget(self, part: Part) -> None:
        if self.alive.pop(part, part) is None:  # not if the whole call was given up
            self._open -= part.span.end - part.span.first
            self._cancel((part,))
            self._feeder.look_at(self)
            self.end_if_over()

    def _lost(self, span: Span, loss: WorkerLost) -> None:
        """Retry the rows of a lost run.

        The row that was running is retried alone, or every row if that row is unknown.
        """
        guilty = _guilty(loss, span.first, span.end)
        if guilty is None:
            self._put_back(Span(span.first, span.end, (loss.message,)))
            return
        self._put_back(Span(guilty + 1, span.end))
        self._put_back(Span(guilty, guilty + 1, (loss.message,)))
        self._put_back(Span(span.first, guilty))

    def _failed(self, first: int, end: int, error: FarmError) -> None:
        guilty = _guilty(error, first, end)
        if guilty is not None:
            self._put_back(Span(guilty + 1, end))
            self._put_back(Span(first, guilty))
            first, end = guilty, guilty + 1
        if not self.rows.failed(first, end, error):
            self.give_up()

    def end_if_over(self) -> None:
        """Report it once if all rows have their outcomes."""
        if not self.alive and not self._to_make and not self._over:
            self.give_up()
            self.rows.finished()

    def give_up(self) -> None:
        """Cancel the parts in the scheduler and submit no more."""
        self._over = True
        self._make_no_more()
        alive, self.alive = self.alive, {}
        self._feeder.over(self)
        self._cancel(alive)

    def _make_no_more(self) -> None:
        self._queue.counts.expect(-sum([span.end - span.first for span in self._to_make]))
        self._to_make.clear()

    def _cancel(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if part.task is not None:
                self._inner.cancel(part.task)

    def fail(self, error: FarmError, *, only_waiting: bool = False) -> int:
        """Fail the rows that have no outcome; return how many calls these count as.

        only_waiting: those that are not in the scheduler.
        """
        spans, count = list(self._to_make), 0
        self._make_no_more()
        if not only_waiting:
            alive, self.alive = self.alive, {}
            self._cancel(alive)
            spans = [*[part.span for part in alive], *spans]
        for span in spans:
            count += 1 if self.rows.is_one_call else span.end - span.first
            if not self.rows.failed(span.first, span.end, error):
                self.give_up()
                break
        self.end_if_over()
        return count


def _guilty(error: FarmError, first: int, end: int) -> int | None:
    """Return the row that an error concerns, if it is known; the others may be run again."""
    row = error.row
    return None if row is None or not 0 <= row < end - first else first + row


class Feeder:
    """Starts the parts of a dispatcher's partitioned calls, call by call in turn.

    put_off: the calls that want more parts in the scheduler. ids: see `StageContext`.
    """

    def __init__(self, context: StageContext) -> None:
        self._scheduler = context.scheduler
        self._turns = context.turns
        self._descriptions = context.descriptions
        self._ended = context.listeners.ended
        self.ids = context.ids
        self._open: dict[TaskId, PartitionedRows] = {}
        self.put_off: OrderedDict[PartitionedRows, None] = OrderedDict()
        context.listeners.on_joined.append(self._joined)

    def __len__(self) -> int:
        return len(self._open)

    def begin_call(
        self, call: Call, hints: Hints, done: OnDone, now: float, inner: CallStage
    ) -> TaskId:
        """Start a call of which `inner` gets the parts. Raises FarmError if part one is refused."""

        def end(outcome: Outcome) -> None:
            self._ended.whole(call, outcome, hints, now)
            done(outcome)

        info = self._descriptions.find(call.model, call.config)
        if not call.rows:  # its shapes are the answer
            info = info or self._descriptions.models[call.model]
        rows = WholeCall(call, info, end)
        return self.begin(rows, call.model, call.operation, hints, now, inner)

    def begin(
        self, rows: Rows, model: str, operation: Operation, hints: Hints, now: float, to: CallStage
    ) -> TaskId:
        """Start rows and return their id, below 0. Raises FarmError if part one is refused.

        operation: of the queue that limits them; to: the stage that gets the parts.
        """
        queue = self._scheduler.queue(model, operation)
        parts = PartitionedRows(self, rows, queue, hints, now, to)
        self._open[parts.id] = parts
        try:
            if len(rows):
                parts.start_next()
        except FarmError:
            parts.give_up()
            raise
        self.look_at(parts)
        if not len(rows):
            self.put_off[parts] = None  # it ends there
            self._turns.later()
        return parts.id

    def look_at(self, parts: PartitionedRows) -> None:
        """Note whether a call wants more parts in the scheduler."""
        if parts not in self.put_off and parts.wants_more():
            self.put_off[parts] = None
            self._turns.later()

    def turn(self) -> None:
        """Start parts of the calls that want more, and go on in a later turn if some still do.

        If the queue is full, a call waits until there is room: this is called again after any fact.
        """
        left = PARTS_A_TURN
        refused: list[PartitionedRows] = []
        while self.put_off and left > 0:
            parts, _ = self.put_off.popitem(last=False)
            parts.end_if_over()
            most = left - PARTS_IN_A_ROW
            while parts.wants_more():
                if left <= max(0, most):
                    self.put_off[parts] = None
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
        if self.put_off:
            self._turns.later()
        self.put_off.update(dict.fromkeys(refused))

    def more(self, call_id: TaskId) -> None:
        """Check again whether a call wants more parts, as more of its rows may be open now."""
        parts = self._open.get(call_id)
        if parts is not None:
            self.look_at(parts)

    def _joined(self, *_: object) -> None:
        """Check all calls again, as a worker has joined that may take more parts."""
        for parts in self._open.values():
            self.look_at(parts)

    def drop(self, call_id: TaskId) -> None:
        """Cancel the parts of a call of which no row is wanted any more."""
        parts = self._open.get(call_id)
        if parts is not None:
            parts.drop()

    def of_client(self, client: str, chain: str | None) -> list[TaskId]:
        """Return the calls of a client, or of one of its chains."""
        of_client = [parts for parts in self._open.values() if parts.hints.client == client]
        return [parts.id for parts in of_client if chain in (None, parts.hints.chain)]

    def fail_waiting(self, call_id: TaskId, error: FarmError) -> tuple[int, list[TaskId]]:
        """Answer the rows of a call that are not in the scheduler.

        Returns how many calls these count as, and the tasks of the others; of another call itself.
        """
        parts = self._open.get(call_id)
        if parts is None:
            return 0, [call_id]
        count = parts.fail(error, only_waiting=True)
        return count, [part.task for part in parts.alive if part.task is not None]

    def cancel(self, call_id: TaskId) -> bool:
        """Cancel a call: outcomes of its rows are no longer reported. False if it is not open."""
        parts = self._open.get(call_id)
        if parts is None:
            return False
        parts.give_up()
        return True

    def over(self, parts: PartitionedRows) -> None:
        """Forget a call."""
        self._open.pop(parts.id, None)
        self.put_off.pop(parts, None)

    def fail_all(self, error: FarmError) -> None:
        """Fail all rows of all calls that have no outcome with `error`."""
        for parts in list(self._open.values()):
            parts.fail(error)
