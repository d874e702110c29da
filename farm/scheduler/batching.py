"""What may share a batch: calls that differ in their numbers only."""

from __future__ import annotations

from farm.call import Call, Operation
from farm.scheduler.queues import Queue
from farm.scheduler.state import Task


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
