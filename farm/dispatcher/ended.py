"""The stream of ended calls: one record for each; whatever counts calls is a window over it.

On the path of a call its record is appended, and nothing else is done. The windows take records in
batches: when some have come, in the next turn of the event loop, and before anyone reads a window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from farm.call import QUESTIONS, Call, CallerName, Hints, Operation, Result
from farm.errors import FarmError, Unavailable
from farm.scheduler.actions import Outcome, Reply
from farm.scheduler.state import TaskId

BATCH = 32
"""Records that are folded in the next turn of the event loop; fewer wait for others."""

FULL = 1024
"""Records that are folded at once."""


class Ending(Enum):
    """The kinds of things that end."""

    ANSWERED = auto()
    """A task with its outcome: a call, or a part of one; or a run of rows answered some of them."""
    WHOLE = auto()
    """A call whose tasks counted as none."""
    REUSED = auto()
    """Calls, or rows of one, that were answered without a run of their own.

    Rows that are not done could be answered so, but run, as no evaluation of them is known.
    """
    REFUSED = auto()
    """Calls that the farm did not accept."""


ANSWERED, WHOLE, REUSED, REFUSED = Ending
NO_TASK = TaskId(-1)


@dataclass(frozen=True, slots=True)
class Failure:
    """Calls that failed with one error, which their callers get.

    calls: their number; call: what the worker was asked, for them and, in a batch, for others; row:
    of it, the row that failed, if that is known. worker: the last one that had it, or empty.
    """

    error: FarmError
    calls: int
    call: Call
    row: int | None
    worker: str
    client: str


@dataclass(slots=True)
class EndedCall:
    """The record of one ended call: its client, its worker, its times and its outcome.

    began, at: when it was taken and when it ended, monotonic times. calls_done, calls_failed: how
    many calls it counts as; both 0: its call is counted later. rows: how many it has; done: how
    many of them have results. is_run: these ran one after another. error: of the task, or of its
    row after those done; failure: the calls that failed for good with it. chain: the name that
    status shows, unless the task has it. worker: the process that ran it; seat: the worker that the
    scheduler knows. ran: whether a result came. Then there are run_s, the run time; row_s, that of
    each row of a run; worker_s, its share of the run time, by rows; queue_s and idle_s, the waits
    before it, of the call and of the worker; and batch_rows, the rows of all calls that ran
    together. waited: no worker was idle when the task came. copied: it had a copy. more: other rows
    of the task have no answer yet. losses: how many workers were lost with it.
    """

    ending: Ending
    model: str
    operation: Operation
    client: str
    began: float
    at: float
    calls_done: int = 1
    calls_failed: int = 0
    rows: int = 0
    done: int = 0
    is_run: bool = False
    error: FarmError | None = None
    failure: Failure | None = None
    task: TaskId = NO_TASK
    worker: str = ""
    seat: str = ""
    ran: bool = False
    run_s: float = 0.0
    row_s: float = 0.0
    worker_s: float = 0.0
    queue_s: float = 0.0
    idle_s: float = -1.0
    batch_rows: int = 1
    waited: bool = False
    copied: bool = False
    more: bool = False
    losses: int = 0
    chain: CallerName | None = None


def to_unix() -> float:
    """Return what makes a Unix time of a monotonic one, by addition."""
    return time.time() - time.monotonic()


class Window(Protocol):
    """A view of the stream, such as counts of models or the reasons of failures."""

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Take the records since the last time."""


class EndedCalls:
    """The stream of one dispatcher, and its windows. A reader of a window folds first."""

    def __init__(self) -> None:
        self._new: list[EndedCall] = []
        self._windows: list[Window] = []
        self._folds_soon = False

    def add_window(self, window: Window) -> None:
        """Give a window all records from now on."""
        self._windows.append(window)

    def add(self, ended: EndedCall) -> None:
        """Append a record."""
        self._new.append(ended)
        if (count := len(self._new)) < BATCH and ended.failure is None:
            return
        if count >= FULL:
            self.fold()
        elif not self._folds_soon:
            self._folds_soon = True
            asyncio.get_running_loop().call_soon(self.fold)

    def fold(self) -> None:
        """Give the new records to all windows."""
        self._folds_soon = False
        records, self._new = self._new, []
        for window in self._windows if records else ():
            window.fold(records)

    def answered(self, reply: Reply, outcome: Outcome, calls: int, fails: int, now: float) -> None:
        """Record an answer to a task, which counts as `calls` calls, of which `fails` fail."""
        task = reply.task
        call, rows, is_run = task.call, task.rows, task.is_run
        client, seat = task.account.client.name, reply.worker or ""
        if isinstance(outcome, Result):
            run, ran, error = outcome, True, outcome.failed
            done = 1 if rows == 1 and error is None else run.rows_done(rows)
        else:
            run, ran, error, done = NO_RUN, False, outcome, 0
        failure = None
        if fails and error is not None:
            row = done if ran else error.row
            failure = Failure(error, fails, call, row, run.worker or seat, client)
        run_s, batch_rows = run.run_time_s, run.batch_rows
        if batch_rows < rows or is_run:
            batch_rows = 1 if is_run else rows
        self.add(
            EndedCall(  # by position: with names it takes twice the time
                ANSWERED,
                call.model,
                call.operation,
                client,
                task.submitted_at,
                now,
                done if calls == rows else calls if error is None else 0,
                0 if error is None else min(1, calls) if ran else calls,
                rows,
                done,
                is_run,
                error,
                failure,
                task.id,
                run.worker,
                seat,
                ran,
                run_s,
                run_s / done if is_run and done else run_s,
                run_s if is_run else run_s * rows / batch_rows,
                run.queue_time_s,
                run.idle_s,
                batch_rows,
                ran and (task.attempt.refill or not task.attempt.alone),
                run.copied,
                run.more,
                len(task.past.lost_on) if task.past.lost_on else 0,
            )
        )

    def whole(self, call: Call, outcome: Outcome, hints: Hints, began: float) -> None:
        """Record the outcome of a call whose tasks counted as none."""
        if isinstance(outcome, Result):
            self._add(WHOLE, call, hints, 1, 0, began=began, queue_s=outcome.queue_time_s)
        else:
            self._add(WHOLE, call, hints, 0, 1, began=began, error=outcome)

    def reused(self, call: Call, hints: Hints, *, calls: int, rows: int, missed: int = 0) -> None:
        """Record calls, or rows of one, that were answered without a run of their own.

        call: one of them. missed: how many rows run because no evaluation of them is known.
        """
        self._add(REUSED, call, hints, calls, 0, rows=rows + missed, done=rows)

    def refused(self, call: Call, hints: Hints, error: FarmError, calls: int = 1) -> None:
        """Record calls that the farm did not accept, unless they are questions about a model.

        Patient callers try again while the farm is unavailable; their call has not failed then.
        """
        if call.operation in QUESTIONS or (hints.patient and isinstance(error, Unavailable)):
            return
        failure = Failure(error, calls, call, None, "", hints.client)
        self._add(REFUSED, call, hints, 0, calls, error=error, failure=failure)

    def _add(
        self, ending: Ending, call: Call, hints: Hints, done: int, failed: int, /, **more: Any
    ) -> None:
        now = time.monotonic()
        about = ending, call.model, call.operation, hints.client, more.pop("began", now), now
        self.add(EndedCall(*about, done, failed, chain=hints.shown_as, **more))


NO_RUN = Result(())
