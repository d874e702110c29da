"""Assigns waiting tasks to workers that have credit, in the order of turns.

Pools index workers by their credit, and queues order clients by the slots they hold, so each change
updates both.
"""

from __future__ import annotations

from collections.abc import Collection

from farm.scheduler.accounts import SLOT
from farm.scheduler.actions import Send
from farm.scheduler.affinity import choose, matters, placed
from farm.scheduler.batching import lingers, take_batch
from farm.scheduler.placement import Pool, Room, depth_for
from farm.scheduler.queues import BATCH, BUSY, NO_PLACE, POINT, RESERVE, TOO_LONG, Queue
from farm.scheduler.reserve import keepers, with_neighbours, without_reserves
from farm.scheduler.sequences import waits_for_slot, worker_for_step
from farm.scheduler.state import Attempt, Lot, Task, WorkerId
from farm.scheduler.turns import next_turn
from farm.scheduler.workers import Worker

UNKNOWN_CHARGE_S = 1e-6
"""Charge of a call of unknown length, so that clients take turns from the start."""


def fill(pools: Collection[Pool], now: float) -> Collection[Send]:
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
    everywhere = Room(pools, now, {})
    while queues:
        is_last = len(queues) == 1
        queue = queues[0] if is_last else next_turn(queues)
        if queue.company and lingers(queue, now):
            queue.passed_over = BATCH
            queues.remove(queue)
            continue
        head = queue.head()
        depth, room = depth_for(head), everywhere
        if has_reserve and (kept := keepers(queue)):
            depth, spared = 1, without_reserves(pools, queue, kept)
            room = everywhere if spared is pools else Room(spared, now, everywhere.limits)
        if head.sequence is not None:
            worker = worker_for_step(head, room)
        elif (queue.kinds.warm_up_s or queue.model.keeps_point) and matters(head):
            chosen = choose(head, depth, room)
            if chosen is None:
                queue.passed_over = POINT
                queues.remove(queue)
                continue
            head, depth, worker = chosen
            if worker is None:
                worker = room.worker_for(head, depth)
        else:
            worker = room.worker_for(head, depth)
        if worker is None:
            queues.remove(queue)
            queue.passed_over = BUSY
            if head.sequence is None:
                for pool in queue.model.pools:
                    if pool.occupied & 1:
                        queue.passed_over = TOO_LONG if room is everywhere else RESERVE
            elif not waits_for_slot(head):
                queue.passed_over = NO_PLACE
                continue
            if queues:
                room.leave(head, depth)
            continue
        if head.batch_key is None:
            queue.remove(head)
            batch = [head]
        else:
            batch = take_batch(queue, head)
        place(batch, worker, depth, now)
        if head.sequence is not None:
            head.sequence.sent(worker)
        send = sends.get(worker.id)
        if send is None:
            sends[worker.id] = Send(worker.id, batch)
        else:
            send.tasks.extend(batch)
        if not queue.size or not (queue.needs_no_slot or head.sequence or everywhere.takes(queue)):
            queue.passed_over = BUSY
            if is_last:
                break
            queues.remove(queue)
    return sends.values()


def place(batch: list[Task], worker: Worker, depth: int, now: float) -> None:
    """Place tasks of one queue on `worker` as one lot; `depth`: maximum lots per slot."""
    first = batch[0]
    queue = first.queue
    model = queue.model
    accounts = model.accounts
    size = len(batch)
    rows = first.rows if size == 1 else sum([task.rows for task in batch])
    lot: Lot | None = None
    row_held = 0
    if not queue.needs_no_slot:
        is_warm = model.config_at.get(worker) is first.call.config and not model.keeps_point
        cold = not is_warm and placed(worker, model, first.call)
        lot = Lot(size, size, rows, exclusive=depth == 1, cold=cold)
        # As many lots as one slot may hold count as one slot; rounded up, so that they reach it.
        row_held = -(-SLOT // (depth * rows))
    row_charge_s = first.times.mean or UNKNOWN_CHARGE_S
    if queue.max_batch > 1:  # one evaluation for all rows
        row_charge_s /= rows
    accounts.group.serve(first.account.usage)
    alone, last_at = not worker.lots, worker.answers.last_at
    for task in batch:
        weight = task.account.usage.weight
        charged_s = row_charge_s * task.rows / weight
        held = row_held * task.rows
        accounts.charge(task.account, held, charged_s, now)
        refill = alone and last_at > task.submitted_at
        task.send(Attempt(worker, lot, held, charged_s, now, weight, alone, refill))
    worker.take(batch, lot, now)
    queue.counts.send(first.calls if size == 1 else sum([task.calls for task in batch]))
