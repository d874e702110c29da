"""The scheduler's records of calls: Task, Attempt, Lot.

Only the scheduler changes these; other code reads through `Scheduler.view`.
"""

from __future__ import annotations

from copy import copy as copy_of
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, NewType

from farm.call import Call, Operation, Result
from farm.errors import FarmError
from farm.scheduler.phases import (
    ATTEMPTS,
    HELD,
    LOST,
    OUTRUN,
    QUEUED,
    TASKS,
    AttemptPhase,
    TaskPhase,
)
from farm.scheduler.run_times import FEW_RUNS, SAMPLED, RunTimes
from farm.transitions import PhaseEvent

if TYPE_CHECKING:
    from farm.scheduler.accounts import Account, Chain
    from farm.scheduler.queues import ClientTasks, Queue
    from farm.scheduler.sequences import LiveSequence
    from farm.scheduler.workers import Worker

TaskId = NewType("TaskId", int)
WorkerId = NewType("WorkerId", str)

IDLE_SHARE = 0.25
"""A call waited for no other if its worker idled for this fraction of the time that sending it
took.

That time is then a round trip. A shorter idle time is what a worker needs between two calls, which
prefetching cannot remove.
"""

ENDS_ABOUT_S = 10.0
"""Allowed clock skew between two machines when the end of a job is judged."""

TASK_SENT = TASKS.event("sent")
TASK_OUTRUN = TASKS.event("answered first")
ATTEMPT_ANSWERED = ATTEMPTS.event("answered")


class Past(NamedTuple):
    """The history of a task, beyond waiting and one sending.

    former: attempts that are over, although their workers may still answer. lost_on: how it was
    lost before. copied: whether there ever was a copy. answers: of a stream that continues. row:
    the one that is left of a run that was split; -1: it was not.
    """

    former: tuple[Attempt, ...] = ()
    lost_on: tuple[str, ...] = ()
    copied: bool = False
    answers: int = 0
    row: int = -1


NOTHING_YET = Past()


