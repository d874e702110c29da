"""The scheduler's records: Task, Worker, Lot, and the run times of a class of calls.

Only `core.py` changes these; everybody else reads through `Scheduler.snapshot()`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, NewType

from farm.call import Call, Operation

if TYPE_CHECKING:
    from farm.scheduler.placement import Pool
    from farm.scheduler.queues import Account, Queue

TaskId = NewType("TaskId", int)
WorkerId = NewType("WorkerId", str)

MAX_PREFETCH = 256
"""Most calls that may wait at a worker; above it a message is no cheaper per call (measured)."""

LONG_RUN_ROUND_TRIPS = 20
"""A call longer than this many round trips gains nothing from prefetching (simulated)."""


class Task:
    """The record of one Call from submission to reply."""

    __slots__ = (
        "abandoned",
        "alone",
        "batch_key",
        "call",
        "charged_s",
        "client",
        "deadline",
        "id",
        "lost_on",
        "lot",
        "priority",
        "queue",
        "rank",
        "refill",
        "rows",
        "sent_at",
        "submitted_at",
        "taking_back",
        "worker",
    )

    def __init__(
        self,
        task_id: TaskId,
        call: Call,
        queue: Queue,
        client: Account,
        *,
        priority: int,
        deadline: float | None,
        now: float,
        batch_key: object,
    ) -> None:
        # What was asked; never changes.
        self.id = task_id
        self.call = call
        self.queue = queue
        self.client = client
        self.priority = priority
        self.deadline = deadline
        self.submitted_at = now
        self.rows = call.rows or 1
        # Where it stands: waiting in its queue while worker is None.
        self.rank = 0
        self.batch_key = batch_key
        self.worker: Worker | None = None
        self.lot: Lot | None = None
        self.sent_at = 0.0
        self.charged_s = 0.0
        self.alone = False
        self.refill = False
        self.taking_back = False
        self.abandoned = False
        self.lost_on: tuple[str, ...] = ()


class Lot:
    """Tasks that take one unit of a worker's credit: one call, or one batch."""

    __slots__ = ("exclusive", "remaining", "size")

    def __init__(self, size: int, *, exclusive: bool) -> None:
        self.size = size
        self.remaining = size
        self.exclusive = exclusive


class Worker:
    """The record of one worker from joining to leaving."""

    __slots__ = (
        "busy_since",
        "done",
        "exclusive_lots",
        "held",
        "id",
        "last_answer_at",
        "level",
        "lots",
        "pool",
        "slots",
        "take_back_pending",
    )

    def __init__(self, worker_id: WorkerId, pool: Pool, *, slots: int, now: float) -> None:
        self.id = worker_id
        self.pool = pool
        self.slots = slots
        # In the order in which they were sent: the first lots run, the rest are prefetched.
        self.held: dict[TaskId, Task] = {}
        self.lots = 0
        self.exclusive_lots = 0
        self.level = 0
        self.take_back_pending = False
        self.last_answer_at = now
        self.busy_since: float | None = None
        self.done = 0

    def wanted_level(self, full: int) -> int:
        """Lots per slot; 0: a slot is free; `full`: nothing may wait behind a long call."""
        level = self.lots // self.slots
        return full if level and self.exclusive_lots else min(level, full - 1)

    def held_in_turn(self) -> tuple[list[Task], list[Task]]:
        """The tasks that fill the slots, those sent first, and the tasks that wait behind them."""
        first: list[Task] = []
        waiting: list[Task] = []
        lots: set[Lot] = set()
        for task in self.held.values():
            if task.lot is None or task.lot in lots or len(lots) < self.slots:
                first.append(task)
                if task.lot is not None:
                    lots.add(task.lot)
            else:
                waiting.append(task)
        return first, waiting


class RunTimes:
    """The last run times of one class of calls, model and operation, and what follows from them."""

    __slots__ = ("_order", "_sorted", "_sum", "round_trip_s")

    WINDOW = 128

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._sum = 0.0
        # Time that sending out and answering takes, without the run; 1 ms until one is measured.
        self.round_trip_s = 1e-3

    def __len__(self) -> int:
        return len(self._order)

    def add(self, seconds: float) -> None:
        """Take note of one run."""
        if len(self._order) >= self.WINDOW:
            oldest = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self._sum -= oldest
        self._order.append(seconds)
        insort(self._sorted, seconds)
        self._sum += seconds

    def add_round_trip(self, seconds: float) -> None:
        """Take note of one measured round trip (time from sending to answer, less the run)."""
        self.round_trip_s += 0.2 * (max(seconds, 2e-5) - self.round_trip_s)

    @property
    def mean(self) -> float:
        """Mean run time in seconds, 0 when none is known."""
        return max(self._sum, 0.0) / len(self._order) if self._order else 0.0

    def quantile(self, q: float) -> float:
        """The q-quantile in seconds (nearest rank), 0 when none is known."""
        if not self._sorted:
            return 0.0
        return self._sorted[min(len(self._sorted) - 1, math.ceil(q * len(self._sorted)) - 1)]

    def prefetch(self) -> int:
        """How many calls may wait at a worker behind the running one."""
        if not self._order:
            return 0
        mean = self.mean
        if mean > LONG_RUN_ROUND_TRIPS * self.round_trip_s:
            return 0
        if mean * MAX_PREFETCH <= self.round_trip_s:
            return MAX_PREFETCH
        return math.ceil(self.round_trip_s / mean)


def needs_no_slot(operation: Operation) -> bool:
    """Whether a worker answers this while it runs something else."""
    return operation is Operation.DESCRIBE
