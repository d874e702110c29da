"""What to ask back of workers: calls they have not begun that would be better off elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from farm.scheduler.actions import TakeBack
from farm.scheduler.placement import Pool
from farm.scheduler.state import Lot, Task, Worker

LOOK = 16
"""Workers looked at for something to take back, from the fullest on."""


def for_idle(pool: Pool, donors: Iterable[Pool], now: float) -> TakeBack | None:
    """If a worker of `pool` idles: half of what waits at the fullest worker that it could run.

    Not if the donor likely gets to it before a message could; then `pool.recheck_at` says when
    the donor counts as stalled.
    """
    if not pool.has_idle():
        return None
    for donor_pool in donors:
        for donor in islice(donor_pool.fullest_first(), LOOK):
            if donor.take_back_pending or not donor.behind:
                continue
            stalled_at = _stalled_at(donor, now)
            if stalled_at is not None:
                pool.recheck_at = min(stalled_at, pool.recheck_at or stalled_at)
                continue
            waiting = _for(pool, _waiting_at(donor), now)
            if waiting:
                return _ask(donor, waiting[len(waiting) // 2 :])
    return None


def in_vain(worker: Worker) -> TakeBack | None:
    """What waits at `worker` to no good: cancelled calls, and more calls than its credit is now."""
    if worker.take_back_pending or not worker.behind:
        return None
    chosen = []
    kept: set[Lot | None] = set()
    for task in _waiting_at(worker):
        credit = worker.slots * task.queue.run_times.prefetch
        if not task.abandoned and (task.lot in kept or len(kept) < credit):
            kept.add(task.lot)
        else:
            chosen.append(task)
    return _ask(worker, chosen) if chosen else None


def has_too_much(worker: Worker, prefetch: int) -> bool:
    """Whether more than twice its credit waits at `worker`, as when short calls turn long."""
    return worker.behind > worker.slots * (1 + 2 * prefetch)


def _stalled_at(donor: Worker, now: float) -> float | None:
    """When to give up waiting for `donor` to get through what waits at it; None: at once."""
    newest = donor.held[next(reversed(donor.held))]
    times = newest.queue.run_times
    patience_s = 2 * times.round_trip_s
    since = max(donor.last_answer_at, donor.busy_since or 0.0)
    if since + patience_s <= now or donor.behind * times.mean >= patience_s * donor.slots:
        return None
    return since + patience_s


def _waiting_at(worker: Worker) -> list[Task]:
    return [t for t in worker.held_in_turn(worker.slots)[1] if not t.asked_back]


def _for(pool: Pool, tasks: list[Task], now: float) -> list[Task]:
    able = {
        queue
        for queue in {t.queue for t in tasks}
        if queue.model in pool.queues and pool.least_loaded(1, queue, now) is not None
    }
    return [t for t in tasks if t.queue in able]


def _ask(worker: Worker, tasks: list[Task]) -> TakeBack:
    for task in tasks:
        task.asked_back = True
    worker.take_back_pending = True
    return TakeBack(worker.id, [t.id for t in tasks])
