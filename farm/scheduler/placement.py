"""Selects workers: pools of equivalent ones, indexed by load and by end of allocation."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from farm.scheduler.accounts import united
from farm.scheduler.phases import OPEN, WorkerPhase
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.run_times import MAX_PREFETCH
from farm.scheduler.state import Task, WorkerId
from farm.scheduler.workers import Worker

FULL = MAX_PREFETCH + 1
"""Level of a worker that takes no more calls; lower levels are the lots per slot."""

_OPEN_LEVELS = (1 << FULL) - 1

ANY_LEVEL = FULL + 1
"""Depth for calls that need no slot: every worker takes them unless it offers no slot at all."""

FITS_FACTOR = 1.2
"""A call must fit into the remaining allocation with its p95 times this factor."""

LONGEST_SHARE = 0.9
"""A call too long for every allocation goes to a worker with this fraction of the longest left."""

NO_END = math.inf

SHARED_RUN_S = 0.05
SHARED_ROUND_TRIPS = 4
"""Where workers serve several models, runs longer than both wait for a free worker.

Otherwise a shorter call of another model would wait behind them.
"""

ENDS_TOGETHER_S = 10.0
"""Workers whose allocations end within the same interval of this length are treated alike."""


class _Shelf:
    """The workers of one level by the time at which they end."""

    __slots__ = ("by_end", "ends", "size")

    def __init__(self) -> None:
        self.by_end: dict[float, dict[WorkerId, Worker]] = {}
        self.ends: list[float] = []  # ascending
        self.size = 0

    def pick(self, needed_until: float) -> Worker | None:
        """Return the worker that ends first among those that last long enough, or None.

        The others stay free. Among equals it is the one added last: it is the warmest, and the
        others may go idle and be released.
        """
        ends = self.ends
        at = bisect_left(ends, needed_until)
        while at < len(ends):
            if self.by_end[ends[at]]:
                return self.last(ends[at])
            del self.by_end[ends.pop(at)]
        return None

    def last(self, end: float) -> Worker:
        """Return the worker that was added last among those that end then; there must be one."""
        # Popping the last item and reinserting it is cheap; finding it by iteration is not.
        alike = self.by_end[end]
        worker_id, worker = alike.popitem()
        alike[worker_id] = worker
        return worker

    def add_end(self, end: float) -> dict[WorkerId, Worker]:
        """Add a place for workers that end then; return it."""
        alike = self.by_end[end] = {}
        insort(self.ends, end)
        return alike

    def forget(self, end: float) -> None:
        """Drop the place for an end without workers."""
        if end in self.by_end and not self.by_end[end]:
            del self.by_end[end]
            del self.ends[bisect_left(self.ends, end)]

    def __iter__(self) -> Iterator[Worker]:
        for alike in self.by_end.values():
            yield from alike.values()


class Pools(dict[frozenset[str], "Pool"]):
    """All pools, by the names of their models.

    behind: calls that wait at their workers. recheck_at: no pool is to be checked earlier.
    """

    def __init__(self) -> None:
        self.behind = 0
        self.recheck_at = NO_END
        self.rechecks: dict[Pool, float] = {}

    def add_behind(self, lots: int) -> None:
        """Count so many more lots that wait at workers."""
        self.behind += lots

    def recheck(self, pool: Pool, at: float) -> None:
        """Check at this time, or earlier, whether the workers of a pool take waiting calls."""
        if at < self.rechecks.get(pool, NO_END):
            self.rechecks[pool] = at
            self.recheck_at = min(at, self.recheck_at)

    def due(self, now: float) -> list[Pool]:
        """Return the pools that are to be checked now, each once."""
        due = [pool for pool, at in self.rechecks.items() if at <= now]
        for pool in due:
            del self.rechecks[pool]
        self.recheck_at = min(self.rechecks.values(), default=NO_END)
        return due

    def drop_if_empty(self, pool: Pool) -> None:
        """Remove a pool whose last worker has left."""
        if not pool.size:
            del self[frozenset(model.name for model in pool.queues)]
            self.rechecks.pop(pool, None)
            for model in pool.queues:
                model.pools.remove(pool)


class Pool:
    """Workers that serve the same models.

    They are interchangeable to the scheduler except for their load and their end. They are indexed
    by both, so that a call's worker is found without a scan.
    """

    def __init__(self, queues: list[ModelQueues], pools: Pools) -> None:
        self.queues = queues
        self._pools = pools
        # Its models with a reserve; only then the lots of each class at its workers are counted.
        self.reserving = [model for model in queues if model.policy.has_reserve]
        self.lots_of: Counter[Queue] | None = Counter() if self.reserving else None
        self.size = 0
        self.slots = 0
        self.hosts: Counter[str] = Counter()  # of its workers that can end a run
        self.behind = 0
        self.is_ending = False  # some worker has an end
        self._lifetimes: list[float] = []  # of its workers at joining, ascending
        self._shelves = [_Shelf() for _ in range(ANY_LEVEL + 1)]
        self.occupied = 0  # bit i: shelf i is not empty

    def add(self, worker: Worker) -> None:
        """Add a worker that holds no tasks."""
        self.size += 1
        self.slots += worker.slots
        if worker.ends_runs:
            self.hosts[worker.host] += 1
        insort(self._lifetimes, worker.lifetime_s)
        self.is_ending = self._lifetimes[0] < NO_END
        worker.level = 0 if worker.slots else ANY_LEVEL
        self._put(worker)

    def remove(self, worker: Worker) -> None:
        """Remove a worker that holds no tasks."""
        self.size -= 1
        self.slots -= worker.slots
        if worker.ends_runs:
            self.hosts -= Counter([worker.host])
        del self._lifetimes[bisect_left(self._lifetimes, worker.lifetime_s)]
        self.is_ending = self.size > 0 and self._lifetimes[0] < NO_END
        self._take(worker)
        for shelf in self._shelves:
            shelf.forget(worker.ends_at)

    def moved(self, worker: Worker) -> None:
        """Reindex a worker after its lots or slots changed: by its lots per slot.

        At level 0 a slot is free; at FULL the worker takes no more.
        """
        lots, slots = worker.lots, worker.slots
        behind = lots - slots if lots > slots else 0
        if behind and worker.last_slots:  # it drains, and runs calls of sequences meanwhile
            behind = max(0, lots - worker.last_slots)
        if behind != worker.behind:
            self.behind += behind - worker.behind
            self._pools.add_behind(behind - worker.behind)
            worker.behind = behind
        if lots < slots and worker.phase is OPEN:
            level = 0
        elif not slots:
            level = ANY_LEVEL
        elif worker.exclusive_lots or worker.phase is WorkerPhase.FULL:
            level = FULL
        else:
            level = lots // slots if lots < FULL * slots else FULL
        old = worker.level
        if level != old:  # `_take` and `_put`, in one, as this is the path of each call
            end = worker.ends_at
            shelf = self._shelves[old]
            del shelf.by_end[end][worker.id]
            shelf.size -= 1
            if not shelf.size:
                self.occupied ^= 1 << old
            worker.level = level
            shelf = self._shelves[level]
            alike = shelf.by_end[end] if end in shelf.by_end else shelf.add_end(end)
            alike[worker.id] = worker
            if not shelf.size:
                self.occupied |= 1 << level
            shelf.size += 1

    def recheck(self, at: float) -> None:
        """Check at this time, or earlier, whether its workers take waiting calls."""
        self._pools.recheck(self, at)

    def resize(self, worker: Worker, slots: int, last_slots: int) -> None:
        """Set a worker's slots."""
        self.slots += slots - worker.slots
        worker.offer(slots, last_slots)
        self.moved(worker)

    def has_idle(self) -> bool:
        """Whether some worker has a free slot."""
        return self.occupied & 1 == 1

    def _put(self, worker: Worker) -> None:
        shelf = self._shelves[worker.level]
        alike = shelf.by_end.get(worker.ends_at)
        if alike is None:
            alike = shelf.add_end(worker.ends_at)
        alike[worker.id] = worker
        if not shelf.size:
            self.occupied |= 1 << worker.level
        shelf.size += 1

    def _take(self, worker: Worker) -> None:
        shelf = self._shelves[worker.level]
        del shelf.by_end[worker.ends_at][worker.id]
        shelf.size -= 1
        if not shelf.size:
            self.occupied ^= 1 << worker.level

    def least_loaded(self, depth: int, task: Task, now: float) -> Worker | None:
        """Return a worker of the lowest level below `depth` that may take a call now, or None."""
        levels = self.occupied & ((1 << depth) - 1)
        if not levels:
            return None
        if not self.is_ending:  # as `last` does, because this is the path of each call
            alike = self._shelves[(levels & -levels).bit_length() - 1].by_end[NO_END]
            worker_id, worker = alike.popitem()
            alike[worker_id] = worker
            return worker
        needed_until = self._needed_until(task, now)
        while levels:
            lowest = levels & -levels
            found = self._shelves[lowest.bit_length() - 1].pick(needed_until)
            if found is not None:
                return found
            levels ^= lowest
        return None

    def longest_idle(self) -> Iterator[Worker]:
        """Yield the workers with a free slot, those that were added first before others."""
        return iter(self._shelves[0])

    def lasts(self, worker: Worker, task: Task, now: float) -> bool:
        """Whether a worker lasts as long as a call is likely to take."""
        return not self.is_ending or worker.ends_at >= self._needed_until(task, now)

    def idle(self, task: Task, now: float) -> Iterator[Worker]:
        """Yield the workers with a free slot that last long enough for a call now."""
        if self.has_idle():
            shelf = self._shelves[0]
            for end in shelf.ends[bisect_left(shelf.ends, self._needed_until(task, now)) :]:
                yield from reversed(shelf.by_end[end].values())

    def shut_lots(self) -> Counter[Queue]:
        """Return the lots of each class at workers that offer no slot."""
        return lots_of(worker for worker in self._shelves[ANY_LEVEL] if not worker.slots)

    def fullest_first(self) -> Iterator[Worker]:
        """Yield the workers from the highest level down."""
        levels = self.occupied
        while levels:
            highest = levels.bit_length() - 1
            yield from self._shelves[highest]
            levels ^= 1 << highest

    def _needed_until(self, task: Task, now: float) -> float:
        # The call must be likely to end before the worker does, if any worker's allocation was
        # initially long enough; otherwise it would never be assigned.
        ran_s = [attempt.outlasted_s for attempt in task.past.former] if task.past.lost_on else []
        needed_s = FITS_FACTOR * max([task.times.p95(), *ran_s])
        longest_s = max([pool._lifetimes[-1] for pool in task.queue.model.pools])
        return now + max(0.0, min(needed_s, LONGEST_SHARE * longest_s))


