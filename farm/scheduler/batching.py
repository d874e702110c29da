"""Batching: calls that differ only in their numbers may share a batch."""

from __future__ import annotations

from farm.call import Call, Operation
from farm.scheduler.queues import Queue
from farm.scheduler.state import Lot, Task

LINGER = 0.1
"""After a batch of several calls, the next one waits for this fraction of a run's time, because
clients that were just answered ask again: measured to be faster at every number of clients.
"""

LONGEST_LINGER_S = 0.002
SHORTEST_LINGER_S = 1e-4
"""Below this, a timer costs more than the wait gains."""


def batch_key(call: Call, *, max_batch: int) -> object:
    """Return a key, equal for calls that one model execution may answer; None: the call runs alone.

    Model and operation are the queue's; the key covers config, dtypes and the shapes of one row.
    """
    if max_batch <= 1 or call.operation is not Operation.EVALUATE:
        return None
    skip = 0 if call.rows is None else 1
    return call.config, tuple((a.dtype.char, a.shape[skip:]) for a in call.inputs)


def take_batch(queue: Queue, head: Task) -> list[Task]:
    """Remove from `queue` the next batch: `head`, whose turn it is, and calls compatible with it.

    head: it has a batch key.

    A batch has at most `queue.max_batch` rows; a single call with more rows runs alone. Calls join
    in the order of turns as long as the next one fits, and then oldest first.
    """
    queue.remove(head)
    batch = [head]
    room = queue.max_batch - head.rows
    if room <= 0:
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


def linger_after(lot: Lot, task: Task, now: float) -> None:
    """Delay the queue's next batch a moment after one of several calls, as `task`, has ended.

    This happens only if no worker idles otherwise: calls of a lone client are never delayed.
    """
    queue = task.queue
    linger_s = min(LINGER * task.times.mean, LONGEST_LINGER_S)
    if lot.size < 2 or linger_s < SHORTEST_LINGER_S:
        return
    if any(pool.has_idle() for pool in queue.model.pools):
        return
    queue.linger(now + linger_s, min(queue.size + lot.size, queue.max_batch))


def lingers(queue: Queue, now: float) -> bool:
    """Whether the queue's next batch still waits for calls of those who were just answered.

    Afterwards pools are checked again.
    """
    if now >= queue.lingers_until or queue.size >= queue.company:
        queue.linger(0.0, 0)
        return False
    for pool in queue.model.pools:
        pool.recheck(queue.lingers_until)
    return True
