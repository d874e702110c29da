"""Credit accounting: the credit and charges of a batch when it is placed on a worker, and released.

Pools index workers by their credit, and queues order clients by the slots they hold, so each change
updates both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from farm.call import Result
from farm.scheduler.accounts import SLOT
from farm.scheduler.affinity import placed
from farm.scheduler.copies import ending_at
from farm.scheduler.phases import TASKS
from farm.scheduler.state import Attempt, Lot, Task, TaskId, Worker

TASK_SENT = TASKS.event("sent")

UNKNOWN_CHARGE_S = 1e-6
"""Charge of a call of unknown length, so that clients take turns from the start."""

FEW_RUNS = 64
SAMPLED = 16
"""After FEW_RUNS, one of so many runs without a change of config tells how long they take."""

IDLE_SHARE = 0.25
"""A call waited for no other if its worker idled for this fraction of the time that sending it
took.

That time is then a round trip. A shorter idle time is what a worker needs between two calls, which
prefetching cannot remove.
"""


def place(batch: list[Task], worker: Worker, depth: int, now: float) -> None:
    """Place tasks of one queue on `worker` as one lot; `depth`: maximum lots per slot."""
    first = batch[0]
    queue = first.queue
    model = queue.model
    accounts = model.accounts
    alone = not worker.lots
    refill = alone and worker.last_answer_at > first.submitted_at
    size = len(batch)
    rows = first.rows if size == 1 else sum([task.rows for task in batch])
    lot: Lot | None = None
    row_held = 0
    if not queue.needs_no_slot:
        is_warm = worker.configs.get(model) is first.call.config and not model.keeps_point
        cold = not is_warm and placed(worker, model, first.call)
        lot = Lot(size, rows, exclusive=depth == 1, cold=cold)
        # As many lots as one slot may hold count as one slot; rounded up, so that they reach it.
        row_held = -(-SLOT // (depth * rows))
        pool = worker.pool
        worker.lots += 1
        worker.exclusive_lots += depth == 1
        pool.moved(worker)
        if pool.lots_of is not None:
            pool.lots_of[queue] += 1
    if worker.busy_since is None:
        worker.busy_since = now
    row_charge_s = queue.run_times.mean or UNKNOWN_CHARGE_S
    if queue.max_batch > 1:  # one evaluation for all rows
        row_charge_s /= rows
    sent = TASK_SENT[first.phase]  # all of them were in one queue
    accounts.group.served_s = first.account.usage.used_s
    for task in batch:
        account = task.account
        usage = account.usage
        weight = usage.weight
        if account.used_s > accounts.virtual_s:
            accounts.virtual_s = account.used_s
        charged_s = row_charge_s * task.rows / weight
        held = row_held * task.rows
        account.held += held
        account.used_s += charged_s
        usage.held += held
        usage.used_s += charged_s
        usage.free_at = now + charged_s
        task.phase = sent
        task.attempt = Attempt(worker, lot, held, charged_s, weight, alone, refill, now)
        worker.held[task.id] = task
    queue.in_flight += first.calls if size == 1 else sum([task.calls for task in batch])


def release(task: Task, attempt: Attempt) -> bool:
    """Release a task from its worker; return whether that makes room for another lot."""
    worker, lot = attempt.worker, attempt.lot
    held = worker.held
    del held[task.id]
    if not held:
        worker.busy_since = None
    task.queue.in_flight -= task.calls
    task.account.gave_back(attempt.held, -attempt.charged_s)
    if lot is None:
        return False
    lot.remaining -= 1
    if lot.remaining:
        return False
    pool = worker.pool
    worker.lots -= 1
    worker.exclusive_lots -= lot.exclusive
    pool.moved(worker)
    if pool.lots_of is not None:
        pool.lots_of[task.queue] -= 1
    return True


def released(worker: Worker, task_ids: Iterable[TaskId]) -> Iterator[tuple[Task, Attempt]]:
    """Release those of the tasks that a worker holds; yield each with its attempt there."""
    for task_id in task_ids:
        task = worker.held.get(task_id)
        if task is not None:
            attempt = ending_at(task, worker)
            release(task, attempt)
            yield task, attempt


def unplace(task: Task, attempt: Attempt) -> None:
    """Settle an attempt with its queue and client, as `release` does, after its worker is gone."""
    task.queue.in_flight -= task.calls
    task.account.gave_back(attempt.held, -attempt.charged_s)


def charge_run(task: Task, attempt: Attempt, result: Result, now: float) -> None:
    """Charge the client for the task's actual run time, and record that time."""
    times = task.queue.run_times
    lot = attempt.lot
    run_time_s = result.run_time_s
    used_s = run_time_s if lot is None else run_time_s * task.rows / lot.rows
    attempt.charged_s -= used_s / attempt.weight
    gap_s = now - attempt.sent_at - run_time_s
    if (attempt.alone and len(attempt.worker.held) == 1) or result.idle_s > IDLE_SHARE * gap_s:
        times.add_round_trip(gap_s)
    elif 0.0 < gap_s - result.queue_time_s < times.round_trip_s:
        # A round trip is shorter: the call waited behind others, and its answer may have too.
        times.add_round_trip(gap_s - result.queue_time_s)
    if lot is None:
        times.add(run_time_s)
    elif not lot.timed:  # the calls of a batch all report the same run
        lot.timed = True
        if task.is_run:
            run_time_s /= max(1, result.rows_done(task.rows))
        times.add(run_time_s)
        if lot.cold or times.count < FEW_RUNS or times.count % SAMPLED == 0:
            times.learn_warm_up(run_time_s, cold=lot.cold)


def charge_estimate(attempt: Attempt) -> None:
    """Keep the client charged for the estimate: the run time of a failed call is unknown."""
    attempt.charged_s = 0.0
