"""Reserves: slots of a model's workers that calls of much longer classes leave free.

A short call beside long ones finds a worker at once if one is kept from them. Without a reserve it
may have to wait for the end of a long run, when all of these begin together. A reserved slot idles
until a short call needs it, so models have none by default.
"""

from __future__ import annotations

from collections.abc import Collection

from farm.call import Operation
from farm.scheduler.placement import Pool
from farm.scheduler.queues import ModelQueues, Queue

LONG_RUNS = 10.0
"""A class is long beside a model if its mean run takes more than this many evaluations of it."""


def is_long(queue: Queue, model: ModelQueues) -> bool:
    """Whether a class is kept out of a model's reserve; never while a run time is unknown."""
    own_s = model.by_operation[Operation.EVALUATE].run_times.mean
    return own_s > 0.0 and queue.run_times.mean > LONG_RUNS * own_s and queue.model is not model


def keepers(queue: Queue) -> list[ModelQueues]:
    """Return the models with a reserve that binds a class, on workers that serve both."""
    if queue.needs_no_slot:
        return []
    beside = dict.fromkeys([model for pool in queue.model.pools for model in pool.reserving])
    return [model for model in beside if is_long(queue, model)]


def without_reserves(
    pools: Collection[Pool], queue: Queue, keepers: Collection[ModelQueues]
) -> Collection[Pool]:
    """Return those of `pools` that serve a class and none of the keepers that spare no slot."""
    closed = {model for model in keepers if spare_slots(model) <= 0}
    if not closed:
        return pools
    return [p for p in queue.model.pools if p in pools and closed.isdisjoint(p.reserving)]


def spare_slots(model: ModelQueues) -> int:
    """Return how many more slots of a model's workers long calls may take.

    They may always take one slot: otherwise they would never run on a farm with few workers.
    """
    slots = model.slots()
    taken = 0
    for pool in model.pools:
        assert pool.lots_of is not None, "a pool counts the lots of each class beside a reserve"
        long = [queue for queue, lots in pool.lots_of.items() if lots and is_long(queue, model)]
        taken += sum([pool.lots_of[queue] for queue in long])
        if long:  # the slots of a worker that drains count no more, so neither do its calls
            taken -= sum([lots for queue, lots in pool.shut_lots().items() if queue in long])
    return max(1, slots - model.policy.reserved(slots)) - taken


def with_neighbours(pools: Collection[Pool]) -> Collection[Pool]:
    """Return `pools` and those that share a reserve with them, where calls may wait for it."""
    found = dict.fromkeys(pools)
    for pool in pools:
        for model in pool.reserving:
            found.update(dict.fromkeys(model.pools))
    return found.keys()
