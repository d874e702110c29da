"""Copies of stragglers: when a call runs far longer than usual, an idle worker runs it as well.

The first answer counts. This shortens the end of a batch of calls, when nothing waits and a few
slow workers are all that is left (backup tasks, Dean and Ghemawat 2004). A copy is the farm's own
decision: the client is charged for one run only, that of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from itertools import islice

from farm.scheduler.actions import Send
from farm.scheduler.affinity import placed
from farm.scheduler.phases import SENT, TASKS
from farm.scheduler.placement import Pool, Pools
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.reserve import keepers, without_reserves
from farm.scheduler.state import Attempt, Lot, Task, Worker

TASK_OUTRUN = TASKS.event("answered first")

KNOWN_RUNS = 20
"""Fewer known runs say too little about the usual run time."""

SLOW_FACTOR = 3.0
SLOW_BY_S = 1.0
"""A call is slow if it has run this many times the p95, and this many seconds longer than that."""

CALLS_A_COPY = 20
"""Answered calls of a model and operation for each of its copies: at most 5 % extra calls."""

LOOK_AGAIN_S = 0.25
"""Least time between two searches for slow calls that begin because a worker has become idle."""

LEARN_S = 1.0
"""While too few runs are known, the search is repeated after a run's time, or at least this."""

LOOK = 500
"""Maximum idle workers examined for one on another host."""

NEVER = math.inf
"""This object: compare it by identity, which costs the least on the path of each call."""


