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
    """Remove from `queue` the next batch: `head` and all that may go with it, oldest first.

    At most `queue.max_batch` rows; a single call of more rows than that goes alone.
    """
    batch = [head]
    rows = head.rows
    if head.batch_key is not None and rows < queue.max_batch:
        for task in queue.compatible(head):
            if task is head:
                continue
            if rows + task.rows > queue.max_batch:
                break
            batch.append(task)
            rows += task.rows
    for task in batch:
        queue.remove(task)
    return batch