@dataclass(eq=False, repr=False, slots=True)
class Task:
    """The record of one Call from submission to reply.

    attempt: the current or last sending; not set before the first. copy: a second attempt in
    progress, at another worker. calls: that wait for it, one for each row of a run, and of gathered
    calls; callers: of these calls. is_run: its rows run one after another. times: of its kind.
    line: where it waits. passed_at: when another went first to find its worker warm.
    """

    id: TaskId
    call: Call
    queue: Queue
    times: RunTimes
    account: Account
    chain: Chain
    priority: int
    submitted_at: float
    batch_key: object
    rows: int
    is_run: bool
    callers: int
    calls: int
    phase: TaskPhase = QUEUED
    line: ClientTasks | None = None
    attempt: Attempt = field(init=False)
    copy: Attempt | None = None
    past: Past = NOTHING_YET
    passed_at: float | None = None
    sequence: LiveSequence | None = None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Return all attempts of an open task; first those that are over, in the order of ends."""
        if self.phase is QUEUED:
            return self.past.former
        return (*self.past.former, self.attempt, *(() if self.copy is None else (self.copy,)))

    @property
    def run_length(self) -> int:
        """The rows that follow one another in its run; all rows of a call run at once."""
        return self.rows if self.is_run else 1

    def ended(self, outcome: Result | FarmError) -> int:
        """Return how many evaluations succeeded with this outcome; each row of a run counts."""
        if isinstance(outcome, FarmError):
            return 0
        if self.is_run:
            return outcome.rows_done(self.rows)
        return int(outcome.failed is None)

    def at(self, worker: Worker) -> Attempt:
        """Return the attempt at a worker that holds the task."""
        copy = self.copy
        return self.attempt if copy is None or copy.worker is not worker else copy

    # Changes

    def send(self, attempt: Attempt) -> None:
        """Note that the task is sent to a worker."""
        self.phase = TASK_SENT[self.phase]
        self.attempt = attempt

    def send_copy(self, copy: Attempt) -> None:
        """Note that the task is sent to a second worker as well."""
        self.copy = copy
        self.past = self.past._replace(copied=True)

    def pass_by(self, now: float) -> None:
        """Note that another goes first, whose worker is warm."""
        self.passed_at = now

    def change(self, event: PhaseEvent[TaskPhase]) -> None:
        """Note an event that changes its phase alone."""
        self.phase = event[self.phase]

    def add_former(self, attempt: Attempt) -> None:
        """Note that an attempt is over, although its worker may still answer."""
        self.past = self.past._replace(former=(*self.past.former, attempt))

    def lose(self, *how: str) -> None:
        """Note losses; from now on it runs alone, so that only a faulty call fails."""
        self.past = self.past._replace(lost_on=self.past.lost_on + how)

    def run_alone(self) -> None:
        """Let the task share no batch."""
        self.batch_key = None

    def goes_on(self) -> None:
        """Count an answer of a stream that continues."""
        self.past = self.past._replace(answers=self.past.answers + 1)

    def end(self, event: PhaseEvent[TaskPhase]) -> None:
        """End; its client's part has ended before if another worker has answered."""
        phase = self.phase
        if phase is OUTRUN:
            self.queue.counts.stay_one(self.calls)
            self.attempt.worker.count_outrun(-1)
        else:
            self.account.closed(self.chain, self.callers)
        self.phase = event[phase]

    def prefer(self, attempt: Attempt) -> Attempt:
        """Make `attempt` the first one, which holds its client's slot and charge; return it."""
        other = self.attempt
        if attempt is not other:
            attempt.take_over(other)
            self.attempt, self.copy = attempt, other
        return attempt

    def ends_at(self, worker: Worker) -> Attempt:
        """Return the attempt at `worker`, which ends without an answer; any other one goes on.

        That one is then the only attempt.
        """
        attempt = self.attempt
        if self.copy is not None:
            if attempt.worker is worker:
                self.prefer(self.copy)
            else:
                attempt = self.copy
            self.copy = None
            self.queue.counts.stay_one(self.calls)
        return attempt

    def outrun(self) -> Worker:
        """Settle the answer of one attempt while the other goes on; return the other's worker.

        Nothing depends on the other attempt any more.
        """
        loser = self.copy
        assert loser is not None, "two attempts were in progress"
        self.phase = TASK_OUTRUN[self.phase]
        self.add_former(self.attempt)
        self.attempt, self.copy = loser, None
        self.account.closed(self.chain, self.callers)
        loser.worker.count_outrun(1)
        return loser.worker

    def begin(self, sequence: LiveSequence) -> None:
        """Belong to a sequence from now on."""
        self.sequence = sequence

    def split(self, attempt: Attempt, done: Result) -> Task:
        """Go on as the row that its worker runs; return another, already over, of those before it.

        A worker splits a run because one row takes long: it answers those before it at once and
        leaves those behind it to others. Its last answer contains all rows up to that one, as does
        one of a worker that has, or had, the whole run. done: the first answer.
        """
        count, callers, calls = len(done.row_times_s), self.callers, self.calls
        over = copy_of(self)
        over._keep(0, count)
        self._keep(count, count + 1)
        if callers > 1:  # otherwise all rows have one caller
            self.account.usage.remove_callers(self.chain, callers - self.callers)
        self.past = self.past._replace(row=count)
        answered = count if self.phase.has_caller else 0
        self.queue.counts.split(calls - self.calls, answered, copied=self.copy is not None)
        attempt.split(done.run_time_s)
        attempt.worker.answers.add_rows(count)
        if count:
            self.times.add(done.run_time_s / count)
        return over

    def _keep(self, first: int, end: int) -> None:
        """Ask for some rows of a run, as another task does for the others."""
        inputs = tuple([array[first:end] for array in self.call.inputs])
        self.call = replace(self.call, inputs=inputs, rows=end - first)
        self.rows = rows = (end - first) or 1
        self.is_run = self.is_run and rows > 1
        self.callers = min(rows, self.callers)
        self.calls = min(rows, self.calls)


