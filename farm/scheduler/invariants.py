"""What must always hold of the scheduler's state; tests assert it after every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from farm.call import Operation
from farm.scheduler.placement import FULL, Pool
from farm.scheduler.queues import Queue
from farm.scheduler.state import Task, TaskId, Worker, WorkerId, needs_no_slot


def check(
    tasks: Mapping[TaskId, Task],
    workers: Mapping[WorkerId, Worker],
    queues: Mapping[str, Mapping[Operation, Queue]],
    pools: Iterable[Pool],
    queued: int,
) -> None:
    """Assert every invariant; raises AssertionError that names the first one broken."""
    waiting = [t for by_op in queues.values() for q in by_op.values() for t in q.waiting()]
    held = [t for w in workers.values() for t in w.held.values()]
    assert len(waiting) == queued, "the count of waiting tasks is right"
    assert len({t.id for t in waiting} | {t.id for t in held}) == len(tasks), (
        "a task is in exactly one place: its queue or one worker"
    )
    assert len(waiting) + len(held) == len(tasks), "no task is in two places"
    for task in waiting:
        assert task.worker is None, "a waiting task has no worker"
        assert task.lot is None, "a waiting task takes no credit"
        assert not task.abandoned, "nobody waits for nothing"
    for worker in workers.values():
        lots = {t.lot for t in worker.held.values() if t.lot is not None}
        assert len(lots) == worker.lots, "a worker's lots are those of its tasks"
        assert sum(lot.exclusive for lot in lots) == worker.exclusive_lots
        assert worker.level == worker.wanted_level(FULL), "the index knows the worker's level"
        if worker.exclusive_lots:
            assert worker.lots <= worker.slots, "nothing waits at a worker behind a long call"
        for task in worker.held.values():
            assert task.worker is worker, "a task knows its worker"
            assert task.call.model in worker.pool.models, "a worker gets only models it has"
            assert (task.lot is None) == needs_no_slot(task.queue.operation)
    for by_operation in queues.values():
        for queue in by_operation.values():
            assert queue.size == sum(1 for _ in queue.waiting()), "a queue knows its size"
            here = sum(1 for t in held if t.queue is queue)
            assert queue.in_flight == here, "a queue knows what is in flight"
    for pool in pools:
        members = sum(1 for w in workers.values() if w.pool is pool)
        assert pool.size == members > 0, "a pool has its workers, and is gone with the last"
