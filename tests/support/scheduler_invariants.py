"""Invariants of the scheduler's state, which tests assert after every step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from itertools import pairwise

from farm.scheduler.accounts import Usage, share
from farm.scheduler.core import Scheduler
from farm.scheduler.phases import ENDED, GONE, OUTRUN, QUEUED, SHUT, SHUT_AND_FULL, WorkerPhase
from farm.scheduler.placement import ANY_LEVEL, FULL, NO_END, lots_of
from farm.scheduler.queues import ClientTasks, ModelQueues, Queue
from farm.scheduler.sequences import LiveSequence, Sequences, step_of
from farm.scheduler.state import Attempt, Task, TaskId, WorkerId
from farm.scheduler.workers import Worker


def check(scheduler: Scheduler) -> None:
    """Assert every invariant of its state; the AssertionError names the first one broken."""
    tasks, queued = scheduler._open.by_id, scheduler._open.queued
    workers, models = scheduler._workers, scheduler._models
    pools, clients = scheduler._pools, scheduler._clients
    waiting = [
        task for m in models.values() for q in m.by_operation.values() for task in waiting_in(q)
    ]
    for model in models.values():
        if model.sequences is not None:
            waiting += check_sequences(model, model.sequences, tasks, workers)
    held = [task for worker in workers.values() for task in worker.held.values()]
    at_workers = Counter(task.id for task in held)
    copied = sum(task.copy is not None for task in tasks.values())
    assert len(waiting) + len(held) == len(tasks) + copied, "a task is in its queue or at a worker"
    assert {t.id for t in waiting} | set(at_workers) == set(tasks), "and not in both"
    for task_id, times in at_workers.items():
        wanted = 1 if tasks[task_id].copy is None else 2
        assert times == wanted, "a task is at one worker, and its copy at another one"
    assert len(waiting) == queued, "the count of waiting tasks is right"
    by_client = Counter(task.account.client.name for task in waiting)
    assert by_client == {name: c.queued for name, c in clients.items() if c.queued}, (
        "so are those of the clients"
    )
    for task in waiting:
        _check_waiting(task)
    for worker in workers.values():
        _check_worker(worker)
    for model in models.values():
        _check_model(model, waiting, held, tasks.values())
    behind = sum(worker.behind for worker in workers.values())
    assert pools.behind == behind, "the lots that wait at workers are counted"
    first = min(pools.rechecks.values(), default=pools.recheck_at)
    assert pools.recheck_at <= first, "none is to be checked before all are"
    for pool in pools.values():
        members = [w for w in workers.values() if w.pool is pool]
        assert pool.size == len(members) > 0, "a pool counts its workers, and ends with the last"
        assert sorted(w.id for w in pool.fullest_first()) == sorted(w.id for w in members), (
            "a pool's index holds each of its workers once"
        )
        assert pool.slots == sum(w.slots for w in members), "a pool counts their slots"
        assert pool.behind == sum(w.behind for w in members), "a pool counts the lots waiting at it"
        ends = {w.ends_at for w in members}
        assert pool.is_ending == (min(ends) < NO_END), "a pool knows whether some worker ends"
        assert ends.issuperset(e for shelf in pool._shelves for e in shelf.ends), "and their ends"
        if pool.lots_of is not None:
            assert +pool.lots_of == lots_of(members), "and the lots of each class there"
        assert all(pool in model.pools for model in pool.queues), "its models know the pool"


def waiting_in(queue: Queue) -> list[Task]:
    """Return all tasks that wait in a queue, in no particular order."""
    lines = (line for level in queue._levels.values() for line in level.lines.values())
    return [task for line in lines for task in line.tasks.values()]


def check_sequences(
    model: ModelQueues,
    sequences: Sequences,
    tasks: Mapping[TaskId, Task],
    workers: Mapping[WorkerId, Worker],
) -> list[Task]:
    """Check the sequences of a model; return their calls that wait outside its queues."""
    aside = [task for queue in sequences.bound.values() for task in waiting_in(queue)]
    aside += sequences.behind_others()
    main = [queue.counts.aside for queue in model.by_operation.values()]
    assert sum(main) == len(aside), "a model counts the calls that wait for a sequence or worker"
    for worker, queue in sequences.bound.items():
        assert workers.get(worker.id) is worker, "a queue of a worker ends with it"
        there = [live for live in worker.sequences if live.of is sequences]
        assert 0 < queue.sequences == len(there), "and with the last sequence there"
        assert queue.sequences <= sequences.limits.most, "a worker has so many places"
        assert queue.size == len(waiting_in(queue)), "and knows its size"
        assert (queue in model.waiting) == (queue.size > 0), "and is known when calls wait in it"
        for task in waiting_in(queue):
            assert task.sequence is not None, "calls of sequences wait there"
            assert task.sequence.current is task, "each the first of its sequence"
            assert task.sequence.queue is queue, "which that worker has"
            assert not step_of(task).start, "and which has begun"
    taken = [live for worker in workers.values() for live in worker.sequences]
    taken = [live for live in taken if live.of is sequences]
    assert sequences.places_taken == len(taken), "the places taken at workers are counted"
    for sequence_id, live in sequences.live.items():
        assert live.id == sequence_id, "a sequence is found by its id"
        _check_live(live, tasks)
    steps = {task.id for task in tasks.values() if task.sequence is not None}
    mine = {task.id for live in sequences.live.values() for task in _calls_of(live)}
    others = {i for i in steps if tasks[i].queue.model is not model}
    assert mine == steps - others, "each call of a sequence is known to it"
    ends = list(sequences.idle.values())
    assert ends == sorted(ends), "the first of the idle sequences ends first"
    return aside


def _calls_of(live: LiveSequence) -> list[Task]:
    return [*([] if live.current is None else [live.current]), *live.waiting.values()]


def _check_live(live: LiveSequence, tasks: Mapping[TaskId, Task]) -> None:
    idle = live in live.of.idle
    assert idle == (live.current is None), "a sequence without calls is idle"
    calls = _calls_of(live)
    assert all(tasks.get(task.id) is task for task in calls), "its calls are open"
    assert all(task.sequence is live for task in calls), "and know it"
    if idle:
        assert not live.waiting, "nothing waits for nothing"
        assert live.queue is not None, "and has its state at a worker"
        assert not live.closed, "and goes on"
        return
    current = live.current
    assert current is not None
    assert [task.id for task in calls] == sorted(task.id for task in calls), "calls are in order"
    for before, after in pairwise(calls):
        assert step_of(after).start or not step_of(before).end, "after its end it begins anew"
    if current.phase is QUEUED:
        assert (live.queue is None) == step_of(current).start, "its start may run anywhere"
    elif live.queue is not None:
        assert live.queue.worker is current.attempt.worker, "it runs where its state is"


def _check_waiting(task: Task) -> None:
    assert task.phase is QUEUED, "a waiting task is queued and has a caller"
    assert all(a.phase.is_over for a in task.past.former), "a waiting task has no current attempt"
    assert task.copy is None, "nor a copy"
    if task.sequence is not None and task.id in task.sequence.waiting:
        assert task.line is None, "a call waits behind its sequence, or in a line"
        return
    assert task.line is not None, "a waiting task knows its line"
    assert task.line.tasks.get(task.id) is task, "and its line knows the task"
    assert task.line.account is task.account, "which is its client's"
    assert task.line.is_mixed or task.call.config == task.line.config, "and knows of other configs"
    if task.line.index is not None:
        alike = task.line.index[task.call.config]
        assert alike.get(task.id) is task, "which it finds by config"


def _check_worker(worker: Worker) -> None:
    shut = worker.phase in (SHUT, SHUT_AND_FULL)
    assert worker.phase is not GONE, "a worker that is gone is not kept"
    assert shut == (not worker.slots), "a worker that offers no slot is shut"
    attempts = [task.at(worker) for task in worker.held.values() if task.phase is not QUEUED]
    lots = {attempt.lot for attempt in attempts if attempt.lot is not None}
    assert len(lots) == worker.lots, "a worker's lots are those of its tasks"
    exclusive = sum(lot.exclusive for lot in lots)
    assert exclusive == worker.exclusive_lots, "a worker knows its exclusive lots"
    assert worker.level == wanted_level(worker), "the index knows the worker's level"
    behind = max(0, worker.lots - (worker.slots or worker.last_slots))
    assert worker.behind == behind, "a worker counts its waiting lots"
    assert (worker.busy_since is None) == (not worker.held), "a worker is busy while it holds"
    if worker.exclusive_lots:
        assert worker.lots <= worker.most_slots, "nothing waits at a worker behind a long call"
    for lot in lots:
        members = [attempt for attempt in attempts if attempt.lot is lot]
        assert lot.remaining == len(members), "a lot counts its tasks"
    outrun = sum(task.phase is OUTRUN for task in worker.held.values())
    assert worker.outrun == outrun, "a worker counts its tasks that were answered elsewhere"
    for task in worker.held.values():
        assert task.phase not in (QUEUED, ENDED), "a task at a worker was sent there"
        attempt = task.at(worker)
        assert attempt.worker is worker, "a task knows its worker"
        assert not attempt.phase.is_over, "its last attempt is in progress"
        assert all(a.phase.is_over for a in task.past.former), "and its former attempts are over"
        assert task.line is None, "a task at a worker waits in no line"
        assert task.queue.model in worker.pool.queues, "a worker gets only models it has"
        assert (attempt.lot is None) == task.queue.needs_no_slot, "a task in a slot has a lot"
        if task.copy is not None:
            _check_copy(task, task.copy)
        if task.phase is OUTRUN:
            assert task.past.copied, "only a copied task is answered by another worker"
            assert attempt.held == attempt.charged_s == 0, "and its client is done with it"


def _check_copy(task: Task, copy: Attempt) -> None:
    assert task.past.copied, "a task knows that it was copied"
    assert task.phase is not OUTRUN, "after an answer only one of two attempts goes on"
    assert copy.worker is not task.attempt.worker, "a copy is at another worker"
    assert copy.is_copy != task.attempt.is_copy, "one of two attempts is the copy"
    assert copy.held == copy.charged_s == 0, "the client holds and pays for one attempt"
    assert copy.lot is not None, "a copy has a lot"
    assert copy.lot.size == 1, "of its own"


def _check_model(
    model: ModelQueues, waiting: list[Task], held: list[Task], tasks: Collection[Task]
) -> None:
    here = Counter(task.queue for task in waiting)
    there: defaultdict[Queue, list[Task]] = defaultdict(list)
    for task in held:
        there[task.queue].append(task)
    for queue in model.by_operation.values():
        size = queue.size + queue.counts.aside
        assert size == here[queue], "a queue knows its size"
        assert queue.calls == sum(task.calls for task in waiting_in(queue)), "and its calls"
        mine = there[queue]
        in_flight = sum(task.calls for task in mine)
        assert queue.counts.in_flight == in_flight, "and its calls in flight"
        extra = in_flight - sum(task.calls for task in {*mine} if task.phase is not OUTRUN)
        assert queue.counts.extra == extra, "with those beyond one for each call without an answer"
        assert (queue in model.waiting) == (queue.size > 0), "a model knows where tasks wait"
        if queue.size:
            _check_head(queue.head())
    wanted = {task for task in waiting + held if task.phase is not OUTRUN}
    accounts = {task.account for task in wanted if task.queue.model is model}
    for account in accounts:
        mine = [task for task in wanted if task.account is account]
        assert account.active == len(mine), "a client's tasks are counted"
        held_units = sum(t.attempt.held for t in mine if t.phase is not QUEUED)
        assert account.held == held_units, "a client knows the slots it holds"
        assert account.used_s > -1e-6, "no refund exceeds the charge"
    group = model.accounts.group
    assert model in group.models, "a model's group knows it"
    for usage in {account.usage for account in model.accounts}:
        mine = [t for t in tasks if t.account.usage is usage and t.phase is not OUTRUN]
        _check_usage(usage, mine)


def _check_usage(usage: Usage, mine: list[Task]) -> None:
    waiting = [task for task in mine if task.phase is QUEUED]
    assert usage.waiting == len(waiting), "a client's waiting tasks are counted over all models"
    assert usage.held == sum(t.attempt.held for t in mine if t.phase is not QUEUED), (
        "so are the slots it holds"
    )
    alone = [task.callers for task in mine if task.chain is None]
    assert usage.single == sum(alone), "and its callers"
    assert usage.chains == Counter(task.chain for task in mine if task.chain is not None)
    lines = {task.line for task in waiting if task.line is not None}
    rivals = {line for line in lines if len(line.level.lines) > 1}
    assert rivals == set(usage.rivals), "and its lines where others wait, too"


def _check_head(head: Task) -> None:
    assert head.line is not None
    level = head.line.level
    assert level.rank == max(line.level.rank for line in _lines_beside(head)), "rank comes first"
    turns = [(share(line.account), min(line.tasks)) for line in level.lines.values()]
    assert (share(head.account), head.id) == min(turns), "the head has the next turn"


def _lines_beside(head: Task) -> list[ClientTasks]:
    return [task.line for task in waiting_in(head.queue) if task.line is not None]


def wanted_level(worker: Worker) -> int:
    """Return the lots per slot; 0: a slot is free; FULL: the worker takes no more."""
    if not worker.slots:
        return ANY_LEVEL
    if worker.phase is WorkerPhase.FULL:
        return FULL
    if worker.lots < worker.slots:
        return 0
    if worker.exclusive_lots:
        return FULL
    return min(worker.lots // worker.slots, FULL)