class Copies:
    """Finds slow calls and sends their copies. pools: all pools of workers, by their models.

    look_at: when to search for slow calls next. late: those found that wait for an idle worker, or
    until enough other calls are answered.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._looked_at = -math.inf
        self.look_at = NEVER
        self.late: dict[Queue, list[Task]] = {}

    def look_soon(self, now: float) -> None:
        """Search soon, because a worker idles beside another one."""
        self.look_at = max(now, self._looked_at + LOOK_AGAIN_S)

    def sends(self, now: float) -> list[Send]:
        """Return the copies to send now; call it after waiting calls were assigned."""
        if self.look_at <= now:
            self._look(now)
        sends = []
        for queue, late in list(self.late.items()):
            left = late = [task for task in late if is_slow(task, now)]
            pools = [pool for pool in queue.model.pools if has_spare(pool)]
            if pools:
                left = []
                for task in late:
                    worker = _worker_for(task, pools, now) if _in_budget(queue) else None
                    if worker is None:
                        left.append(task)
                    else:
                        sends.append(_copied(task, worker, now))
            if left:
                self.late[queue] = left
            else:
                del self.late[queue]
        return sends

    def _look(self, now: float) -> None:
        """Find the calls that are slow now, and when the next one may be."""
        self._looked_at = now
        self.look_at = NEVER
        self.late = {}
        spare = filter(has_spare, self._pools.values())
        models = dict.fromkeys([model for pool in spare for model in pool.queues])
        for task in _running(models):
            queue = task.queue
            if not _may_be_copied(task):
                continue
            times = queue.run_times
            if times.count < KNOWN_RUNS:
                next_at = now + max(LEARN_S, times.mean)
            elif (slow_at := _slow_at(task)) > now:
                next_at = min(slow_at, now + limit_s(queue, 1))  # for calls sent from now on
            else:
                self.late.setdefault(queue, []).append(task)
                continue
            self.look_at = min(self.look_at, next_at)


def limit_s(queue: Queue, rows: int) -> float:
    """Return the run time from which a call is slow; the rows of a run follow one another."""
    p95_s = queue.run_times.p95()
    if queue.max_batch == 1:
        p95_s *= rows
    return max(SLOW_FACTOR * p95_s, p95_s + SLOW_BY_S)


def is_slow(task: Task, now: float) -> bool:
    """Whether a call is still running, without a copy, and has run far longer than usual."""
    return _may_be_copied(task) and _slow_at(task) <= now


def _may_be_copied(task: Task) -> bool:
    """Whether the rules allow a copy: a suspect runs once at a time, and a batch stays together."""
    if task.phase is not SENT or task.copied or task.lost_on or not task.queue.may_copy:
        return False
    lot = task.attempt.lot
    return lot is not None and lot.size == 1


def _slow_at(task: Task) -> float:
    attempt = task.attempt
    began_at = attempt.sent_at
    if attempt.lot is not None and not attempt.lot.exclusive:  # it may have waited there
        began_at = max(began_at, attempt.worker.last_answer_at)
    return began_at + limit_s(task.queue, task.rows)


def _in_budget(queue: Queue) -> bool:
    return CALLS_A_COPY * (queue.copies + 1) <= queue.done


def has_spare(pool: Pool) -> bool:
    """Whether a worker of the pool idles although no call waits that it could run.

    Calls that wait at other workers are about to be recalled. If such a worker does not return
    them, they end after the call that it runs, so that a copy of this one would gain nothing.
    """
    if not pool.has_idle():
        return False
    for model in pool.queues:
        if model.waiting or any(queue.to_come for queue in model.by_operation.values()):
            return False
        if any(donor.behind for donor in model.pools):
            return False
    return True


def _running(models: Collection[ModelQueues]) -> Iterator[Task]:
    """Yield the calls of these models at their workers; none waits there: see `has_spare`."""
    for pool in dict.fromkeys([pool for model in models for pool in model.pools]):
        for worker in pool.fullest_first():
            for task in worker.held.values():
                if task.queue.model in models:
                    yield task


def _worker_for(task: Task, pools: Collection[Pool], now: float) -> Worker | None:
    """Return an idle worker on another host than the task's, or another one if there is one host.

    A slow host may be what makes the call slow.
    """
    slow, queue = task.attempt.worker, task.queue
    pools = without_reserves(pools, queue, keepers(queue))
    hosts = {host for pool in queue.model.pools for host in pool.hosts}
    for pool in pools:
        for worker in islice(pool.idle(queue, now), LOOK):
            if worker is not slow and (len(hosts) == 1 or worker.host != slow.host):
                return worker
    return None


def _copied(task: Task, worker: Worker, now: float) -> Send:
    """Place a copy of `task` on an idle worker; its client holds and pays nothing for it."""
    cold = placed(worker, task.queue.model, task.call)
    lot = Lot(1, task.rows, exclusive=True, cold=cold)  # it may run as long as the first
    copy = Attempt(worker, lot, 0, 0.0, task.attempt.weight, not worker.lots, False, now)
    copy.is_copy = True
    worker.lots += 1
    worker.exclusive_lots += 1
    worker.pool.moved(worker)
    if worker.busy_since is None:
        worker.busy_since = now
    worker.held[task.id] = task
    task.copy = copy
    task.copied = True
    queue = task.queue
    if worker.pool.lots_of is not None:
        worker.pool.lots_of[queue] += 1
    queue.copies += 1
    queue.in_flight += task.calls
    queue.extra += task.calls
    return Send(worker.id, [task])


# The end of one of two attempts


def prefer(task: Task, attempt: Attempt) -> Attempt:
    """Make `attempt` the task's first one, which holds its client's slot and charge; return it."""
    other = task.attempt
    if attempt is not other:
        attempt.held, attempt.charged_s = other.held, other.charged_s
        other.held, other.charged_s = 0, 0.0
        task.attempt, task.copy = attempt, other
    return attempt


def ending_at(task: Task, worker: Worker) -> Attempt:
    """Return the attempt at `worker`, which ends without an answer; any other one goes on.

    That one is then the task's only attempt.
    """
    attempt = task.attempt
    if task.copy is not None:
        if attempt.worker is worker:
            prefer(task, task.copy)
        else:
            attempt = task.copy
        task.copy = None
        task.queue.extra -= task.calls
    return attempt


def outrun(task: Task) -> Worker:
    """Settle a task whose attempt was answered while the other goes on; return the other's worker.

    Nothing depends on the other attempt any more.
    """
    loser = task.copy
    assert loser is not None, "two attempts were in progress"
    task.phase = TASK_OUTRUN[task.phase]
    task.former += (task.attempt,)
    task.attempt, task.copy = loser, None
    task.account.closed(task.chain, task.callers)
    loser.worker.outrun += 1
    return loser.worker


def loser_ended(task: Task) -> None:
    """Settle the end of an outrun task's last attempt."""
    task.queue.extra -= task.calls
    task.attempt.worker.outrun -= 1
