"""The scheduler: a pure state machine; facts in, actions out, the time is an argument.

Times are seconds of any clock that never goes back. After every fact, or a few at once, the owner
carries out `actions(now)` and sets one timer to `wakeup()`. Invariants: see `check()`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

from farm.call import Call, ModelInfo, Operation
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    ModelNotFound,
    Overloaded,
    TimeLimitExceeded,
    WorkerLost,
)
from farm.scheduler.actions import Action, Outcome, Reply, Send, TakeBack
from farm.scheduler.batching import batch_key, take_batch
from farm.scheduler.invariants import check
from farm.scheduler.placement import FULL, Pool, take_back_for
from farm.scheduler.queues import Accounts, HeadKey, Queue
from farm.scheduler.snapshot import snapshot
from farm.scheduler.state import Lot, Task, TaskId, Worker, WorkerId, needs_no_slot

ENDS_TOGETHER_S = 10.0
"""Workers whose allocations end within the same so many seconds are treated alike."""

UNKNOWN_CHARGE_S = 1e-6
"""What a client is charged for a call of unknown length, so that clients take turns at once."""


class Scheduler:
    """Which call runs where and when.

    max_queued, max_queued_per_client: waiting calls above which `submit` raises Overloaded.
    retries: how often a call goes back to its queue after a worker died with it.
    first_task: task ids count up from here; ids of an earlier life of the farm must not recur.
    """

    def __init__(
        self,
        *,
        max_queued: int = 100_000,
        max_queued_per_client: int = 100_000,
        retries: int = 3,
        first_task: int = 1,
    ) -> None:
        # Settings.
        self.max_queued = max_queued
        self.max_queued_per_client = max_queued_per_client
        self.retries = retries
        # State; only the methods of this class change it.
        self._next_task = first_task
        self._tasks: dict[TaskId, Task] = {}
        self._workers: dict[WorkerId, Worker] = {}
        self._queues: dict[str, dict[Operation, Queue]] = {}
        self._pools: dict[tuple[frozenset[str], float | None], Pool] = {}
        self._pools_of: dict[str, list[Pool]] = {}
        self._accounts = Accounts()
        self._queued = 0
        self._deadlines: list[tuple[float, TaskId]] = []
        # Between a fact and the next `actions`.
        self._replies: list[Action] = []
        self._to_fill: dict[Pool, None] = {}

    # Facts: calls

    def submit(
        self,
        call: Call,
        *,
        client: str = "",
        priority: int = 0,
        deadline: float | None = None,
        now: float,
    ) -> TaskId:
        """Take a call in. Raises ModelNotFound or Overloaded, and then keeps nothing of it."""
        queues = self._queues.get(call.model)
        if queues is None:
            raise ModelNotFound(f"no worker has served model {call.model!r} yet")
        if self._queued >= self.max_queued:
            raise Overloaded(
                f"{self._queued} calls are waiting, the most the farm takes; try again later"
            )
        account = self._accounts.entering(client)
        if account.queued >= self.max_queued_per_client:
            raise Overloaded(
                f"{account.queued} calls of client {client!r} are waiting, the most one client "
                "may have; try again later"
            )
        queue = queues[call.operation]
        task = Task(
            TaskId(self._next_task),
            call,
            queue,
            account,
            priority=priority,
            deadline=deadline,
            now=now,
            batch_key=batch_key(call, max_batch=queue.max_batch),
        )
        self._next_task += 1
        self._tasks[task.id] = task
        account.active += 1
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, task.id))
            if len(self._deadlines) > 2 * len(self._tasks) + 1000:
                self._deadlines = [d for d in self._deadlines if d[1] in self._tasks]
                heapq.heapify(self._deadlines)
        self._enqueue(task)
        return task.id

    def cancel(self, task_id: TaskId) -> None:
        """The caller is gone: no reply; a waiting task is dropped, a running one may finish."""
        task = self._tasks.get(task_id)
        if task is None or task.abandoned:
            return
        if task.worker is None:
            self._dequeue(task)
            self._forget(task)
        else:
            self._abandon(task)

    # Facts: workers

    def worker_joined(
        self,
        worker_id: WorkerId,
        models: Sequence[ModelInfo],
        *,
        slots: int = 1,
        ends_at: float | None = None,
        now: float,
    ) -> None:
        """A worker offers `slots` calls at a time of its models until `ends_at`.

        Joining twice under one name is leaving and joining.
        """
        if worker_id in self._workers:
            self.worker_left(worker_id, "it joined again", now=now)
        for model in models:
            self._know(model)
        names = frozenset(m.name for m in models)
        if ends_at is not None:
            ends_at -= ends_at % ENDS_TOGETHER_S
        pool = self._pools.get((names, ends_at))
        if pool is None:
            pool = self._pools[names, ends_at] = Pool(names, ends_at)
            for name in sorted(names):
                pool.queues.extend(self._queues[name].values())
                self._pools_of[name].append(pool)
        worker = self._workers[worker_id] = Worker(worker_id, pool, slots=slots, now=now)
        pool.add(worker)
        self._to_fill[pool] = None

    def worker_left(
        self,
        worker_id: WorkerId,
        reason: str,
        *,
        running: Iterable[TaskId] | None = None,
        drained: bool = False,
        time_limit: bool = False,
        now: float,
    ) -> None:
        """A worker is gone; its tasks go back to the head of their queues.

        running: the tasks it was running when it died, if that is known; they count an attempt,
        and so do, if it is not known, those sent first. drained: it left in order, none counts.
        time_limit: it was killed because `running` took too long, which running again won't mend.
        """
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        pool = worker.pool
        pool.remove(worker)
        if not pool.size:
            del self._pools[pool.models, pool.ends_at]
            self._to_fill.pop(pool, None)
            for name in pool.models:
                self._pools_of[name].remove(pool)
        if drained:
            guilty: set[TaskId] = set()
        elif running is not None:
            guilty = set(running)
        else:
            guilty = {task.id for task in worker.held_in_turn()[0]}
        for task in worker.held.values():
            self._unplace(task)
            if task.abandoned:
                self._forget(task)
            elif task.id in guilty:
                self._lost(task, worker_id, reason, time_limit=time_limit, now=now)
            else:
                self._enqueue(task, again=True)

    def worker_resized(self, worker_id: WorkerId, slots: int) -> None:
        """A worker now offers this many slots."""
        worker = self._workers.get(worker_id)
        if worker is not None and slots >= 1:
            worker.slots = slots
            worker.pool.moved(worker)
            self._to_fill[worker.pool] = None

    def finished(
        self,
        worker_id: WorkerId,
        task_id: TaskId,
        outcome: Outcome,
        *,
        now: float,
    ) -> None:
        """A worker answered. The first answer to a task counts, whoever gives it, and no other."""
        task = self._tasks.get(task_id)
        if task is None:
            return
        worker = task.worker
        if not task.abandoned:
            waited_s = max(0.0, (task.sent_at or now) - task.submitted_at)
            self._replies.append(Reply(task, outcome, waited_s, worker_id))
        if isinstance(outcome, FarmError):
            task.queue.failed += 1
        else:
            task.queue.done += 1
        if worker is None:  # a late answer of a worker that was given up
            self._dequeue(task)
        elif worker.id != worker_id:  # the same, while the task runs again elsewhere
            task.abandoned = True
            return
        else:
            self._learn(task, worker, outcome, now)
            self._release(task, worker)
            worker.done += 1
            worker.last_answer_at = now
        self._forget(task)

    def taken_back(self, worker_id: WorkerId, task_ids: Iterable[TaskId], *, now: float) -> None:
        """A worker answered a TakeBack, or hands back of itself: it will not run these."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.take_back_pending = False
        for task_id in task_ids:
            task = worker.held.get(task_id)
            if task is None:
                continue
            self._release(task, worker)
            if task.abandoned:
                self._forget(task)
            else:
                self._enqueue(task, again=True)
        for task in worker.held.values():
            task.taking_back = False
        self._to_fill[worker.pool] = None

    # What to do

    def actions(self, now: float) -> list[Action]:
        """Everything to carry out now, in this order."""
        self._expire(now)
        self._recheck(now)
        out: list[Action] = []
        if self._to_fill:
            sends: dict[WorkerId, Send] = {}
            pools, self._to_fill = self._to_fill, {}
            for pool in pools:
                self._fill(pool, sends, now)
            for pool in pools:
                take_back = take_back_for(pool, self._pools.values(), now)
                if take_back is not None:
                    out.append(take_back)
            out.extend(sends.values())
        if self._replies:
            out, self._replies = self._replies + out, []
        return out

    def wakeup(self) -> float | None:
        """When to call `actions` next if no fact comes before; None: never."""
        while self._deadlines and self._deadlines[0][1] not in self._tasks:
            heapq.heappop(self._deadlines)
        times = [p.recheck_at for p in self._pools.values() if p.recheck_at is not None]
        if self._deadlines:
            times.append(self._deadlines[0][0])
        return min(times, default=None)

    # Filling workers

    def _fill(self, pool: Pool, sends: dict[WorkerId, Send], now: float) -> None:
        queues = [q for q in pool.queues if q.size and pool.fits(q, now)]
        if len(queues) > 1:
            queues.sort(key=_turn)
        while queues:
            queue = queues[0]
            head = queue.head()
            assert head is not None
            worker = pool.least_loaded(self._depth(queue, head))
            if worker is None:
                queues.pop(0)
                continue
            batch = take_batch(queue, head)
            self._queued -= len(batch)
            self._place(batch, worker, now)
            send = sends.get(worker.id)
            if send is None:
                sends[worker.id] = Send(worker.id, batch)
            else:
                send.tasks.extend(batch)
            if not queue.size:
                queues.pop(0)
            if len(queues) > 1:
                queues.sort(key=_turn)

    @staticmethod
    def _depth(queue: Queue, head: Task) -> int:
        """A worker below this level may take `head`."""
        if needs_no_slot(queue.operation):
            return FULL + 1
        if head.lost_on or not queue.repeatable:
            return 1
        return min(FULL, 1 + queue.run_times.prefetch())

    def _place(self, batch: list[Task], worker: Worker, now: float) -> None:
        queue = batch[0].queue
        alone = not worker.lots
        refill = alone and worker.done > 0 and worker.last_answer_at > batch[0].submitted_at
        self._accounts.virtual_s = max(self._accounts.virtual_s, batch[0].client.used_s)
        charge_s = max(queue.run_times.mean, UNKNOWN_CHARGE_S) / len(batch)
        lot = None
        if not needs_no_slot(queue.operation):
            exclusive = self._depth(queue, batch[0]) == 1
            lot = Lot(len(batch), exclusive=exclusive)
            worker.lots += 1
            worker.exclusive_lots += exclusive
            worker.pool.moved(worker)
        if worker.busy_since is None:
            worker.busy_since = now
        for task in batch:
            task.worker = worker
            task.lot = lot
            task.sent_at = now
            task.alone = alone
            task.refill = refill
            task.charged_s = charge_s
            task.client.used_s += charge_s
            worker.held[task.id] = task
        queue.in_flight += len(batch)

    def _release(self, task: Task, worker: Worker) -> None:
        """Undo `_place` for a task that its worker is done with."""
        del worker.held[task.id]
        lot = task.lot
        if lot is not None:
            lot.remaining -= 1
            if not lot.remaining:
                worker.lots -= 1
                worker.exclusive_lots -= lot.exclusive
                worker.pool.moved(worker)
                self._to_fill[worker.pool] = None
        if not worker.held:
            worker.busy_since = None
        self._unplace(task)

    def _unplace(self, task: Task) -> None:
        task.queue.in_flight -= 1
        task.client.used_s -= task.charged_s
        task.charged_s = 0.0
        task.worker = None
        task.lot = None
        task.taking_back = False

    def _learn(self, task: Task, worker: Worker, outcome: Outcome, now: float) -> None:
        """Take note of the run time and charge the client for what it really used."""
        if isinstance(outcome, FarmError):
            task.charged_s = 0.0  # how long it ran is not known: the estimate stays charged
            return
        times = task.queue.run_times
        lot = task.lot
        task.client.used_s += outcome.run_time_s / (lot.size if lot else 1)
        if lot is None or lot.remaining == lot.size:  # the calls of a batch all tell of one run
            times.add(outcome.run_time_s)
        if task.alone and len(worker.held) == 1:
            times.add_round_trip(now - task.sent_at - outcome.run_time_s)

    # Waking up

    def _recheck(self, now: float) -> None:
        for pool in self._pools.values():
            if pool.recheck_at is not None and pool.recheck_at <= now:
                self._to_fill[pool] = None

    # Leaving the queue, coming back, ending

    def _enqueue(self, task: Task, *, again: bool = False) -> None:
        queue = task.queue
        queue.add(task, again=again)
        self._queued += 1
        for pool in self._pools_of[queue.model]:
            self._to_fill[pool] = None

    def _dequeue(self, task: Task) -> None:
        task.queue.remove(task)
        self._queued -= 1

    def _forget(self, task: Task) -> None:
        del self._tasks[task.id]
        task.client.active -= 1

    def _abandon(self, task: Task) -> None:
        task.abandoned = True
        worker = task.worker
        if worker is not None and not task.taking_back and worker.lots > worker.slots:
            task.taking_back = True
            self._replies.append(TakeBack(worker.id, [task.id]))

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, task_id = heapq.heappop(self._deadlines)
            task = self._tasks.get(task_id)
            if task is None or task.abandoned:
                continue
            waited = now - task.submitted_at
            where = "in the queue" if task.worker is None else f"on worker {task.worker.id}"
            error = DeadlineExceeded(f"no answer within {waited:.3g} s; the call was {where}")
            self._replies.append(Reply(task, error, waited, None))
            self.cancel(task_id)

    def _lost(
        self, task: Task, worker: WorkerId, reason: str, *, time_limit: bool, now: float
    ) -> None:
        task.lost_on += (f"{worker} ({reason})",)
        error: FarmError | None = None
        if time_limit:
            error = TimeLimitExceeded(f"worker {worker} was killed: {reason}")
        elif not task.queue.repeatable:
            error = WorkerLost(
                f"worker {task.lost_on[0]} died while it may have been running this call, and "
                f"model {task.call.model!r} is not repeatable"
            )
        elif len(task.lost_on) > self.retries:
            error = WorkerLost(
                f"{len(task.lost_on)} workers died while they ran this call: "
                + ", ".join(task.lost_on)
            )
        if error is None:
            task.batch_key = None  # it runs alone from now on, so that only the guilty fail
            self._enqueue(task, again=True)
            return
        task.queue.failed += 1
        self._replies.append(Reply(task, error, now - task.submitted_at, worker))
        self._forget(task)

    def _know(self, model: ModelInfo) -> None:
        if model.name in self._queues:
            return
        self._pools_of[model.name] = []
        self._queues[model.name] = {
            operation: Queue(
                model.name,
                operation,
                max_batch=model.max_batch if operation is Operation.EVALUATE else 1,
                repeatable=model.repeatable or needs_no_slot(operation),
            )
            for operation in Operation
        }

    # For others to read

    def snapshot(self, now: float) -> dict[str, Any]:
        """Workers and queues as JSON data."""
        return snapshot(self._workers.values(), self._queues, now)

    def check(self) -> None:
        """Assert every invariant of the state."""
        check(self._tasks, self._workers, self._queues, self._pools.values(), self._queued)

    def __len__(self) -> int:
        return len(self._tasks)


def _turn(queue: Queue) -> HeadKey:
    key = queue.head_key()
    assert key is not None, "only queues in which a task waits take turns"
    return key
