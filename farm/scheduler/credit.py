"""Credit: what placing a batch at a worker takes up there and costs its clients, and the way back.

Pools index workers by their credit and queues order clients by what they hold, so both are told.
"""

from __future__ import annotations

from farm.call import Result
from farm.scheduler.queues import SLOT
from farm.scheduler.state import Lot, Task, Worker

UNKNOWN_CHARGE_S = 1e-6
"""What a client is charged for a call of unknown length, so that clients take turns at once."""

IDLE_SHARE = 0.25
"""A call had to wait for no other when its worker idled for this much of what sending it took.

So that is a round trip. Less is what a worker needs between two calls, which no prefetching mends.
"""


def place(batch: list[Task], worker: Worker, depth: int, now: float) -> None:
    """Let `worker` hold tasks of one queue, as one lot; `depth` says how many may wait with it."""
    queue = batch[0].queue
    accounts = queue.model.accounts
    alone = not worker.lots
    refill = alone and worker.last_answer_at > batch[0].submitted_at
    rows = batch[0].rows if len(batch) == 1 else sum([task.rows for task in batch])
    lot: Lot | None = None
    row_held = 0
    if not queue.needs_no_slot:
        lot = Lot(len(batch), rows, exclusive=depth == 1)
        # As many lots as one slot may have count as the slot; rounded up, so that they do.
        row_held = -(-SLOT // (depth * rows))
        worker.lots += 1
        worker.exclusive_lots += lot.exclusive
        worker.pool.moved(worker)
    if worker.busy_since is None:
        worker.busy_since = now
    row_charge_s = queue.run_times.mean or UNKNOWN_CHARGE_S
    if queue.max_batch > 1:  # one evaluation for all rows
        row_charge_s /= rows
    for task in batch:
        account = task.account
        if account.used_s > accounts.virtual_s:
            accounts.virtual_s = account.used_s
        task.charged_s = row_charge_s * task.rows
        task.held = row_held * task.rows
        account.used_s += task.charged_s
        account.held += task.held
        task.worker = worker
        task.lot = lot
        task.sent_at = now
        task.alone = alone
        task.refill = refill
        worker.held[task.id] = task
    queue.in_flight += len(batch)


def release(task: Task, worker: Worker) -> bool:
    """Let `worker` hold a task no longer; whether that makes room for another lot."""
    del worker.held[task.id]
    if not worker.held:
        worker.busy_since = None
    lot = task.lot
    unplace(task)
    if lot is None:
        return False
    lot.remaining -= 1
    if lot.remaining:
        return False
    worker.lots -= 1
    worker.exclusive_lots -= lot.exclusive
    worker.pool.moved(worker)
    return True


def unplace(task: Task) -> None:
    """Settle a task with its queue and client; its worker is gone or settled apart."""
    task.queue.in_flight -= 1
    task.account.gave_back(task.held, -task.charged_s)
    task.worker = None
    task.lot = None
    task.asked_back = False


def charge_run(task: Task, worker: Worker, result: Result, now: float) -> None:
    """Charge the client for what its task really took, and take note of the run time."""
    times = task.queue.run_times
    lot = task.lot
    run_time_s = result.run_time_s
    task.charged_s -= run_time_s if lot is None else run_time_s * task.rows / lot.rows
    gap_s = now - task.sent_at - run_time_s
    if (task.alone and len(worker.held) == 1) or result.idle_s > IDLE_SHARE * gap_s:
        times.add_round_trip(gap_s)
    if lot is None:
        times.add(run_time_s)
    elif not lot.timed:  # the calls of a batch all tell of one run
        lot.timed = True
        if task.rows > 1 and task.queue.max_batch == 1:  # evaluated one by one
            run_time_s /= max(1, result.rows_done(task.rows))
        times.add(run_time_s)


def charge_estimate(task: Task) -> None:
    """Leave the client charged for the estimate: how long a failed call ran is not known."""
    task.charged_s = 0.0
