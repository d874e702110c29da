"""The scheduler's records: Task, Lot and Worker, and the run times of a class of calls.

Only `core.py` changes these; everybody else reads through `Scheduler.snapshot()`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NewType

from farm.call import Call, Operation

if TYPE_CHECKING:
    from farm.scheduler.placement import Pool
    from farm.scheduler.queues import Account, Line, Queue

TaskId = NewType("TaskId", int)
WorkerId = NewType("WorkerId", str)

MAX_PREFETCH = 256
"""Most calls that may wait at a worker; above it a message is no cheaper per call (measured)."""

LONG_RUN_ROUND_TRIPS = 50
"""A call longer than this many round trips gains nothing from prefetching (simulated)."""

SHORTEST_RUN_S = 1e-6
"""No evaluation of one row in a run of rows is taken to be shorter."""


SPARE = 4 / 3
"""Where several wait, so many times what the known round trip needs: it may be a quarter longer."""


class Task:
    """The record of one Call from submission to reply."""

    __slots__ = (
        "abandoned",
        "account",
        "alone",
        "answers",
        "asked_back",
        "batch_key",
        "call",
        "charged_s",
        "deadline",
        "former",
        "held",
        "id",
        "line",
        "lost_on",
        "lot",
        "priority",
        "queue",
        "refill",
        "rows",
        "sent_at",
        "submitted_at",
        "worker",
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
    ) -> None:
        # What was asked; never changes.
        self.id = task_id
        self.call = call
        self.queue = queue
        self.account = account
        self.priority = priority
        self.deadline = deadline
        self.submitted_at = now
        self.rows = call.rows or 1
        # Where it waits, or else where it runs: one of `line` and `worker` is None.
        self.line: Line | None = None
        self.worker: Worker | None = None
        self.lot: Lot | None = None
        # At its worker.
        self.sent_at = now
        self.held = 0
        self.charged_s = 0.0
        self.alone = False
        self.refill = False
        self.asked_back = False
        # Its past.
        self.batch_key = batch_key
        self.abandoned = False
        self.former: tuple[WorkerId, ...] = ()
        self.lost_on: tuple[str, ...] = ()
        self.answers = 0  # of a stream that goes on


class Lot:
    """Tasks that take one unit of a worker's credit: one call, or one batch.

    exclusive: nothing may wait behind it, as it runs long, for an unknown time, or under suspicion.
    """

    __slots__ = ("exclusive", "remaining", "rows", "size", "timed")

    def __init__(self, size: int, rows: int, *, exclusive: bool) -> None:
        self.size = size
        self.remaining = size
        self.rows = rows
        self.exclusive = exclusive
        self.timed = False


class Worker:
    """The record of one worker from joining to leaving."""

    __slots__ = (
        "behind",
        "busy_since",
        "done",
        "ends_at",
        "exclusive_lots",
        "full",
        "held",
        "id",
        "last_answer_at",
        "level",
        "lifetime_s",
        "lots",
        "most_slots",
        "pool",
        "slots",
        "take_back_pending",
    )

    def __init__(
        self, worker_id: WorkerId, pool: Pool, *, slots: int, ends_at: float, now: float
    ) -> None:
        self.id = worker_id
        self.pool = pool
        self.ends_at = ends_at
        self.lifetime_s = ends_at - now
        self.slots = slots
        self.most_slots = slots
        # In the order in which they were sent: the first lots run, the rest are prefetched.
        self.held: dict[TaskId, Task] = {}
        self.lots = 0
        self.exclusive_lots = 0
        self.full = False  # it has not read what it was sent, and is given nothing more
        # What its pool indexes it by: see `Pool.moved`.
        self.level = 0
        self.behind = 0
        self.take_back_pending = False
        self.last_answer_at = now
        self.busy_since: float | None = None
        self.done = 0

    def held_in_turn(self, slots: int) -> tuple[list[Task], list[Task]]:
        """The tasks that fill so many slots, those sent first, and those that wait behind them."""
        first: list[Task] = []
        waiting: list[Task] = []
        lots: set[Lot] = set()
        for task in self.held.values():
            if task.lot is None or task.lot in lots or len(lots) < slots:
                first.append(task)
                if task.lot is not None:
                    lots.add(task.lot)
            else:
                waiting.append(task)
        return first, waiting


class RunTimes:
    """The last run times of one class of calls, model and operation, and what follows from them.

    A run is one evaluation: of a call, of a batch, or of one row of a run of rows.
    mean: seconds, 0 while no run is known; prefetch: how many lots may wait behind a running one;
    round_trip_s: what sending out and answering take without the run, 1 ms until it is measured.
    """

    __slots__ = ("_last", "_p95", "_p95_is_of", "_sum", "count", "mean", "prefetch", "round_trip_s")

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

    def add(self, seconds: float) -> None:
        """Take note of one run."""
        last = self._last
        if len(last) == self.WINDOW:
            self._sum -= last[0]
        last.append(seconds)
        self._sum += seconds
        self.count += 1
        mean = self.mean = max(self._sum, 0.0) / len(last)
        self.prefetch = self.prefetch_for(mean)

    def of_rows(self, rows: int) -> float:
        """Seconds that so many rows take which are evaluated one after another."""
        return rows * max(self.mean, SHORTEST_RUN_S)

    def prefetch_for(self, seconds: float) -> int:
        """How many lots that run so long may wait behind a running one."""
        if seconds > LONG_RUN_ROUND_TRIPS * self.round_trip_s:
            return 0
        if seconds * MAX_PREFETCH <= self.round_trip_s:
            return MAX_PREFETCH
        lots = self.round_trip_s / seconds
        return min(MAX_PREFETCH, math.ceil(lots if lots < 3 else SPARE * lots))

    def add_round_trip(self, seconds: float) -> None:
        """Take note of one measured round trip: time from sending to answer, less the run.

        One that stands out, as when a worker's host stalls, counts no more than twice the usual.
        """
        seconds = min(max(seconds, 2e-5), 2 * self.round_trip_s)
        self.round_trip_s += 0.2 * (seconds - self.round_trip_s)

    def quantile(self, q: float) -> float:
        """The q-quantile in seconds (nearest rank), 0 while no run is known."""
        if not self._last:
            return 0.0
        return sorted(self._last)[max(0, math.ceil(q * len(self._last)) - 1)]

    def p95(self) -> float:
        """The 95 % quantile in seconds, as of at most a sixteenth of the window ago."""
        if self.count - self._p95_is_of > len(self._last) // 16:
            self._p95 = self.quantile(0.95)
            self._p95_is_of = self.count
        return self._p95


def needs_no_slot(operation: Operation) -> bool:
    """Whether a worker answers this while it runs something else."""
    return operation is Operation.DESCRIBE
