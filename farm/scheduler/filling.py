"""Assigns waiting tasks to workers that have credit, in the order of turns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from farm.scheduler.actions import Send
from farm.scheduler.batching import lingers, take_batch
from farm.scheduler.credit import place
from farm.scheduler.placement import Pool, depth_for, has_room, leave_room, worker_for
from farm.scheduler.queues import Queue
from farm.scheduler.state import WorkerId


def fill(pools: Collection[Pool], turns: Iterator[int], now: float) -> Iterable[Send]:
    """Move tasks from their queues to workers of `pools` that may take them; return the messages.

    Pools that have not changed since the last call have no room, or must not be given any tasks.
    turns: counts the lots that were sent, over all models.
    """
    waiting: dict[Queue, None] = {}
    for pool in pools:
        for model in pool.queues:
            waiting.update(model.waiting)
    queues = list(waiting)
    sends: dict[WorkerId, Send] = {}
    limits: dict[Pool, int] = {}
    if len(queues) > 1:
        queues.sort(key=Queue.turn, reverse=True)
    while queues:
        queue = queues[-1]
        if lingers(queue, now):
            queues.pop()
            continue
        head = queue.head()
        depth = depth_for(head)
        worker = worker_for(queue, depth, pools, limits, now)
        if worker is None:
            queues.pop()
            if queues:
                leave_room(queue, depth, pools, limits, now)
            continue
        batch = take_batch(queue, head)
        place(batch, worker, depth, now)
        queue.model.served_at = next(turns)
        send = sends.get(worker.id)
        if send is None:
            sends[worker.id] = Send(worker.id, batch)
        else:
            send.tasks.extend(batch)
        if not queue.size or not (queue.needs_no_slot or has_room(queue, pools)):
            queues.pop()
        if len(queues) > 1:
            queues.sort(key=Queue.turn, reverse=True)
    return sends.values()
