"""The scheduler's records (Task, Attempt, Lot, Worker) and run-time statistics.

Only the scheduler changes these; other code reads through `Scheduler.snapshot()`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NewType

from farm.call import Call, Operation, Result
from farm.errors import FarmError
from farm.scheduler.phases import (
    HELD,
    OPEN,
    QUEUED,
    SHUT,
    WORKERS,
    AttemptPhase,
    TaskPhase,
    WorkerPhase,
)
from farm.transitions import PhaseEvent

if TYPE_CHECKING:
    from farm.scheduler.accounts import Account, Chain
    from farm.scheduler.placement import Pool
    from farm.scheduler.queues import ClientTasks, ModelQueues, Queue
    from farm.scheduler.sequences import LiveSequence

TaskId = NewType("TaskId", int)
WorkerId = NewType("WorkerId", str)

WORKER_FULL = WORKERS.event("stops reading")
WORKER_READS = WORKERS.event("reads on")
WORKER_SHUT = WORKERS.event("offers no slot")
WORKER_OPEN = WORKERS.event("offers slots")

MAX_PREFETCH = 256
"""Maximum calls that may wait at a worker; larger messages save nothing (measured)."""

LONG_RUN_ROUND_TRIPS = 50
"""A call longer than this many round trips gains nothing from prefetching (simulated)."""

SHORTEST_ROUND_TRIP_S = 2e-5
"""Lower bound of a round trip: a coarse clock must not stop all prefetching."""

SHORTEST_RUN_S = 1e-6
"""Lower bound of the evaluation of one row in a run of rows."""


WARM_UP_SHARE = 0.2
"""A warm-up that is shorter than this part of a run is not worth a preference."""

WARM_UP_RUNS = 32
LEAST_WARM_UPS = 3
TRIED_RUNS = 64
"""After so many runs, all after a change of config, each call may have a config of its own."""

SPARE = 4 / 3
"""Prefetch margin: assume that round trips may be up to a third longer than measured."""


class Task:
    """The record of one Call from submission to reply.

    attempt: the current or last sending; not set before the first. former: earlier attempts, which
    are over, although their workers may still answer. copy: a second attempt in progress, at
    another worker. copied: whether there ever was one. gathered: its rows are calls of as many
    callers. row: the one that is left of a run that was split; -1: it was not.
    """

    __slots__ = (
        "account",
        "answers",
        "attempt",
        "batch_key",
        "call",
        "chain",
        "copied",
        "copy",
        "deadline",
        "former",
        "gathered",
        "id",
        "is_run",
        "line",
        "lost_on",
        "passed_at",
        "phase",
        "priority",
        "queue",
        "row",
        "rows",
        "sequence",
        "submitted_at",
    )

    def __init__(
        self,
        task_id: TaskId,
        call: Call,
        queue: Queue,
        account: Account,
        priority: int,
        deadline: float | None,
        now: float,
        batch_key: object,
        chain: Chain,
        gathered: bool = False,
    ) -> None:
        # The request; `take` alone changes it.
        self.id = task_id
        self.queue = queue
        self.gathered = gathered
        self.take(call)
        self.account = account
        self.chain = chain
        self.priority = priority
        self.deadline = deadline
        self.submitted_at = now
        # The state; `line` is None while it does not wait.
        self.row = -1
        self.phase: TaskPhase = QUEUED
        self.line: ClientTasks | None = None
        self.attempt: Attempt
        self.copy: Attempt | None = None
        self.copied = False
        self.former: tuple[Attempt, ...] = ()
        self.batch_key = batch_key
        self.lost_on: tuple[str, ...] = ()
        self.answers = 0  # of a stream that continues
        self.passed_at: float | None = None  # when another went first to find its worker warm
        self.sequence: LiveSequence | None = None

    def take(self, call: Call) -> None:
        """Set what its worker is asked."""
        self.call = call
        self.rows = call.rows or 1
        self.is_run = self.rows > 1 and self.queue.max_batch == 1  # they run one after another

    @property
    def calls(self) -> int:
        """How many calls wait for the task: one for each row of a run, and of gathered calls."""
        return self.rows if self.is_run or self.gathered else 1

    @property
    def callers(self) -> int:
        """How many callers wait for it."""
        return self.rows if self.gathered else 1

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Return all attempts of an open task; first those that are over, in the order of ends."""
        if self.phase is QUEUED:
            return self.former
        return (*self.former, self.attempt, *(() if self.copy is None else (self.copy,)))

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


