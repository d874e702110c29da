"""The scheduler's record of a worker, from joining to leaving.

Only the scheduler changes it; other code reads through `Scheduler.view`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm.scheduler.phases import ATTEMPTS, OPEN, RECALLED, SHUT, WORKERS, WorkerPhase
from farm.scheduler.state import Attempt, Lot, Task, TaskId, WorkerId

if TYPE_CHECKING:
    from farm.scheduler.placement import Pool
    from farm.scheduler.sequences import LiveSequence

ATTEMPT_RECALLED = ATTEMPTS.event("recalled")
ATTEMPT_NOT_RECALLED = ATTEMPTS.event("recall void")
WORKER_LEFT = WORKERS.event("left")
WORKER_FULL = WORKERS.event("stops reading")
WORKER_READS = WORKERS.event("reads on")
WORKER_SHUT = WORKERS.event("offers no slot")
WORKER_OPEN = WORKERS.event("offers slots")


@dataclass(slots=True)
class Answers:
    """The answers of a worker, counted.

    last_at: when; run_ended_at: the last that took a slot. done, failed: the tasks that it answered
    before any other, with a result and with an error.
    """

    last_at: float
    run_ended_at: float
    done: int = 0
    failed: int = 0

    def add(self, lot: Lot | None, now: float, done: int, failed: bool) -> None:
        """Record an answer. lot: of the task; done, failed: if no other has answered it before."""
        self.last_at = now
        if lot is not None:
            self.run_ended_at = now
        self.done += done
        self.failed += failed

    def add_rows(self, count: int) -> None:
        """Record the first rows of a run that is split."""
        self.done += count


@dataclass(eq=False, repr=False, slots=True)
class Worker:
    """The record of one worker from joining to leaving.

    held: in the order of sending: the first lots run, the rest are prefetched. outrun: number of
    its tasks that another worker has answered; ends_runs: it can end the run of such a task.
    level, behind: the keys by which its pool indexes it, see `Pool.moved`. sequences: those whose
    state it has, and last_slots the slots that it offers to their calls while it drains.
    """

    id: WorkerId
    pool: Pool
    host: str
    slots: int
    ends_at: float
    lifetime_s: float
    answers: Answers
    ends_runs: bool = False
    phase: WorkerPhase = OPEN
    most_slots: int = 0
    last_slots: int = 0
    held: dict[TaskId, Task] = field(default_factory=dict)
    lots: int = 0
    exclusive_lots: int = 0
    outrun: int = 0
    level: int = 0
    behind: int = 0
    recall_pending: bool = False
    busy_since: float | None = None
    sequences: dict[LiveSequence, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.most_slots = self.slots
        if not self.slots:
            self.phase = SHUT

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
                return task, self.began(attempt.sent_at)
        return None

    def runs(self, now: float) -> Iterator[tuple[Task, float]]:
        """Yield the calls that it runs, each with its part of the worker-seconds so far.

        The calls of a batch share its seconds. A run began when the call was sent, or when the only
        slot was last free.
        """
        for task in self.held_in_turn(self.most_slots)[0]:
            attempt = task.at(self)
            alike = 1 if attempt.lot is None else attempt.lot.remaining
            yield task, (now - self.began(attempt.sent_at)) / max(1, alike)

    def began(self, sent_at: float) -> float:
        """Return when it began to run its oldest task, about."""
        return max(sent_at, self.answers.run_ended_at) if self.most_slots == 1 else sent_at

    def take(self, batch: list[Task], lot: Lot | None, now: float) -> None:
        """Hold tasks of one queue, which are one lot unless they need no slot."""
        if lot is not None:
            self.lots += 1
            self.exclusive_lots += lot.exclusive
            self.pool.moved(self)
            if self.pool.lots_of is not None:
                self.pool.lots_of[batch[0].queue] += 1
        if self.busy_since is None:
            self.busy_since = now
        for task in batch:
            self.held[task.id] = task

    def release(self, task: Task, attempt: Attempt) -> bool:
        """Release a task, and settle the attempt; return whether that makes room for a lot."""
        held, lot = self.held, attempt.lot
        del held[task.id]
        if not held:
            self.busy_since = None
        task.account.gave_back(attempt.held, -attempt.charged_s)
        if lot is None:
            return False
        lot.remaining -= 1
        if lot.remaining:
            return False
        self.lots -= 1
        self.exclusive_lots -= lot.exclusive
        self.pool.moved(self)
        if self.pool.lots_of is not None:
            self.pool.lots_of[task.queue] -= 1
        return True

    def leave(self) -> None:
        """Leave the farm, without tasks."""
        self.phase = WORKER_LEFT[self.phase]

    def count_outrun(self, tasks: int) -> None:
        """Count tasks more that another worker has answered."""
        self.outrun += tasks

    def recall(self, tasks: Iterable[Task]) -> None:
        """Note that it is asked to return tasks unless they have begun."""
        for task in tasks:
            task.at(self).change(ATTEMPT_RECALLED)
        self.recall_pending = True

    def end_recall(self) -> None:
        """Note its answer to a recall."""
        self.recall_pending = False

    def void_recall(self) -> None:
        """Let a recall be repeated: an earlier one may have been lost with a connection."""
        self.recall_pending = False
        for task in self.held.values():
            attempt = task.at(self)
            if attempt.phase is RECALLED:
                attempt.change(ATTEMPT_NOT_RECALLED)

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
