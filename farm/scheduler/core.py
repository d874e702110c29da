"""The scheduler: a pure state machine; facts in, actions out, the time is an argument.

Times are seconds of any clock that never goes back. After every fact, or a few at once, the owner
carries out `actions(now)` and sets one timer to `wakeup()`. Invariants: see `check()`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, cast

from farm.call import Call, ModelInfo, Operation, Result
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    ModelNotFound,
)
from farm.scheduler.actions import Action, EndStream, Outcome, Reply, Send
from farm.scheduler.admission import check_room
from farm.scheduler.batching import batch_key, linger_after, lingers, take_batch
from farm.scheduler.credit import charge_estimate, charge_run, place, release, unplace
from farm.scheduler.deadlines import Deadlines
from farm.scheduler.invariants import check
from farm.scheduler.losses import error_for_loss, may_be_guilty
from farm.scheduler.placement import NO_END, Pool, depth_for, has_room, leave_room, worker_for
from farm.scheduler.queues import Clients, ModelQueues, Queue
from farm.scheduler.snapshot import snapshot
from farm.scheduler.state import Task, TaskId, Worker, WorkerId
from farm.scheduler.takeback import for_idle, has_too_much, in_vain

ENDS_TOGETHER_S = 10.0
"""Workers whose allocations end within the same so many seconds are treated alike."""


class Scheduler:
    """Which call runs where and when.

    max_queued, max_queued_per_client: waiting calls from which on `submit` raises Overloaded.
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
        self._ids = cast(Iterator[TaskId], count(first_task))
        self._tasks: dict[TaskId, Task] = {}
        self._workers: dict[WorkerId, Worker] = {}
        self._models: dict[str, ModelQueues] = {}
        self._pools: dict[frozenset[str], Pool] = {}
        self._queued = 0
        self._clients = Clients()
        self._placed = 0
        self._deadlines = Deadlines(self._tasks)
        # Between a fact and the next `actions`.
        self._replies: list[Reply] = []
        self._ends: list[EndStream] = []
        self._to_fill: dict[Pool, None] = {}
        self._to_ask: dict[Worker, None] = {}

    # Facts: calls

    def submit(
        self,
        call: Call,
        *,
        client: str = "",
        priority: int = 0,
        deadline: float | None = None,
        start_by: float | None = None,
        lost_on: tuple[str, ...] = (),
        now: float,
    ) -> TaskId:
        """Take a call in. Raises ModelNotFound or Overloaded, and then keeps nothing of it.

        lost_on: losses that count for it already, as of a row of a run that was lost.
        """
        model = self._models.get(call.model)
        if model is None:
            raise ModelNotFound(f"no worker has served model {call.model!r} yet")
        account = model.accounts.entering(client)
        most, most_of_client = self.max_queued, self.max_queued_per_client
        check_room(self._queued, most, client, account.client.queued, most_of_client)
        queue = model.by_operation[call.operation]
        task = Task(
            next(self._ids),
            call,
            queue,
            account,
            priority,
            deadline,
            now,
            batch_key(call, max_batch=queue.max_batch) if queue.max_batch > 1 else None,
        )
        task.lost_on = lost_on
        self._tasks[task.id] = task
        account.active += 1
        if deadline is not None:
            self._deadlines.add(deadline, task.id)
        if start_by is not None:
            self._deadlines.add(start_by, task.id, to_start=True)
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
            task.abandoned = True
            if task.queue.streams:
                self._ends.append(EndStream(task.worker.id, task.id))
            if task.worker.behind:  # perhaps it has not begun
                self._to_ask[task.worker] = None

    # Facts: workers

    def expect(self, models: Iterable[ModelInfo]) -> None:
        """Calls of these models are taken from now on, and wait for a worker that has them."""
        for info in models:
            model = self._models.get(info.name)
            if model is None:
                model = self._models[info.name] = ModelQueues(info.name, self._clients)
            model.learn(info)

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
        self.expect(models)
        names = frozenset(info.name for info in models)
        pool = self._pools.get(names)
        if pool is None:
            queues = [self._models[name] for name in sorted(names)]
            pool = self._pools[names] = Pool(names, queues)
            for model in queues:
                model.pools.append(pool)
        if ends_at is None or ends_at == NO_END:
            ends_at = NO_END
        else:
            ends_at -= ends_at % ENDS_TOGETHER_S
        worker = Worker(worker_id, pool, slots=slots, ends_at=ends_at, now=now)
        self._workers[worker_id] = worker
        pool.add(worker)
        self._to_fill[pool] = None

    def worker_left(
        self,
        worker_id: WorkerId,
        reason: str,
        *,
        running: Iterable[TaskId] | None = None,
        row: int | None = None,
        drained: bool = False,
        time_limit: bool = False,
        reclaimed: bool = False,
        now: float,
    ) -> None:
        """A worker is gone; its tasks go back to their queues, before all younger ones.

        running: the tasks it was running when it died, if that is known; they count an attempt,
        and so do, if it is not known, those sent first. row: of a run of rows the one that it was
        running, if that is known. drained: it left in order, none counts.
        time_limit: it was killed because `running` took too long, which running again won't mend.
        reclaimed: its machine was taken away while it drained, which is nobody's fault: what may
        run again counts no attempt. What is not repeatable counts as run, unless drained.
        """
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        pool = worker.pool
        pool.remove(worker)
        if not pool.size:
            del self._pools[pool.models]
            self._to_fill.pop(pool, None)
            for model in pool.queues:
                model.pools.remove(pool)
        self._to_ask.pop(worker, None)
        guilty = set() if drained else may_be_guilty(worker, running, time_limit=time_limit)
        for task in worker.held.values():
            unplace(task)
            # Not what ran alone: the answer to a run that has just ended is lost, too.
            may_have_run = not (task.queue.repeatable or drained)
            if may_have_run or (task.id in guilty and not reclaimed):
                late = time_limit and task.id in guilty
                self._lost(task, worker_id, reason, now=now, time_limit=late, row=row)
            else:
                self._go_back(task, worker_id)

    def worker_resized(self, worker_id: WorkerId, slots: int) -> None:
        """A worker now offers this many slots; with none it is given nothing and hands back."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.pool.slots += slots - worker.slots
        worker.slots = slots
        worker.most_slots = max(worker.most_slots, slots)
        # What it was asked for before may have been lost with a connection: ask anew if need be.
        worker.take_back_pending = False
        for task in worker.held.values():
            task.asked_back = False
        worker.pool.moved(worker)
        self._to_fill[worker.pool] = None
        self._to_ask[worker] = None

    def worker_full(self, worker_id: WorkerId, full: bool) -> None:
        """Whether a worker has yet to read so much that it is given nothing more until it has.

        What it was sent stays there: to take it back and send it again would fill it again.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.full = full
        worker.pool.moved(worker)
        self._to_fill[worker.pool] = None

    def finished(
        self, worker_id: WorkerId, task_id: TaskId, outcome: Outcome, *, now: float
    ) -> None:
        """A worker answered. The first answer to a task counts, whoever gives it, and no other."""
        task = self._tasks.get(task_id)
        if task is None:
            return
        worker = task.worker
        here = worker is not None and worker.id == worker_id
        if not here and (worker_id not in task.former or task.abandoned or task.queue.streams):
            return
        if isinstance(outcome, Result) and outcome.more:
            task.answers += 1
            if not task.abandoned:
                waited_s = task.sent_at - task.submitted_at
                self._replies.append(Reply(task, outcome, waited_s, worker_id))
            return
        if not task.abandoned:
            self._reply(task, outcome, task.sent_at - task.submitted_at, worker_id)
        if worker is None:  # a late answer of a worker that was given up
            self._dequeue(task)
            self._forget(task)
        elif not here:  # the same, while the task is with another worker
            self.cancel(task_id)
        else:
            if isinstance(outcome, FarmError):
                charge_estimate(task)
            else:
                charge_run(task, worker, outcome, now)
                if worker.behind and has_too_much(worker, task.queue.run_times.prefetch):
                    self._to_ask[worker] = None
            lot = task.lot
            if lot is not None and lot.remaining == 1 and task.queue.max_batch > 1:
                linger_after(lot, task.queue, now)
            if release(task, worker):
                self._to_fill[worker.pool] = None
                if task.queue.size:  # by the run times known now they may fit before an end
                    for pool in task.queue.model.pools:
                        if pool.is_ending:
                            self._to_fill[pool] = None
            worker.done += 1
            worker.last_answer_at = now
            self._forget(task)

    def taken_back(self, worker_id: WorkerId, task_ids: Iterable[TaskId], *, now: float) -> None:
        """A worker answered a TakeBack, or hands back of itself: it will not run these.

        What it was asked for and keeps it has begun, or answered: it is not asked for that again.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.take_back_pending = False
        for task_id in task_ids:
            task = worker.held.get(task_id)
            if task is not None:
                release(task, worker)
                self._go_back(task, worker_id)
        self._to_fill[worker.pool] = None
        self._to_ask[worker] = None

    def went_missing(
        self,
        worker_id: WorkerId,
        task_ids: Iterable[TaskId],
        reason: str = "lost on the way",
        *,
        now: float,
    ) -> None:
        """These, or their answers, were lost on the way to or from a worker that lives on.

        It may have run them, so that they count as lost with it.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        for task_id in task_ids:
            task = worker.held.get(task_id)
            if task is not None:
                release(task, worker)
                self._lost(task, worker_id, reason, now=now)
        self._to_fill[worker.pool] = None

    # What to do

    def actions(self, now: float) -> list[Action]:
        """Everything to carry out now, in this order."""
        if self._deadlines.first_at <= now:
            self._expire(now)
        for pool in self._pools.values():
            if pool.recheck_at is not None and pool.recheck_at <= now:
                pool.recheck_at = None
                self._to_fill[pool] = None
        out: list[Action] = [*self._replies, *self._ends]
        self._replies, self._ends = [], []
        if self._to_fill:
            pools, self._to_fill = self._to_fill, {}
            if self._queued:
                out += self._fill(pools, now)
            donors = [pool for pool in self._pools.values() if pool.behind]
            if donors:
                asks = [for_idle(pool, donors, now) for pool in pools]
                out += [ask for ask in asks if ask is not None]
        if self._to_ask:
            workers, self._to_ask = self._to_ask, {}
            asks = [in_vain(worker) for worker in workers]
            out += [ask for ask in asks if ask is not None]
        return out

    def has_idle(self) -> bool:
        """Whether some worker has a free slot."""
        return any(pool.has_idle() for pool in self._pools.values())

    def queue(self, model: str, operation: Operation) -> Queue:
        """The queue of a model that is known, for its run times and workers."""
        return self._models[model].by_operation[operation]

    def wakeup(self) -> float | None:
        """When to call `actions` next if no fact comes before; None: never."""
        times = [pool.recheck_at for pool in self._pools.values()]
        times.append(self._deadlines.earliest())
        return min((time for time in times if time is not None), default=None)

    # Filling workers

    def _fill(self, pools: Collection[Pool], now: float) -> Iterable[Send]:
        """Give waiting tasks to workers of `pools` that may take them, in the order of turns.

        What has not changed since the last time has no room, or must not be given any.
        """
        waiting: dict[Queue, None] = {}
        for pool in pools:
            for model in pool.queues:
                waiting.update(model.waiting)
        queues = list(waiting)
        sends: dict[WorkerId, Send] = {}
        limits: dict[Pool, int] = {}
        if len(queues) > 1:
            queues.sort(key=Queue.turn, reverse=True)
        while queues:
            queue = queues[-1]
            if lingers(queue, now):
                queues.pop()
                continue
            head = queue.head()
            depth = depth_for(head)
            worker = worker_for(queue, depth, pools, limits, now)
            if worker is None:
                queues.pop()
                if queues:
                    leave_room(queue, depth, pools, limits, now)
                continue
            batch = take_batch(queue, head)
            self._queued -= len(batch)
            place(batch, worker, depth, now)
            self._placed += 1
            queue.model.served_at = self._placed
            send = sends.get(worker.id)
            if send is None:
                sends[worker.id] = Send(worker.id, batch)
            else:
                send.tasks.extend(batch)
            if not queue.size or not (queue.needs_no_slot or has_room(queue, pools)):
                queues.pop()
            if len(queues) > 1:
                queues.sort(key=Queue.turn, reverse=True)
        return sends.values()

    # Leaving the queue, coming back, ending

    def _enqueue(self, task: Task) -> None:
        queue = task.queue
        # Else it waits behind others, for whom there is no room.
        if task.former or not queue.size or 0 < queue.company <= queue.size + 1:
            for pool in queue.model.pools:
                self._to_fill[pool] = None
        queue.add(task)
        self._queued += 1

    def _go_back(self, task: Task, worker_id: WorkerId) -> None:
        """Back to the queue, from a worker that did not answer and may do so late."""
        if task.abandoned:
            self._forget(task)
        else:
            task.former += (worker_id,)
            self._enqueue(task)

    def _dequeue(self, task: Task) -> None:
        task.queue.remove(task)
        self._queued -= 1

    def _forget(self, task: Task) -> None:
        del self._tasks[task.id]
        task.account.active -= 1

    def _expire(self, now: float) -> None:
        for task in self._deadlines.passed(now):
            if task.abandoned:
                continue
            waited_s = now - task.submitted_at
            where = "in the queue" if task.worker is None else f"on worker {task.worker.id}"
            error = DeadlineExceeded(f"no answer within {waited_s:.3g} s; the call was {where}")
            self._reply(task, error, waited_s, None)
            self.cancel(task.id)

    def _reply(
        self, task: Task, outcome: Outcome, waited_s: float, worker: WorkerId | None
    ) -> None:
        self._replies.append(Reply(task, outcome, waited_s, worker))
        if isinstance(outcome, FarmError) or outcome.failed is not None:
            task.queue.failed += 1
        else:
            task.queue.done += 1

    def _lost(
        self,
        task: Task,
        worker: WorkerId,
        reason: str,
        *,
        now: float,
        time_limit: bool = False,
        row: int | None = None,
    ) -> None:
        """Back to the queue with a task that a worker may have run in vain, or end it."""
        task.lost_on += (f"{worker} ({reason})",)
        error = error_for_loss(
            task, worker, reason, time_limit=time_limit, row=row, retries=self.retries
        )
        if error is None or task.abandoned:
            task.batch_key = None  # it runs alone from now on, so that only the guilty fail
            self._go_back(task, worker)
        else:
            self._reply(task, error, now - task.submitted_at, worker)
            self._forget(task)

    # For others to read

    def snapshot(self, now: float) -> dict[str, Any]:
        """Workers and queues as JSON data."""
        return snapshot(self._workers.values(), self._models.values(), now)

    def check(self) -> None:
        """Assert every invariant of the state."""
        pools = self._pools.values()
        check(self._tasks, self._workers, self._models, pools, self._clients, self._queued)

    def __len__(self) -> int:
        return len(self._tasks)