class Attempt:
    """One sending of a task to a worker.

    held, charged_s: the slot share and the charge of its client, which had `weight` callers.
    alone: the worker had no other task; refill: and it had answered another since the task arrived.
    is_copy: the task ran elsewhere when it was sent.
    """

    __slots__ = (
        "alone",
        "charged_s",
        "ended_at",
        "held",
        "is_copy",
        "lot",
        "phase",
        "refill",
        "sent_at",
        "weight",
        "why",
        "worker",
    )

    def __init__(
        self,
        worker: Worker,
        lot: Lot | None,
        held: int,
        charged_s: float,
        weight: int,
        alone: bool,
        refill: bool,
        now: float,
    ) -> None:
        self.worker = worker
        self.lot = lot
        self.held = held
        self.charged_s = charged_s
        self.weight = weight
        self.alone = alone
        self.refill = refill
        self.sent_at = now
        self.is_copy = False
        self.phase: AttemptPhase = HELD
        # Set if it ends without an answer.
        self.ended_at: float
        self.why: str

    def end(self, event: PhaseEvent[AttemptPhase], why: str, now: float) -> None:
        """End the attempt without an answer, which may still come late."""
        self.phase = event[self.phase]
        self.ended_at = now
        self.why = why


class Lot:
    """Tasks that take one unit of a worker's credit: one call, or one batch.

    exclusive: nothing may wait behind it, because it runs long, for an unknown time, or is a
    suspect. cold: the worker ran another config of the model before, or nothing.
    """

    __slots__ = ("cold", "exclusive", "remaining", "rows", "size", "timed")

    def __init__(self, size: int, rows: int, *, exclusive: bool, cold: bool) -> None:
        self.size = size
        self.remaining = size
        self.rows = rows
        self.exclusive = exclusive
        self.cold = cold
        self.timed = False


class Worker:
    """The record of one worker from joining to leaving.

    outrun: number of its tasks that another worker has answered. done, failed: the tasks that it
    answered first, with a result and with an error.
    """

    __slots__ = (
        "behind",
        "busy_since",
        "configs",
        "done",
        "ends_at",
        "exclusive_lots",
        "failed",
        "held",
        "host",
        "id",
        "last_answer_at",
        "last_slots",
        "level",
        "lifetime_s",
        "lots",
        "most_slots",
        "outrun",
        "phase",
        "points",
        "pool",
        "recall_pending",
        "run_ended_at",
        "sequences",
        "slots",
    )

    def __init__(
        self,
        worker_id: WorkerId,
        pool: Pool,
        *,
        slots: int,
        ends_at: float,
        now: float,
        host: str = "",
    ) -> None:
        self.id = worker_id
        self.pool = pool
        self.host = host
        self.ends_at = ends_at
        self.lifetime_s = ends_at - now
        self.phase: WorkerPhase = OPEN if slots else SHUT
        self.slots = slots
        self.most_slots = slots
        # In the order of sending: the first lots run, the rest are prefetched.
        self.held: dict[TaskId, Task] = {}
        self.lots = 0
        self.exclusive_lots = 0
        self.outrun = 0
        # The keys by which its pool indexes it: see `Pool.moved`.
        self.level = 0
        self.behind = 0
        self.recall_pending = False
        self.last_answer_at = self.run_ended_at = now
        self.busy_since: float | None = None
        self.done = 0
        self.failed = 0
        # For each model the config that it was sent last, and the key of the point.
        self.configs: dict[ModelQueues, str] = {}
        self.points: dict[ModelQueues, int] = {}
        # Those whose state it has, and the slots that it offers to their calls while it drains.
        self.sequences: dict[LiveSequence, None] = {}
        self.last_slots = 0

    @property
    def runs_in_vain(self) -> bool:
        """Whether it holds nothing but calls that other workers have answered."""
        return 0 < len(self.held) == self.outrun

    def running(self) -> tuple[Task, float] | None:
        """Return the oldest task that it runs and when that began, about; None: it runs nothing.

        With one slot a call begins when the one before it is answered.
        """
        for task in self.held.values():
            attempt = task.at(self)
            if attempt.lot is not None:
                began_at = attempt.sent_at
                return task, max(began_at, self.run_ended_at) if self.most_slots == 1 else began_at
        return None

    def answered(
        self,
        task: Task,
        outcome: Result | FarmError,
        lot: Lot | None,
        now: float,
        *,
        first: bool,
    ) -> None:
        """Record an answer. lot: of the task; first: no other worker has answered it before."""
        self.last_answer_at = now
        if lot is not None:
            self.run_ended_at = now
        if first:
            is_error = isinstance(outcome, FarmError) or outcome.failed is not None
            self.failed += is_error
            self.done += (not is_error) if task.rows == 1 else task.ended(outcome)

    def offer(self, slots: int, last_slots: int = 0) -> None:
        """Set the number of slots it offers from now on; 0: it gets no calls.

        last_slots: with 0, the slots for calls of sequences that it has.
        """
        self.last_slots = last_slots
        if bool(slots) != bool(self.slots):
            self.phase = (WORKER_OPEN if slots else WORKER_SHUT)[self.phase]
        self.slots = slots
        self.most_slots = max(self.most_slots, slots)

    def fill(self, full: bool) -> None:
        """Set whether it has so much unread data that it gets no more."""
        if full != self.phase.has_unread:
            self.phase = (WORKER_FULL if full else WORKER_READS)[self.phase]

    def held_in_turn(self, slots: int) -> tuple[list[Task], list[Task]]:
        """Return the tasks that fill `slots` slots, those sent first, and those waiting behind."""
        first: list[Task] = []
        waiting: list[Task] = []
        lots: set[Lot] = set()
        for task in self.held.values():
            lot = task.at(self).lot
            if lot is None or lot in lots or len(lots) < slots:
                first.append(task)
                if lot is not None:
                    lots.add(lot)
            else:
                waiting.append(task)
        return first, waiting


