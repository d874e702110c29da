"""Answers calls from evaluations that a memory has kept, and joins calls that ask for the same.

A call whose evaluation is kept needs no worker. A call for the same as another that is in the
scheduler waits for that one's outcome. Of a call of many rows, only those rows go to the scheduler
that the memory does not have, each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from farm.call import NO_HINTS, Call, Hints, Result, WorkerInfo
from farm.dispatcher.events import Departure
from farm.dispatcher.feeder import Part
from farm.dispatcher.flights import Flight, Moved, SomeRows, Waiter
from farm.dispatcher.rows import numbered, some_rows, stacked
from farm.dispatcher.statistics import Statistics, calls_of
from farm.errors import FarmError
from farm.scheduler.actions import Outcome, Reply
from farm.scheduler.state import TaskId

OnDone = Callable[[Outcome], None]
Begin = Callable[[Call, Hints, OnDone, float, tuple[str, ...]], TaskId]


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


class Reuse:
    """The calls of one dispatcher that are answered without a worker, and those that wait.

    begin, drop: submit a call to the scheduler, and cancel it there. in_parts: submits a call of
    many rows part by part. new_id: returns ids that no task has. soon: schedules a call of
    `answer`. statistics: count the calls that are answered without a run of their own.
    """

    def __init__(
        self,
        memory: Memory,
        begin: Begin,
        drop: Callable[[TaskId], object],
        in_parts: Callable[[Call, Hints, OnDone], TaskId],
        new_id: Callable[[], TaskId],
        soon: Callable[[], None],
        statistics: Statistics,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._begin = begin
        self._drop = drop
        self._in_parts = in_parts
        self._new_id = new_id
        self._soon = soon
        self._statistics = statistics
        self._clock = clock
        self._flights: dict[bytes, Flight] = {}
        self._of_task: dict[TaskId, Flight] = {}
        self._waiting: dict[TaskId, Flight] = {}
        self._moved: dict[TaskId, TaskId] = {}
        self._answers: dict[TaskId, tuple[OnDone, Call, Result, Hints]] = {}

    def start(
        self, call: Call, hints: Hints, on_done: OnDone, now: float, lost_on: tuple[str, ...]
    ) -> TaskId:
        """Answer a call from memory, or join it to another, or submit it; return its id.

        Raises FarmError if the scheduler does not accept it.
        """
        keys = self._memory.keys(call)
        if keys is None:
            return self._begin(call, hints, on_done, now, lost_on)
        known = [self._memory.find(key) for key in keys]
        if isinstance(on_done, Part):
            return self._start_part(call, keys, known, hints, on_done, now, lost_on)
        if len(keys) > 1 and self._flights:
            pairs = zip(keys, known, strict=True)
            if any(self._flight(key, found, hints) is not None for key, found in pairs):
                return self._in_parts(call, hints, on_done)
        return self._start_alike(call, keys, known, hints, on_done, now, lost_on)

    def _start_part(
        self,
        call: Call,
        keys: Sequence[bytes],
        known: Sequence[Result | None],
        hints: Hints,
        part: Part,
        now: float,
        lost_on: tuple[str, ...],
    ) -> TaskId:
        """Start the rows of a part, and those that are answered in other ways as further parts."""
        first = None
        while True:
            count = self._count_alike(keys, known, hints, is_one_call=part.parts.is_one_call)
            some = call if count == len(keys) else some_rows(call, slice(0, count))
            try:
                task = self._start_alike(
                    some, keys[:count], known[:count], hints, part, now, lost_on
                )
            except FarmError:
                if first is None:
                    raise
                part.again()
                return first
            if first is None:
                first = task
            else:
                part.task = task
            if count == len(keys):
                return first
            part = part.split(count)
            call, keys, known = some_rows(call, slice(count, None)), keys[count:], known[count:]

    def _count_alike(
        self,
        keys: Sequence[bytes],
        known: Sequence[Result | None],
        hints: Hints,
        *,
        is_one_call: bool,
    ) -> int:
        """Return how many rows from the first on are answered in the same way.

        These are rows in flight in one task, or known and unknown rows. If each row is a call that
        says whether it was reused, known and unknown ones are not mixed, nor equal ones.
        """
        flight = self._flight(keys[0], known[0], hints)
        is_mixed = is_one_call or flight is not None
        seen: set[bytes] = set()
        for row, (key, found) in enumerate(zip(keys, known, strict=True)):
            if self._flight(key, found, hints) is not flight:
                return row
            if is_mixed:
                continue
            if (found is None) != (known[0] is None) or key in seen:
                return row
            if found is None and not hints.is_limited:
                seen.add(key)
        return len(keys)

    def _flight(self, key: bytes, found: Result | None, hints: Hints) -> Flight | None:
        """Return the task that a call with these hints may wait for, if nothing was found."""
        flight = self._flights.get(key)
        if flight is None or found is not None:
            return None
        if hints.priority > flight.priority or hints.is_limited:
            return None
        return flight if len(flight.joined) < MOST_JOINED else None

    def _start_alike(
        self,
        call: Call,
        keys: Sequence[bytes],
        known: Sequence[Result | None],
        hints: Hints,
        on_done: OnDone,
        now: float,
        lost_on: tuple[str, ...],
    ) -> TaskId:
        """Start rows that are all in flight in one task, or none of which is in flight."""
        flight = self._flight(keys[0], known[0], hints)
        if flight is not None:
            joined = self._new_id()
            places = [flight.places[key] for key in keys]
            flight.joined[joined] = Waiter(places, on_done, call, hints, now)
            self._waiting[joined] = flight
            return joined
        numbers, rows = numbered(keys, known)
        if not rows:
            found = [result for result in known if result is not None]
            result = found[0] if call.rows is None else stacked(found)
            return self._answer_soon(on_done, call, result, hints)
        reused = len(keys) - len(rows)
        if reused:
            on_done = SomeRows(on_done, numbers, known)
            call = some_rows(call, rows)
            keys = [keys[row] for row in rows]
        if hints.is_limited:
            task = self._begin(call, hints, on_done, now, lost_on)
        else:
            flight = Flight(
                keys, on_done, hints.priority, self._landed, has_rows=call.rows is not None
            )
            flight.task = task = self._begin(call, hints, flight, now, lost_on)
            self._of_task[task] = flight
            for key in keys:
                self._flights.setdefault(key, flight)
        self._statistics.count_missed(call, len(keys))
        if reused:
            self._count(call, 0, reused, NO_HINTS)
        return task

    def _answer_soon(self, on_done: OnDone, call: Call, result: Result, hints: Hints) -> TaskId:
        answered = self._new_id()
        self._answers[answered] = on_done, call, result, hints
        self._soon()
        return answered

    def answer(self) -> None:
        """Answer the calls whose evaluations were found since the last time."""
        while self._answers:
            on_done, call, result, hints = self._answers.pop(next(iter(self._answers)))
            rows = result.rows_done(call.rows or 1)
            self._count(call, calls_of(on_done, rows), rows, hints)
            on_done(result)

    def _landed(self, flight: Flight, outcome: Outcome) -> None:
        """Report the outcome of a task to its own caller and to all that wait for it."""
        self._forget(flight)
        ends = [(k, flight.outcome_for(waiter, outcome)) for k, waiter in flight.joined.items()]
        if flight.on_done is not None:
            flight.on_done(outcome)
        for joined, end in ends:
            waiter = flight.joined.pop(joined, None)
            if waiter is None:
                continue  # an answer made its caller cancel it
            del self._waiting[joined]
            if end is None:
                self._again(joined, waiter)
                continue
            if isinstance(end, Result) and (rows := end.rows_done(len(waiter.rows))):
                calls = calls_of(waiter.on_done, rows)
                self._count(waiter.call, calls, rows, waiter.hints)
            waiter.on_done(end)

    def _again(self, joined: TaskId, waiter: Waiter) -> None:
        """Start a call that has waited for another one without getting an outcome."""
        if isinstance(waiter.on_done, Part):
            waiter.on_done.again()
            return
        moved = Moved(waiter.on_done, partial(self._moved.pop, joined, None))
        try:
            task = self.start(waiter.call, waiter.hints, moved, waiter.since, ())
        except FarmError as error:
            waiter.on_done(error)
        else:
            self._moved[joined] = task

    def _count(self, call: Call, calls: int, rows: int, hints: Hints) -> None:
        self._statistics.count_reused(call, calls, rows, hints, self._clock())

    def waiting_of(self, client: str, chain: str | None) -> list[TaskId]:
        """Return the calls of a client, or of one of its chains, that wait for another call."""
        return [
            joined
            for joined, flight in self._waiting.items()
            if (hints := flight.joined[joined].hints).client == client
            and chain in (None, hints.chain)
        ]

    def fail(self, joined: TaskId, error: FarmError) -> int:
        """Answer a call that waits for another call, and return how many calls it counts as."""
        flight = self._waiting.get(joined)
        if flight is None:
            return 0
        waiter = flight.joined[joined]
        self.cancel(joined)
        waiter.on_done(error)
        return max(1, calls_of(waiter.on_done, len(waiter.rows)))

    def cancel(self, task_id: TaskId) -> bool:
        """Cancel a call; False: its task, if it has one, must be cancelled in the scheduler.

        A task that others wait for goes on without its own caller.
        """
        moved = self._moved.pop(task_id, None)
        if moved is not None:
            if not self.cancel(moved):
                self._drop(moved)
            return True
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

    def _forget(self, flight: Flight) -> None:
        """Let later calls for the same rows start a task of their own."""
        for key in flight.keys:
            if self._flights.get(key) is flight:
                del self._flights[key]
        if flight.task is not None:
            self._of_task.pop(flight.task, None)

    def __len__(self) -> int:
        return len(self._answers)
