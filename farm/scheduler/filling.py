"""Assigns waiting tasks to workers that have credit, in the order of turns."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from farm.scheduler.actions import Send
from farm.scheduler.affinity import choose, matters
from farm.scheduler.batching import lingers, take_batch
from farm.scheduler.credit import place
from farm.scheduler.placement import Pool, depth_for, has_room, leave_room, worker_for
from farm.scheduler.queues import Queue
from farm.scheduler.reserve import keepers, with_neighbours, without_reserves
from farm.scheduler.sequences import waits_for_slot, worker_for_step
from farm.scheduler.state import WorkerId
from farm.scheduler.turns import next_turn


def fill(pools: Collection[Pool], now: float) -> Iterable[Send]:
    """Move tasks from their queues to workers of `pools` that may take them; return the messages.

    Pools that have not changed since the last call have no room, or must not be given any tasks.
    """
    waiting: dict[Queue, None] = {}
    has_reserve = False
    for pool in pools:
        if pool.reserving:
            has_reserve = True
        for model in pool.queues:
            waiting |= model.waiting
    if has_reserve:
        pools = with_neighbours(pools)
        waiting = {queue: None for p in pools for model in p.queues for queue in model.waiting}
    queues = list(waiting)
    sends: dict[WorkerId, Send] = {}
    limits: dict[Pool, int] = {}
    while queues:
        queue = queues[0] if len(queues) == 1 else next_turn(queues)
        if queue.company and lingers(queue, now):
            queues.remove(queue)
            continue
        head = queue.head()
        depth, room = depth_for(head), pools
        if has_reserve and (kept := keepers(queue)):
            depth, room = 1, without_reserves(pools, queue, kept)
        if head.sequence is not None:
            worker = worker_for_step(head, queue, room, now)
        elif (queue.run_times.warm_up_s or queue.model.keeps_point) and matters(queue, head):
            chosen = choose(queue, head, depth, room, limits, now)
            if chosen is None:
                queues.remove(queue)
                continue
            head, worker = chosen
            if worker is None:
                worker = worker_for(queue, depth, room, limits, now)
        else:
            worker = worker_for(queue, depth, room, limits, now)
        if worker is None:
            queues.remove(queue)
            if queues and (head.sequence is None or waits_for_slot(head)):
                leave_room(queue, depth, room, limits, now)
            continue
        batch = take_batch(queue, head)
        place(batch, worker, depth, now)
        if head.sequence is not None:
            head.sequence.sent(worker)
        send = sends.get(worker.id)
        if send is None:
            sends[worker.id] = Send(worker.id, batch)
        else:
            send.tasks.extend(batch)
        if not queue.size or not (queue.needs_no_slot or head.sequence or has_room(queue, pools)):
            queues.remove(queue)
    return sends.values()
