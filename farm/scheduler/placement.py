"""Which worker: pools of alike workers, indexed by how much each already holds."""

from __future__ import annotations

from collections.abc import Iterable

from farm.scheduler.actions import TakeBack
from farm.scheduler.queues import Queue
from farm.scheduler.state import MAX_PREFETCH, Worker, WorkerId

FULL = MAX_PREFETCH + 1
"""Level of a worker that takes nothing more; below it the level is lots per slot."""

FITS_FACTOR = 1.2
"""A call must fit into the rest of an allocation with its p95 and this much to spare."""


class Pool:
    """Workers that serve the same models and end at the same time.

    They are interchangeable to the scheduler but for their load, so that whether a class of calls
    fits before the end is asked once for all of them, and the least loaded is found at once.
    """

    def __init__(self, models: frozenset[str], ends_at: float | None) -> None:
        self.models = models
        self.ends_at = ends_at
        self.queues: list[Queue] = []
        self.recheck_at: float | None = None
        self._levels: list[dict[WorkerId, Worker]] = [{} for _ in range(FULL + 1)]
        self._lowest = FULL
        self._highest = 0
        self.size = 0

    def add(self, worker: Worker) -> None:
        """Take a worker in at its level."""
        self.size += 1
        self._put(worker)

    def remove(self, worker: Worker) -> None:
        """Let a worker go."""
        self.size -= 1
        del self._levels[worker.level][worker.id]

    def moved(self, worker: Worker) -> None:
        """Index a worker anew after its lots changed."""
        level = worker.wanted_level(FULL)
        if level != worker.level:
            del self._levels[worker.level][worker.id]
            worker.level = level
            self._put(worker)

    def _put(self, worker: Worker) -> None:
        level = worker.level
        self._levels[level][worker.id] = worker
        if level < self._lowest:
            self._lowest = level
        # A full worker has nothing waiting at it, so there is nothing to take back from it.
        if self._highest < level < FULL:
            self._highest = level

    def least_loaded(self, depth: int) -> Worker | None:
        """A worker at a level below `depth`, the lowest there is; of equals the one used last.

        The one used last is the warmest, and the others may go idle and be let go.
        """
        levels = self._levels
        while self._lowest < FULL and not levels[self._lowest]:
            self._lowest += 1
        level = levels[self._lowest]
        return level[next(reversed(level))] if level and self._lowest < depth else None

    def fullest(self) -> Worker | None:
        """The worker with the most calls waiting at it, None when none waits at any."""
        while self._highest and not self._levels[self._highest]:
            self._highest -= 1
        if not self._highest:
            return None
        level = self._levels[self._highest]
        return level[next(iter(level))]

    def fits(self, queue: Queue, now: float) -> bool:
        """Whether a call of this class likely ends before the pool does."""
        if self.ends_at is None:
            return True
        return now + FITS_FACTOR * queue.run_times.quantile(0.95) < self.ends_at


def take_back_for(pool: Pool, donors: Iterable[Pool], now: float) -> TakeBack | None:
    """If a worker of `pool` idles: half of what waits at the fullest worker that it could run.

    Not if the donor likely gets to it before a message could; then `pool.recheck_at` says when
    the donor counts as stalled.
    """
    pool.recheck_at = None
    if pool.least_loaded(1) is None:
        return None
    for donor_pool in donors:
        donor = donor_pool.fullest()
        if donor is None or donor.take_back_pending:
            continue
        waiting = [
            task
            for task in donor.held_in_turn()[1]
            if not task.taking_back
            and task.call.model in pool.models
            and pool.fits(task.queue, now)
        ]
        if not waiting:
            continue
        times = waiting[0].queue.run_times
        patience_s = 2 * times.round_trip_s
        stalled_at = donor.last_answer_at + patience_s
        if len(waiting) * times.mean < patience_s and now < stalled_at:
            pool.recheck_at = min(stalled_at, pool.recheck_at or stalled_at)
            continue
        chosen = waiting[len(waiting) // 2 :]
        for task in chosen:
            task.taking_back = True
        donor.take_back_pending = True
        return TakeBack(donor.id, [t.id for t in chosen])
    return None
