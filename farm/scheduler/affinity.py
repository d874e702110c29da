"""Prefers workers that are warm: for the config that they ran last, and for the point.

A change of a model's config may cost a warm-up, such as a mesh or a compilation. The scheduler
learns it from run times after a change against others, and prefers warm workers while it is worth
it. Models with `keeps_point = True` keep what an evaluation has found, so derivatives prefer the
worker that evaluated the same point last.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice

import numpy as np

from farm.call import DERIVATIVES, Call, Operation
from farm.scheduler.placement import Room, depth_for
from farm.scheduler.queues import ClientTasks, ModelQueues
from farm.scheduler.state import Task
from farm.scheduler.workers import Worker

WARM_UPS = 2.0
"""A call is passed over by others of its client for at most this many warm-ups."""

LOOK = 16
"""Configs and idle workers that are looked at, so that thousands of them cost no more."""

POINT_BYTES = 4096
"""Most bytes of the inputs that tell points apart; the middle of larger inputs is not read."""

WAIT_RUNS = 0.1
"""A derivative waits for the worker that evaluated its point until this part of its run after its
arrival.
"""

EVALUATIONS = frozenset({Operation.EVALUATE, Operation.VALUE_AND_GRADIENT})
"""Operations after which a worker keeps what it found at their point."""

AT_A_POINT = DERIVATIVES - EVALUATIONS
"""Operations that use what an evaluation of their point has kept."""


def placed(worker: Worker, model: ModelQueues, call: Call) -> bool:
    """Note what a worker runs next; return whether it has run another config of the model before.

    None has run on a new worker, so its first run counts as a change, too. A question about the
    cost warms nothing.
    """
    if call.operation is Operation.COST:
        return False
    last = model.config_at.get(worker)
    if model.keeps_point and call.operation in EVALUATIONS:
        _forget_point(worker, model)
        key = model.point_at[worker] = point_key(call)
        model.by_point[key] = worker
    if last == call.config:
        return False
    if last is not None:
        _remove(model, last, worker)
    model.config_at[worker] = call.config
    model.by_config.setdefault(call.config, {})[worker] = None
    return True


def forget(worker: Worker) -> None:
    """Forget a worker that has left."""
    for model in worker.pool.queues:
        if (config := model.config_at.pop(worker, None)) is not None:
            _remove(model, config, worker)
        _forget_point(worker, model)


def _remove(model: ModelQueues, config: str, worker: Worker) -> None:
    holders = model.by_config[config]
    del holders[worker]
    if not holders:
        del model.by_config[config]


def _forget_point(worker: Worker, model: ModelQueues) -> None:
    key = model.point_at.pop(worker, None)
    if key is not None and model.by_point.get(key) is worker:
        del model.by_point[key]


def point_key(call: Call) -> int:
    """Return a number that equal inputs and configs share; it reads POINT_BYTES at most."""
    key = zlib.crc32(call.config.encode())
    room = POINT_BYTES
    for array in call.inputs:
        flat = array.reshape(-1)
        if array.dtype.hasobject:  # texts of any length
            data = repr([text[:LOOK] for text in flat[:LOOK].tolist()]).encode()[:room]
        else:
            count = room // array.itemsize
            if flat.size > count:
                flat = np.concatenate([flat[: count // 2], flat[flat.size - count // 2 :]])
            data = flat.tobytes()
        key = zlib.crc32(repr(array.shape).encode(), zlib.crc32(data, key))
        room -= len(data)
    return key


def matters(head: Task) -> bool:
    """Whether some workers may be better than others for the next call of a queue."""
    queue = head.queue
    model = queue.model
    if model.keeps_point and queue.operation in AT_A_POINT:
        return True
    if not queue.kinds.warm_up_s:
        return False
    if len(model.by_config) > 1 or head.call.config not in model.by_config:
        return True
    return head.line is not None and head.line.is_mixed


def choose(head: Task, depth: int, room: Room) -> tuple[Task, int, Worker | None] | None:
    """Return the call of the head's client to run next, its depth, and the worker for it.

    The worker is None if any will do. None: the head waits a moment for its worker.
    """
    queue = head.queue
    model = queue.model
    if model.keeps_point and queue.operation in AT_A_POINT:
        worker = model.by_point.get(point_key(head.call))
        if worker is not None:
            if room.is_open_at(worker, head, 1):
                return head, depth, worker
            if _waits(head, room):
                return None
    if not queue.kinds.warm_up_s:
        return head, depth, None
    task = head
    patience_s = WARM_UPS * queue.kinds.warm_up_s
    line = head.line
    assert line is not None
    if head.passed_at is None or room.now - head.passed_at < patience_s:
        task = _of_line(line, head, depth, room) or head
    if task is not head and head.passed_at is None:
        head.pass_by(room.now)
    if task.times is not head.times:
        depth = min(depth, depth_for(task))
    return task, depth, _worker_for(task, depth, room)


def waits_until(derivative: Task) -> float:
    """Return until when a derivative waits for the worker that evaluated its point.

    It counts from the arrival, so that many that wait for one worker do not wait one by one.
    """
    return derivative.submitted_at + WAIT_RUNS * derivative.times.mean


def _waits(head: Task, room: Room) -> bool:
    until = waits_until(head)
    if room.now >= until:
        return False
    for pool in head.queue.model.pools:
        if pool in room.pools:
            pool.recheck(until)
    return True


def _of_line(line: ClientTasks, head: Task, depth: int, room: Room) -> Task | None:
    """Return the call that a free worker is warm for, or that no other worker is warm for.

    If no worker is free, the call that one is warm for that prefetches.
    """
    if not line.is_mixed or len(by_config := line.by_config()) == 1:
        return None
    is_free, model = False, head.queue.model
    for worker in _idle(head, room):
        is_free = True
        tasks = by_config.get(model.config_at.get(worker, ""))
        if tasks:
            return next(iter(tasks.values()))
    if not is_free and depth > 1:
        ahead = room.worker_for(head, depth)
        tasks = None if ahead is None else by_config.get(model.config_at.get(ahead, ""))
        if tasks:
            return next(iter(tasks.values()))
    holders = model.by_config

    def waiting_per_worker(config: str) -> float:
        there = holders.get(config)
        return len(by_config[config]) / len(there) if there else float("inf")

    best = max(islice(by_config, LOOK), key=waiting_per_worker)
    return next(iter(by_config[best].values()))


def _worker_for(task: Task, depth: int, room: Room) -> Worker | None:
    """Return a free worker that is warm for a call, or else the one that is missed least.

    If no worker is free, one that is warm and prefetches.
    """
    model = task.queue.model
    warm = list(islice(model.by_config.get(task.call.config, ()), LOOK))
    for worker in warm:
        if room.is_open_at(worker, task, 1):
            return worker
    coldest: Worker | None = None
    for worker in _idle(task, room):
        config = model.config_at.get(worker)
        if config is None or len(model.by_config[config]) > 1:
            return worker
        if coldest is None or worker.answers.last_at < coldest.answers.last_at:
            coldest = worker
    if coldest is None and depth > 1:
        for worker in warm:
            if room.is_open_at(worker, task, depth):
                return worker
    return coldest


def _idle(task: Task, room: Room) -> Iterator[Worker]:
    """Yield workers with a free slot that may take a call."""
    for pool in task.queue.model.pools:
        if pool in room.pools:
            for worker in islice(pool.longest_idle(), LOOK):
                if room.is_open_at(worker, task, 1):
                    yield worker