def lots_of(workers: Iterable[Worker]) -> Counter[Queue]:
    """Return the lots of each class at these workers, counted from their tasks."""
    lots = {task.at(w).lot: task.queue for w in workers for task in w.held.values()}
    return Counter(queue for lot, queue in lots.items() if lot is not None)


def pool_for(pools: Pools, models: Collection[ModelQueues]) -> Pool:
    """Return the pool of workers that serve just these models, a new one for new sets."""
    names = frozenset(model.name for model in models)
    pool = pools.get(names)
    if pool is None:
        queues = sorted(models, key=lambda model: model.name)
        pool = pools[names] = Pool(queues, pools)
        for model in queues:
            model.pools.append(pool)
        united(queues)
    return pool


def end_at_most(ends_at: float | None) -> float:
    """Return the end of a worker's interval: ends close to each other count as one."""
    if ends_at is None or ends_at == NO_END:
        return NO_END
    return ends_at - ends_at % ENDS_TOGETHER_S


def depth_for(head: Task) -> int:
    """Return the level below which a worker may take `head`."""
    queue = head.queue
    if queue.needs_no_slot:
        return ANY_LEVEL
    if head.past.lost_on or not queue.repeatable:
        return 1
    times = head.times
    prefetch = times.prefetch_for(times.of_rows(head.rows)) if head.is_run else times.prefetch
    mean = times.mean
    if prefetch and mean > SHARED_RUN_S and mean > SHARED_ROUND_TRIPS * times.round_trip_s:
        for pool in queue.model.pools:
            if len(pool.queues) > 1:
                return 1
    return 1 + prefetch


