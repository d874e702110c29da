"""Answers calls from evaluations that a memory has kept, and joins calls that ask for the same.

A call whose evaluation is kept needs no worker. A call for the same as another that is in the
scheduler waits for that one's outcome. Of a call of many rows, only those rows go to the scheduler
that the memory does not have, each of them once. Rows that are answered in different ways are
different parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, Protocol

from farm.call import NO_HINTS, Call, Hints, Result, WorkerInfo
from farm.dispatcher.events import Departure
from farm.dispatcher.feeder import Feeder, Part
from farm.dispatcher.partition import OF_ROWS, some_rows, stacked
from farm.dispatcher.stage import OnDone, StageContext, tell
from farm.errors import FarmError, WorkerLost
from farm.scheduler.actions import Outcome, Reply
from farm.scheduler.state import TaskId

if TYPE_CHECKING:
    from farm.dispatcher.stages import Tasks

MOST_JOINED = 1000
"""Most calls that wait for one evaluation; further ones are queued, where limits apply to them."""


class Memory(Protocol):
    """Keeps finished evaluations. `reuses`: whether calls are answered from them."""

    reuses: bool

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Report that a worker joined, with the versions of its models; `before`: earlier start."""

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Report that a worker left."""

    def keep(self, replies: Iterable[Reply]) -> None:
        """Keep the evaluations that these replies answer; called before any of them is sent."""

    def keys(self, call: Call) -> Sequence[bytes] | None:
        """Return the key of each row of a call; None if it must not be answered from memory."""

    def find(self, key: bytes) -> Result | None:
        """Return the kept evaluation of a key, without a batch axis."""


class LookedUp(NamedTuple):
    """A call, or a part of one, with the key of each row and the evaluations that memory has.

    call, hints, done, now, lost_on: as they came to the stage.
    """

    call: Call
    hints: Hints
    done: OnDone
    now: float
    lost_on: tuple[str, ...]
    keys: Sequence[bytes]
    known: Sequence[Result | None]

    def some(self, rows: slice) -> LookedUp:
        """Return some of the rows."""
        keys, known = self.keys[rows], self.known[rows]
        return self._replace(call=some_rows(self.call, rows), keys=keys, known=known)


class Reusing:
    """The stage that answers calls without a worker, and lets others wait for one evaluation.

    feeder: starts a call of many rows in parts, each of which comes back to this stage.
    """

    def __init__(self, context: StageContext, memory: Memory, feeder: Feeder, inner: Tasks) -> None:
        self._memory = memory
        self._feeder = feeder
        self._inner = inner
        self._ids = context.ids
        self._turns = context.turns
        self._view = context.scheduler.view
        self._ended = context.listeners.ended
        self._flights: dict[bytes, Flight] = {}
        self._of_task: dict[TaskId, Flight] = {}
        self._waiting: dict[TaskId, Flight] = {}
        self._moved: dict[TaskId, TaskId] = {}
        self.put_off: dict[TaskId, LookedUp] = {}  # they are known

    def start(
        self, call: Call, hints: Hints, done: OnDone, now: float, lost_on: tuple[str, ...] = ()
    ) -> TaskId:
        """Answer a call from memory, or join it to another, or pass it on; return its id.

        Raises FarmError if the scheduler does not accept it.
        """
        keys = self._memory.keys(call)
        if keys is None:
            return self._inner.start(call, hints, done, now, lost_on)
        known = [self._memory.find(key) for key in keys]
        if hints.is_limited:  # no other call waits for its rows, which may run out of time
            own = done.parts.id if isinstance(done, Part) else next(self._ids)
            keys = [b"%d %b" % (own, key) for key in keys]
        asked = LookedUp(call, hints, done, now, lost_on, keys, known)
        if isinstance(done, Part):
            return self._start_part(asked, done)
        if len(keys) > 1 and self._count_alike(asked) < len(keys):
            return self._feeder.begin_call(call, hints, done, now, self)
        return self._start_alike(asked)

    def _start_part(self, asked: LookedUp, part: Part) -> TaskId:
        """Start the rows of a part, and those that are answered in other ways as further parts."""
        first = None
        while True:
            count = self._count_alike(asked)
            is_last = count == len(asked.keys)
            try:
                task = self._start_alike(asked if is_last else asked.some(slice(0, count)))
            except FarmError:
                if first is None:
                    raise
                part.parts.again(part)
                return first
            if first is None:
                first = task
            else:
                part.task = task
            if is_last:
                return first
            part = part.parts.split(part, count)
            asked = asked.some(slice(count, None))._replace(done=part)

    def _count_alike(self, asked: LookedUp) -> int:
        """Return how many rows from the first on are answered in the same way.

        These are known rows, rows in flight in one task, or rows that run, each of them once.
        """
        keys, known, hints = asked.keys, asked.known, asked.hints
        flight = self._flight(keys[0], known[0], hints)
        runs, seen = flight is None and known[0] is None, set[bytes]()
        for row, (key, found) in enumerate(zip(keys, known, strict=True)):
            is_alike = (found is None) == (known[0] is None)
            if not is_alike or self._flight(key, found, hints) is not flight or key in seen:
                return row
            if runs:
                seen.add(key)
        return len(keys)

    def _flight(self, key: bytes, found: Result | None, hints: Hints) -> Flight | None:
        """Return the task that a call with these hints may wait for, if nothing was found."""
        flight = self._flights.get(key)
        if flight is None or found is not None:
            return None
        waits = hints.priority <= flight.priority and len(flight.joined) < MOST_JOINED
        return flight if waits else None

    def _start_alike(self, asked: LookedUp) -> TaskId:
        """Start rows that are answered in the same way."""
        call, hints, done, now, lost_on, keys, known = asked
        flight = self._flight(keys[0], known[0], hints)
        if flight is not None:
            joined = next(self._ids)
            flight.joined[joined] = asked
            self._waiting[joined] = flight
            return joined
        if known[0] is not None:
            answered = next(self._ids)
            self.put_off[answered] = asked
            self._turns.soon()
            return answered
        flight = Flight(keys, done, hints.priority, call.rows is not None, self)
        flight.task = task = self._inner.start(call, hints, flight, now, lost_on)
        self._of_task[task] = flight
        for key in keys:
            other = self._flights.setdefault(key, flight)
            if other.priority < flight.priority:
                self._flights[key] = flight
        self._ended.reused(call, NO_HINTS, calls=0, rows=0, missed=len(keys))
        return task

    def turn(self) -> None:
        """Answer the calls whose evaluations were found since the last time."""
        while self.put_off:
            asked = self.put_off.pop(next(iter(self.put_off)))
            found = [result for result in asked.known if result is not None]
            rows = len(found)
            result = found[0] if asked.call.rows is None else stacked(found)
            calls, _ = tell(asked.done, result, rows)
            self._ended.reused(asked.call, asked.hints, calls=calls, rows=rows)

    def landed(self, flight: Flight, outcome: Outcome) -> tuple[int, int]:
        """Report the outcome of a task to its own caller and to all that wait for it."""
        self._forget(flight)
        ends = [(k, flight.outcome_for(waiter, outcome)) for k, waiter in flight.joined.items()]
        calls, fails = tell(flight.on_done, outcome, len(flight.keys))
        for joined, end in ends:
            waiter = flight.joined.pop(joined, None)
            if waiter is None:
                continue  # an answer made its caller cancel it
            del self._waiting[joined]
            if end is None:
                self._again(joined, waiter)
                continue
            rows = end.rows_done(len(waiter.keys)) if isinstance(end, Result) else 0
            reused, failed = tell(waiter.done, end, rows)
            fails += failed
            if rows:
                self._ended.reused(waiter.call, waiter.hints, calls=reused, rows=rows)
        if flight.on_done is None and isinstance(outcome, FarmError):
            calls = min(1, fails)
        return calls, fails

    def _again(self, joined: TaskId, waiter: LookedUp) -> None:
        """Start a call that has waited for another one without getting an outcome."""
        done = waiter.done
        if isinstance(done, Part):
            done.parts.again(done)
            return

        def moved(outcome: Outcome) -> tuple[int, int] | None:
            self._moved.pop(joined, None)
            return done(outcome)

        try:
            task = self.start(waiter.call, waiter.hints, moved, waiter.now)
        except FarmError as error:
            done(error)
        else:
            self._moved[joined] = task

    def waiting(self, client: str, chain: str | None) -> list[TaskId]:
        """Return the calls of a client that wait for a worker, or for another call."""
        joined = [
            joined
            for joined, flight in self._waiting.items()
            if (hints := flight.joined[joined].hints).client == client
            and chain in (None, hints.chain)
        ]
        return [*self._inner.waiting(client, chain), *joined]

    def fail(self, task_id: TaskId, error: FarmError) -> int:
        """Answer a call if it waits for a worker, or for another call; return how many it is."""
        flight = self._waiting.get(task_id)
        if flight is not None:
            waiter = flight.joined[task_id]
            done, rows = waiter.done, len(waiter.keys)
        else:
            flight, task = self._of_task.get(task_id), self._view.task(task_id)
            if flight is None or not flight.joined:
                return self._inner.fail(task_id, error)
            if flight.on_done is None or task is None or task.line is None:
                return 0  # only others wait for it, or a worker has it
            done, rows = flight.on_done, task.rows
        self.cancel(task_id)
        return max(1, tell(done, error, rows)[0])

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call. A task that others wait for goes on without its own caller."""
        moved = self._moved.pop(task_id, None)
        if moved is not None:
            return self.cancel(moved)
        if self.put_off.pop(task_id, None) is not None:
            return True
        flight = self._waiting.pop(task_id, None)
        if flight is not None:
            del flight.joined[task_id]
            if flight.on_done is None and not flight.joined and flight.task is not None:
                self._forget(flight)
                self._inner.cancel(flight.task)
            return True
        flight = self._of_task.get(task_id)
        if flight is not None:
            if flight.joined:
                is_open, flight.on_done = flight.on_done is not None, None
                return is_open
            self._forget(flight)
        return self._inner.cancel(task_id) or self._feeder.cancel(task_id)

    def _forget(self, flight: Flight) -> None:
        """Let later calls for the same rows start a task of their own."""
        for key in flight.keys:
            if self._flights.get(key) is flight:
                del self._flights[key]
        if flight.task is not None:
            self._of_task.pop(flight.task, None)