@dataclass(eq=False, repr=False, slots=True)
class Attempt:
    """One sending of a task to a worker.

    held, charged_s: the slot share and the charge of its client, which had `weight` callers.
    alone: the worker had no other task; refill: and it had answered another since the task arrived.
    is_copy: the task ran elsewhere when it was sent.
    """

    worker: Worker
    lot: Lot | None
    held: int
    charged_s: float
    sent_at: float
    weight: int
    alone: bool
    refill: bool = False
    is_copy: bool = False
    phase: AttemptPhase = HELD
    # Set if it ends without an answer.
    ended_at: float = field(init=False)
    why: str = field(init=False)

    def take_over(self, other: Attempt) -> None:
        """Take over the slot and the charge of another attempt."""
        self.held, self.charged_s, self.weight = other.held, other.charged_s, other.weight
        other.held, other.charged_s = 0, 0.0

    def change(self, event: PhaseEvent[AttemptPhase]) -> None:
        """Note an event that changes its phase alone."""
        self.phase = event[self.phase]

    def end(self, event: PhaseEvent[AttemptPhase], why: str, now: float) -> None:
        """End the attempt without an answer, which may still come late."""
        self.phase = event[self.phase]
        self.ended_at = now
        self.why = why

    def fail(self) -> None:
        """End the attempt with an error: its client stays charged for the estimate."""
        self.phase = ATTEMPT_ANSWERED[self.phase]
        self.charged_s = 0.0

    def answer(self, task: Task, outcome: Result, now: float) -> None:
        """End the attempt with an answer: charge the client for the run, and record its time.

        Not if another worker has answered before.
        """
        self.phase = ATTEMPT_ANSWERED[self.phase]
        if task.phase is OUTRUN:
            return
        times, lot, run_time_s = task.times, self.lot, outcome.run_time_s
        used_s = run_time_s if lot is None else run_time_s * task.rows / lot.rows
        self.charged_s -= used_s / self.weight
        gap_s = now - self.sent_at - run_time_s
        if (self.alone and len(self.worker.held) == 1) or outcome.idle_s > IDLE_SHARE * gap_s:
            times.add_round_trip(gap_s)
        elif 0.0 < gap_s - outcome.queue_time_s < times.round_trip_s:
            # A round trip is shorter: the call waited behind others, and its answer may have too.
            times.add_round_trip(gap_s - outcome.queue_time_s)
        if lot is None:
            times.add(run_time_s)
        elif not lot.timed:  # the calls of a batch all report the same run
            lot.timed = True
            if task.is_run:
                run_time_s /= max(1, outcome.rows_done(task.rows))
            times.add(run_time_s)
            if lot.cold or times.count < FEW_RUNS or times.count % SAMPLED == 0:
                task.queue.kinds.learn_warm_up(times, run_time_s, cold=lot.cold)

    def split(self, run_time_s: float) -> None:
        """Charge the client for the rows that are answered before the one which is left."""
        self.charged_s -= run_time_s / self.weight
        if self.lot is not None:
            self.lot.keep_row()

    @property
    def outlasted_s(self) -> float:
        """Its run time in seconds if it ran until its worker's time was over; 0 otherwise."""
        worker = self.worker
        if self.phase is not LOST or self.ended_at < worker.ends_at - ENDS_ABOUT_S:
            return 0.0
        return self.ended_at - worker.began(self.sent_at)


@dataclass(eq=False, slots=True)
class Lot:
    """Tasks that take one unit of a worker's credit: one call, or one batch.

    exclusive: nothing may wait behind it, because it runs long, for an unknown time, or is a
    suspect. cold: the worker ran another config of the model before, or nothing.
    """

    size: int
    remaining: int
    rows: int
    exclusive: bool
    cold: bool
    timed: bool = False

    def keep_row(self) -> None:
        """Go on with one row of a run."""
        self.rows = 1


def needs_no_slot(operation: Operation) -> bool:
    """Whether a worker answers this operation while it runs something else."""
    return operation is Operation.DESCRIBE