@dataclass(eq=False, slots=True)
class Room:
    """Where `fill` may send calls now: the workers of `pools`.

    limits: of pools that an earlier call waits for, the level below which later ones may load them.
    """

    pools: Collection[Pool]
    now: float
    limits: dict[Pool, int]

    def takes(self, queue: Queue) -> bool:
        """Whether any worker takes calls of `queue` at all, checked cheaply."""
        for pool in queue.model.pools:
            if pool in self.pools and pool.occupied & _OPEN_LEVELS:
                return True
        return False

    def worker_for(self, head: Task, depth: int) -> Worker | None:
        """Return the least loaded worker below level `depth` for the head of a queue, or None."""
        best: Worker | None = None
        queue, limits = head.queue, self.limits
        limited = limits and not queue.needs_no_slot
        for pool in queue.model.pools:
            if pool not in self.pools:
                continue
            below = min(depth, limits.get(pool, depth)) if limited else depth
            worker = pool.least_loaded(below, head, self.now)
            if worker is not None and (best is None or worker.level < best.level):
                best = worker
        return best

    def is_open_at(self, worker: Worker, task: Task, depth: int) -> bool:
        """Whether `worker_for` might return this worker."""
        pool = worker.pool
        if pool not in self.pools or worker.level >= min(depth, self.limits.get(pool, depth)):
            return False
        return pool.lasts(worker, task, self.now)

    def leave(self, head: Task, depth: int) -> None:
        """While the head of a queue waits for a lightly loaded worker, let later calls load none.

        Otherwise short calls, many of which wait at a worker, would keep long calls, which need a
        free slot, from ever getting one. Calls that need no slot are not affected.
        """
        for pool in head.queue.model.pools:
            if pool in self.pools and pool.least_loaded(ANY_LEVEL, head, self.now) is not None:
                self.limits[pool] = min(depth, self.limits.get(pool, depth))
