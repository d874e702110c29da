"""Copies of stragglers: when a call runs far longer than usual, an idle worker runs it as well.

The first answer counts. This shortens the end of a batch of calls, when nothing waits and a few
slow workers are all that is left (backup tasks, Dean and Ghemawat 2004). A copy is the farm's own
decision: the client is charged for one run only, that of the answer. A copy goes to a worker that
can end a run, so that if it has lost, it holds the worker no longer than another takes to start.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from itertools import islice

from farm.scheduler.actions import Send
from farm.scheduler.affinity import placed
from farm.scheduler.phases import SENT
from farm.scheduler.placement import Pool, Pools
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.reserve import keepers, without_reserves
from farm.scheduler.run_times import RunTimes
from farm.scheduler.state import Attempt, Lot, Task
from farm.scheduler.workers import Worker

KNOWN_RUNS = 20
"""Fewer known runs say too little about the usual run time."""

SLOW_FACTOR = 3.0
SLOW_BY_S = 1.0
"""A call is slow if it has run this many times the p95, and this many seconds longer than that."""

CALLS_A_COPY = 20
"""Known runs of a kind of call for each of its copies: at most 5 % extra runs."""

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
            left = late = [t for t in late if _may_be_copied(t) and _slow_at(t) <= now]
            pools = [pool for pool in queue.model.pools if has_spare(pool)]
            if pools:
                left = []
                for task in late:
                    times = task.times
                    may_copy = CALLS_A_COPY * (times.copies + 1) <= times.count
                    worker = _worker_for(task, pools, now) if may_copy else None
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
        queues: dict[Queue, None] = {}
        for task in _running(models):
            if not _may_be_copied(task):
                continue
            if task.times.count < KNOWN_RUNS:
                next_at = now + max(LEARN_S, task.times.mean)
            elif (next_at := _slow_at(task)) <= now:
                self.late.setdefault(task.queue, []).append(task)
                continue
            queues[task.queue] = None
            self.look_at = min(self.look_at, next_at)
        for queue in queues:  # for calls sent from now on
            known = [limit_s(kind) for kind in queue.kinds if kind.count >= KNOWN_RUNS]
            self.look_at = min(self.look_at, now + min(known, default=NEVER))


def limit_s(kind: RunTimes, rows: int = 1) -> float:
    """Return the run time from which a call is slow. rows: of a run, which follow one another."""
    p95_s = kind.p95() * rows
    return max(SLOW_FACTOR * p95_s, p95_s + SLOW_BY_S)


def _may_be_copied(task: Task) -> bool:
    """Whether the rules allow a copy: a suspect runs once at a time, and a batch stays together."""
    if task.phase is not SENT or task.past.copied or task.past.lost_on or not task.queue.may_copy:
        return False
    lot = task.attempt.lot
    return lot is not None and lot.size == 1


def _slow_at(task: Task) -> float:
    attempt = task.attempt
    began_at = attempt.sent_at
    if attempt.lot is not None and not attempt.lot.exclusive:  # it may have waited there
        began_at = max(began_at, attempt.worker.answers.last_at)
    return began_at + limit_s(task.times, task.run_length)


def has_spare(pool: Pool) -> bool:
    """Whether workers that may run copies idle although no call waits that they could run.

    Calls that wait at other workers are about to be recalled. If such a worker does not return
    them, they end after the call that it runs, so that a copy of this one would gain nothing.
    """
    if not pool.hosts or not pool.has_idle():
        return False
    for model in pool.queues:
        if model.waiting or any(queue.counts.to_come for queue in model.by_operation.values()):
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

    A slow host may be what makes the call slow. It can end a run: a sequence would keep it.
    """
    slow, queue = task.attempt.worker, task.queue
    pools = without_reserves(pools, queue, keepers(queue))
    hosts = {host for pool in queue.model.pools for host in pool.hosts}
    for pool in pools:
        for worker in islice(pool.idle(task, now), LOOK):
            elsewhere = worker.host != slow.host or (len(hosts) == 1 and worker is not slow)
            if elsewhere and worker.ends_runs and not worker.sequences:
                return worker
    return None


def _copied(task: Task, worker: Worker, now: float) -> Send:
    """Place a copy of `task` on an idle worker; its client holds and pays nothing for it."""
    cold = placed(worker, task.queue.model, task.call)
    lot = Lot(1, 1, task.rows, exclusive=True, cold=cold)  # it may run as long as the first
    weight, alone = task.account.usage.weight, not worker.lots
    task.send_copy(Attempt(worker, lot, 0, 0.0, now, weight, alone, is_copy=True))
    worker.take([task], lot, now)
    task.queue.counts.copy(task.calls)
    task.times.add_copy()
    return Send(worker.id, [task])