@dataclass(eq=False, repr=False)
class Flight:
    """A task in the scheduler: its own caller, and the others that wait for rows of it."""

    keys: Sequence[bytes]
    on_done: OnDone | None
    priority: int
    has_rows: bool
    _reusing: Reusing
    task: TaskId | None = None
    joined: dict[TaskId, LookedUp] = field(default_factory=dict)

    def __call__(self, outcome: Outcome) -> tuple[int, int]:
        return self._reusing.landed(self, outcome)

    @cached_property
    def places(self) -> Mapping[bytes, int]:
        """The row of each key."""
        return {key: row for row, key in enumerate(self.keys)}

    def outcome_for(self, waiter: LookedUp, outcome: Outcome) -> Outcome | None:
        """Return a waiter's part of the task's outcome; None if it says nothing about its rows.

        As that of a run of rows it may end at the first row that failed, or that was not reached.
        """
        asked_for = [self.places[key] for key in waiter.keys]
        first = asked_for[0]
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
        rows = list(takewhile(lambda row: row < done, asked_for))
        stopped_at = asked_for[len(rows)] if len(rows) < len(asked_for) else -1
        if not self.has_rows:
            is_row = waiter.call.rows is not None
            outputs = tuple([array[None] if is_row else array for array in outcome.outputs])
        elif waiter.call.rows is None:
            outputs = tuple([array[first, ...] for array in outcome.outputs])
        else:
            outputs = tuple([array[rows] for array in outcome.outputs])
        share = len(rows) / done if outcome.batch_rows == 1 else 1.0
        return replace(
            outcome,
            outputs=outputs,
            run_time_s=outcome.run_time_s * share,
            failed=outcome.failed if stopped_at == done else None,
            reused=True,
            copied=False,
        )


def _failed(waiter: LookedUp, error: FarmError) -> Outcome:
    return error if len(waiter.keys) == 1 else Result((), failed=error)