class RunTimes:
    """The last run times of one class of calls, model and operation, and derived statistics.

    A run is one evaluation: of a call, of a batch, or of one row of a run of rows.
    mean: seconds, 0 while no run is known; prefetch: how many lots may wait behind a running one;
    round_trip_s: the time of sending and answering without the run, 1 ms until it is measured.
    warm_up_s: what a run takes longer after a change of the config, 0 while that is not worth it.
    """

    __slots__ = (
        "_cold",
        "_last",
        "_p95",
        "_p95_is_of",
        "_sum",
        "_warm",
        "count",
        "mean",
        "prefetch",
        "round_trip_s",
        "warm_up_s",
    )

    WINDOW = 128

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=self.WINDOW)
        self._sum = 0.0
        self._p95 = 0.0
        self._p95_is_of = 0
        self.count = 0
        self.mean = 0.0
        self.prefetch = 0
        self.round_trip_s = 1e-3
        self.warm_up_s = 0.0
        self._cold = (0, 0.0)  # runs, and their mean with the last ones counting most
        self._warm = (0, 0.0)

    def add(self, seconds: float) -> None:
        """Record one run."""
        last = self._last
        total = self._sum + seconds
        if len(last) == self.WINDOW:
            total -= last[0]
        last.append(seconds)
        self._sum = total
        self.count += 1
        mean = self.mean = total / len(last) if total > 0.0 else 0.0
        is_long = mean > LONG_RUN_ROUND_TRIPS * self.round_trip_s
        self.prefetch = 0 if is_long else self.prefetch_for(mean)

    def learn_warm_up(self, seconds: float, *, cold: bool) -> None:
        """Record whether a run came after a change of its worker's config."""
        count, mean = self._cold if cold else self._warm
        count += 1
        mean += (seconds - mean) / min(count, WARM_UP_RUNS)
        if cold:
            self._cold = count, mean
        else:
            self._warm = count, mean
        (colds, cold_s), (warms, warm_s) = self._cold, self._warm
        self.warm_up_s = 0.0
        if warms < LEAST_WARM_UPS:
            # Where configs alternate no run is warm, unless calls prefer warm workers for a while.
            if LEAST_WARM_UPS <= colds <= TRIED_RUNS:
                self.warm_up_s = cold_s
        elif colds >= LEAST_WARM_UPS and cold_s - warm_s > WARM_UP_SHARE * warm_s:
            self.warm_up_s = cold_s - warm_s

    def of_rows(self, rows: int) -> float:
        """Return the seconds that `rows` rows take if they are evaluated one after another."""
        return rows * max(self.mean, SHORTEST_RUN_S)

    def prefetch_for(self, seconds: float) -> int:
        """Return how many lots of that length may wait behind a running one."""
        if seconds > LONG_RUN_ROUND_TRIPS * self.round_trip_s:
            return 0
        if seconds * MAX_PREFETCH <= self.round_trip_s:
            return MAX_PREFETCH
        lots = self.round_trip_s / seconds
        return min(MAX_PREFETCH, math.ceil(lots if lots < 3 else SPARE * lots))

    def add_round_trip(self, seconds: float) -> None:
        """Record one measured round trip: time from sending to answer, minus the run.

        An outlier, as when a worker's host stalls, counts at most twice the usual value.
        """
        known_s = self.round_trip_s
        if seconds < SHORTEST_ROUND_TRIP_S:
            seconds = SHORTEST_ROUND_TRIP_S
        elif seconds > 2 * known_s:
            seconds = 2 * known_s
        self.round_trip_s += 0.2 * (seconds - known_s)

    def quantile(self, q: float) -> float:
        """Return the q-quantile in seconds (nearest rank), 0 while no run is known."""
        if not self._last:
            return 0.0
        return sorted(self._last)[max(0, math.ceil(q * len(self._last)) - 1)]

    def p95(self) -> float:
        """Return the 95 % quantile in seconds, at most a sixteenth of the window old."""
        if self.count - self._p95_is_of > len(self._last) // 16:
            self._p95 = self.quantile(0.95)
            self._p95_is_of = self.count
        return self._p95


def needs_no_slot(operation: Operation) -> bool:
    """Whether a worker answers this operation while it runs something else."""
    return operation is Operation.DESCRIBE
