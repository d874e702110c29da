"""What may share a batch: calls that differ in their numbers only."""

from __future__ import annotations

from farm.call import Call, Operation
from farm.scheduler.queues import Queue
from farm.scheduler.state import Lot, Task

LINGER = 0.1
"""After a batch of several calls the next one waits for so much of a run's time for company, as
clients that were just answered ask again: measured to win at every number of clients."""

LONGEST_LINGER_S = 0.002
SHORTEST_LINGER_S = 1e-4
"""Below, a timer costs more than is won."""


def batch_key(call: Call, *, max_batch: int) -> object:
    """Equal for calls that one model execution may answer together; None: runs by itself.

    Model and operation are the queue's; the rest is config, dtypes and the shapes of one row.
    """
    if max_batch <= 1 or call.operation is not Operation.EVALUATE:
        return None
    skip = 0 if call.rows is None else 1
    return call.config, tuple((a.dtype.char, a.shape[skip:]) for a in call.inputs)


def take_batch(queue: Queue, head: Task) -> list[Task]:
    """Remove from `queue` the next batch: `head`, whose turn it is, and all that may go with it.

    At most `queue.max_batch` rows; a single call of more rows than that goes alone. They join in
    the order of turns as long as that names calls that fit, and then oldest first.
    """
    queue.remove(head)
    batch = [head]
    room = queue.max_batch - head.rows
    if head.batch_key is None or room <= 0:
        return batch
    while queue.size:
        task = queue.head()
        if task.batch_key != head.batch_key or task.rows > room:
            break
        queue.remove(task)
        batch.append(task)
        room -= task.rows
    riders = []
    for task in queue.compatible(head):
        if task.rows > room:
            break
        riders.append(task)
        room -= task.rows
    for task in riders:
        queue.remove(task)
    return batch + riders


def linger_after(lot: Lot, queue: Queue, now: float) -> None:
    """Let the queue's next batch wait a moment, when a batch of several calls has ended.

    Only when no worker idles otherwise: what a lone client asks is never held back.
    """
    linger_s = min(LINGER * queue.run_times.mean, LONGEST_LINGER_S)
    if lot.size < 2 or linger_s < SHORTEST_LINGER_S:
        return
    if any(pool.has_idle() for pool in queue.model.pools):
        return
    queue.lingers_until = now + linger_s
    queue.company = min(queue.size + lot.size, queue.max_batch)


def lingers(queue: Queue, now: float) -> bool:
    """Whether the queue's next batch still waits for company; its pools look again when not."""
    if not queue.company:
        return False
    if queue.lingers_until <= now or queue.size >= queue.company:
        queue.company = 0
        return False
    for pool in queue.model.pools:
        pool.recheck_at = min(queue.lingers_until, pool.recheck_at or queue.lingers_until)
    return True
