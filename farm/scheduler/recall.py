"""Recall: calls that have not begun and fit better elsewhere, and calls that come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from farm.scheduler.actions import Recall
from farm.scheduler.phases import RECALLED
from farm.scheduler.placement import Pool
from farm.scheduler.state import Attempt, Lot, Task, TaskId
from farm.scheduler.workers import Worker

LOOK = 16
"""Workers examined for calls to recall, from the fullest on."""


def for_idle(pool: Pool, donors: Iterable[Pool], now: float) -> Recall | None:
    """If a worker of `pool` idles, recall half of the calls it could run from the fullest worker.

    Not if the donor is likely to run them before a message arrives; then the pool is checked again
    when the donor counts as stalled.
    """
    if not pool.has_idle():
        return None
    for donor_pool in donors:
        for donor in islice(donor_pool.fullest_first(), LOOK):
            if donor.recall_pending or not donor.behind:
                continue
            stalled_at = _stalled_at(donor, now)
            if stalled_at is not None:
                pool.recheck(stalled_at)
                continue
            waiting = _for(pool, _waiting_at(donor), now)
            if waiting:
                return _ask(donor, waiting[len(waiting) // 2 :])
    return None


def in_vain(worker: Worker) -> Recall | None:
    """Calls to recall from `worker`: cancelled ones, and those beyond its current credit."""
    if worker.recall_pending or not worker.behind:
        return None
    chosen = []
    kept: set[Lot | None] = set()
    for task in _waiting_at(worker):
        credit = worker.slots * task.times.prefetch
        lot = task.at(worker).lot
        if task.phase.has_caller and (lot in kept or len(kept) < credit):
            kept.add(lot)
        else:
            chosen.append(task)
    return _ask(worker, chosen) if chosen else None


def released(worker: Worker, task_ids: Iterable[TaskId]) -> Iterator[tuple[Task, Attempt]]:
    """Release those of the tasks that a worker holds; yield each with its attempt there."""
    for task_id in task_ids:
        task = worker.held.get(task_id)
        if task is not None:
            attempt = task.ends_at(worker)
            worker.release(task, attempt)
            task.queue.counts.leave(task.calls)
            yield task, attempt


def has_too_much(worker: Worker, prefetch: int) -> bool:
    """Whether more than twice its credit waits at `worker`, as when short calls turn long."""
    return worker.behind > worker.slots * (1 + 2 * prefetch)


def _stalled_at(donor: Worker, now: float) -> float | None:
    """Return when `donor` counts as stalled, with calls still waiting at it; None: now."""
    newest = donor.held[next(reversed(donor.held))]
    times = newest.times
    patience_s = 2 * times.round_trip_s
    since = max(donor.answers.last_at, donor.busy_since or 0.0)
    if since + patience_s <= now or donor.behind * times.mean >= patience_s * donor.slots:
        return None
    return since + patience_s


def _waiting_at(worker: Worker) -> list[Task]:
    waiting = worker.held_in_turn(worker.slots)[1]
    return [task for task in waiting if task.at(worker).phase is not RECALLED]


def _for(pool: Pool, tasks: list[Task], now: float) -> list[Task]:
    able = {
        kind
        for kind, task in {task.times: task for task in tasks}.items()
        if task.queue.model in pool.queues and pool.least_loaded(1, task, now) is not None
    }
    return [t for t in tasks if t.times in able]


def _ask(worker: Worker, tasks: list[Task]) -> Recall:
    worker.recall(tasks)
    return Recall(worker.id, [t.id for t in tasks])
