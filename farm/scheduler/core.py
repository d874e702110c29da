"""The scheduler: a pure state machine that turns facts and the time into actions.

Times are seconds of any monotonic clock. After every fact, or a few at once, the owner carries out
`actions(now)` and sets one timer to `wakeup()`. Invariants: see `check()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

from farm.call import Call, ModelInfo, Operation, Result
from farm.errors import FarmError, LossCause, ModelNotFound
from farm.policies import USUAL, ModelPolicy
from farm.scheduler import affinity
from farm.scheduler.accounts import BULK, Chain, Clients
from farm.scheduler.actions import Action, EndStream, Outcome, Reply
from farm.scheduler.admission import check_room
from farm.scheduler.batching import batch_key, linger_after
from farm.scheduler.completion import Completion
from farm.scheduler.copies import NEVER, Copies, ending_at, outrun, prefer
from farm.scheduler.credit import charge_estimate, charge_run, release, released, unplace
from farm.scheduler.deadlines import Deadlines, error_for_deadline
from farm.scheduler.filling import fill
from farm.scheduler.invariants import check
from farm.scheduler.losses import may_be_guilty
from farm.scheduler.phases import ATTEMPTS, OUTRUN, QUEUED, SENT, TASKS, WORKERS
from farm.scheduler.placement import NO_END, Pools, drop_if_empty, end_at_most, pool_for
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.recall import for_idle, has_too_much, in_vain, void_recall
from farm.scheduler.sequences import Sequences
from farm.scheduler.snapshot import snapshot, standing_out
from farm.scheduler.split_runs import of_row, split_run
from farm.scheduler.state import Attempt, Task, TaskId, Worker, WorkerId
from farm.scheduler.view import View
from farm.sequences import SequenceLimits

TASK_ANSWERED = TASKS.event("answered")
TASK_ANSWERED_LATE = TASKS.event("answered late")
TASK_CANCELLED = TASKS.event("cancelled")
ATTEMPT_ANSWERED = ATTEMPTS.event("answered")


class Scheduler(Completion):
    """Decides which call runs where and when.

    max_queued, max_queued_per_client: waiting calls from which on `submit` raises Overloaded.
    retries: how often a call is requeued after a worker died while running it.
    first_task: the first task id; ids from before a restart of the farm must not recur.
    policies: of models with a reserve or a priority of their own.
    """

    def __init__(
        self,
        *,
        max_queued: int = 100_000,
        max_queued_per_client: int = 100_000,
        retries: int = 3,
        first_task: int = 1,
        policies: Mapping[str, ModelPolicy] | None = None,
    ) -> None:
        self.max_queued = max_queued
        self.max_queued_per_client = max_queued_per_client
        self.policies = policies or {}
        self.splits_runs = True  # whether workers may split runs of rows
        # State, changed only by the methods of this class.
        super().__init__(retries)
        self._ids = cast(Iterator[TaskId], count(first_task))
        self._workers: dict[WorkerId, Worker] = {}
        self._models: dict[str, ModelQueues] = {}
        self._sequences: dict[str, Sequences] = {}  # by the names of the models that have them
        limits = max_queued, max_queued_per_client
        self.view = View(self._tasks, self._workers, self._models, first_task, limits)
        self._pools = Pools()
        self._clients = Clients()
        self._deadlines = Deadlines(self._tasks)
        self._copies = Copies(self._pools)

    # Facts: calls

    def submit(
        self,
        call: Call,
        *,
        client: str = "",
        chain: Chain = BULK,
        priority: int = 0,
        deadline: float | None = None,
        start_by: float | None = None,
        lost_on: tuple[str, ...] = (),
        gathered: bool = False,
        now: float,
    ) -> TaskId:
        """Add a call. Raises ModelNotFound, Overloaded, or InvalidInput for a sequence.

        Then it keeps no trace of the call.

        chain: the caller within the client: see `accounts`.
        lost_on: losses that already count for the call, if it repeats a row of a run that was lost.
        gathered: its rows are calls of as many callers.
        """
        model = self._models.get(call.model)
        if model is None:
            raise ModelNotFound(f"no worker has served model {call.model!r} yet")
        queue = model.by_operation[call.operation]
        step, sequences = call.step, model.sequences
        if step is not None and sequences is not None:
            sequences.check(step)
        account = model.accounts.entering(client, queue.run_times.mean)
        queued, of_client = self._queued, account.client.queued
        if queued >= self.max_queued or of_client >= self.max_queued_per_client:
            check_room(queued, self.max_queued, client, of_client, self.max_queued_per_client)
        task = Task(
            next(self._ids),
            call,
            queue,
            account,
            priority + model.policy.priority,
            deadline,
            now,
            batch_key(call, max_batch=queue.max_batch) if queue.max_batch > 1 else None,
            chain,
            gathered,
        )
        self._tasks[task.id] = task
        if lost_on:
            task.lost_on = lost_on
            self._suspects[task.id] = task
        account.opened(chain, task.callers)
        if deadline is not None:
            self._deadlines.add(deadline, task.id)
        if start_by is not None:
            self._deadlines.add(start_by, task.id, to_start=True)
        if step is None or sequences is None:
            self._enqueue(task)
        else:
            self._add_step(task, sequences)
        return task.id

    def cancel(self, task_id: TaskId) -> None:
        """Cancel a call: it gets no reply; a waiting task is dropped, a running one may finish."""
        task = self._tasks.get(task_id)
        if task is not None and task.phase.has_caller:
            self._let_drop(task, TASK_CANCELLED)

    def fail(self, task_id: TaskId, error: FarmError, *, now: float) -> None:
        """Answer a call with an error, and drop it as `cancel` does."""
        if (task := self._tasks.get(task_id)) is not None and task.phase.has_caller:
            self._reply(task, error, now - task.submitted_at, None)
            self._let_drop(task, TASK_CANCELLED)

    # Facts: workers

    def expect(self, models: Iterable[ModelInfo]) -> None:
        """Accept calls of these models from now on; they wait for a worker that has them."""
        for info in models:
            model = self._models.get(info.name)
            if model is None:
                policy = self.policies.get(info.name, USUAL)
                model = self._models[info.name] = ModelQueues(info.name, self._clients, policy)
            model.learn(info)
            if info.sequences is not None and model.sequences is None:
                model.sequences = self._sequences[info.name] = Sequences(model, info.sequences)

    def worker_joined(
        self,
        worker_id: WorkerId,
        models: Sequence[ModelInfo],
        *,
        slots: int = 1,
        ends_at: float | None = None,
        host: str = "",
        now: float,
    ) -> None:
        """Add a worker that offers `slots` concurrent calls of its models until `ends_at`.

        Joining twice under one name means leaving and joining again.
        """
        if worker_id in self._workers:
            self.worker_left(worker_id, "it joined again", now=now)
        self.expect(models)
        pool = pool_for(self._pools, [self._models[name] for name in {m.name for m in models}])
        end = end_at_most(ends_at)
        worker = Worker(worker_id, pool, slots=slots, ends_at=end, now=now, host=host)
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
        cause: LossCause = LossCause.UNKNOWN,
        detail: str = "",
        now: float,
    ) -> None:
        """Remove a worker; its tasks return to their queues, before all younger ones.

        running: the tasks it was running when it died, if known; they count an attempt. If it is
        not known, those sent first count one. row: for a run of rows, the row that was running, if
        known.
        drained: it left in order; no task counts an attempt.
        cause: what ended it, see `LossCause`; detail: its last output. Tasks that are not
        repeatable count as run, unless drained.
        """
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return
        affinity.forget(worker)
        worker.pool.remove(worker)
        drop_if_empty(worker.pool, self._pools)
        if worker.pool.reserving:
            self._to_fill[worker.pool] = None
        self._to_ask.pop(worker, None)
        guilty = set() if drained else may_be_guilty(worker, running, cause)
        worker.phase = WORKERS.event("left")[worker.phase]
        held, worker.held = worker.held, {}
        if worker.sequences:
            self._lose_sequences(worker, reason)
        for task in held.values():
            attempt = ending_at(task, worker)
            unplace(task, attempt)
            # Not only the running tasks: the answer to a run that has just ended is lost, too.
            may_have_run = not (task.queue.repeatable or drained)
            if may_have_run or (task.id in guilty and cause is not LossCause.RECLAIMED):
                why = cause if task.id in guilty else LossCause.UNKNOWN
                self._lost(task, attempt, reason, now=now, cause=why, detail=detail, row=row)
            else:
                self._returned(task, attempt, reason, now)

    def worker_resized(self, worker_id: WorkerId, slots: int, last_slots: int = 0) -> None:
        """Set a worker's slots; with 0 it gets no calls and returns those it has not begun.

        last_slots: with 0, how many calls of the sequences that it has it still runs at once.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.pool.slots += slots - worker.slots
        worker.offer(slots, last_slots)
        void_recall(worker)
        worker.pool.moved(worker)
        self._to_fill[worker.pool] = None
        self._to_ask[worker] = None

    def worker_full(self, worker_id: WorkerId, full: bool) -> None:
        """Note whether a worker has so much unread data that it gets no more until it has read it.

        The tasks sent to it stay there: recalling and resending them would only fill it again.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.fill(full)
        worker.pool.moved(worker)
        self._to_fill[worker.pool] = None

    def finished(
        self, worker_id: WorkerId, task_id: TaskId, outcome: Outcome, *, now: float
    ) -> None:
        """Record a worker's answer. Only the first answer to a task counts, from any worker."""
        task = self._tasks.get(task_id)
        if task is None:
            return
        phase = task.phase
        if phase is QUEUED or (attempt := task.attempt).worker.id != worker_id:
            if task.copy is None or task.copy.worker.id != worker_id:
                self._answered_late(task, worker_id, outcome)
                return
            attempt = prefer(task, task.copy)
        is_wanted = phase is SENT
        worker = attempt.worker
        if isinstance(outcome, Result) and outcome.more:
            self._goes_on(task, attempt, outcome, is_wanted=is_wanted)
            return
        if task.row >= 0:
            of_it = of_row(outcome, task.row)
            if of_it is None:
                self.recalled(worker_id, [task_id], now=now)
                return
            outcome = of_it
        if isinstance(outcome, FarmError):
            charge_estimate(attempt)
        elif phase is not OUTRUN:
            charge_run(task, attempt, outcome, now)
            if worker.behind and has_too_much(worker, task.queue.run_times.prefetch):
                self._to_ask[worker] = None
        if is_wanted:
            self._reply(task, outcome, attempt.sent_at - task.submitted_at, worker_id)
        lot = attempt.lot
        if lot is not None and lot.size > 1 and lot.remaining == 1:
            linger_after(lot, task.queue, now)
        attempt.phase = ATTEMPT_ANSWERED[attempt.phase]
        if release(task, attempt):
            self._to_fill[worker.pool] = None
            if task.queue.size:  # with the updated run times, calls may fit before a worker's end
                for pool in task.queue.model.pools:
                    if pool.is_ending:
                        self._to_fill[pool] = None
        worker.answered(task, outcome, lot, now, first=phase is not OUTRUN)
        if task.copy is None:
            self._end(task, TASK_ANSWERED)
        else:
            self._ends.append(EndStream(outrun(task).id, task.id))

    def _goes_on(self, task: Task, attempt: Attempt, outcome: Result, *, is_wanted: bool) -> None:
        """Record an answer that is not the last one: of a stream, or to the first rows of a run."""
        if task.queue.streams:
            task.answers += 1
        elif not (task.is_run and self.splits_runs) or task.phase is OUTRUN:
            return
        else:
            task = split_run(task, attempt, outcome)
        if is_wanted:
            waited_s = attempt.sent_at - task.submitted_at
            self._replies.append(Reply(task, outcome, waited_s, attempt.worker.id))

    def _answered_late(self, task: Task, worker_id: WorkerId, outcome: Outcome) -> None:
        """Accept an answer from a worker that was given up or returned the task.

        Streams are excluded: parts of two runs do not join; and sequences: theirs have ended.
        """
        former = [attempt for attempt in task.former if attempt.worker.id == worker_id]
        if not former or not task.phase.has_caller or task.queue.streams or task.sequence:
            return
        attempt = former[-1]
        if isinstance(outcome, Result) and outcome.more:
            return
        if task.row >= 0:
            of_it = of_row(outcome, task.row)
            if of_it is None:
                return
            outcome = of_it
        attempt.phase = ATTEMPT_ANSWERED[attempt.phase]
        waited_s = task.attempt.sent_at - task.submitted_at
        self._reply(task, outcome, waited_s, worker_id)
        self._let_drop(task, TASK_ANSWERED_LATE)

    def recalled(self, worker_id: WorkerId, task_ids: Iterable[TaskId], *, now: float) -> None:
        """Requeue tasks that a worker returned, after a Recall or unasked.

        The worker will not run them. It has begun or answered the recalled tasks that it keeps:
        these are not recalled again.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.recall_pending = False
        for task, attempt in released(worker, task_ids):
            self._returned(task, attempt, "handed back", now)
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
        """Requeue tasks that were lost on the way to or from a worker that is still alive.

        The worker may have run them, so they count as lost with it.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        for task, attempt in released(worker, task_ids):
            self._lost(task, attempt, reason, now=now)
        self._to_fill[worker.pool] = None

    # Actions

    def actions(self, now: float) -> list[Action]:
        """Return everything to carry out now, in order."""
        if self._deadlines.first_at <= now:
            self._expire(now)
        if self._idle_until <= now:
            self._end_idle(self._sequences.values(), now)
        if self._pools.recheck_at <= now:
            self._to_fill |= dict.fromkeys(self._pools.due(now))
        out, self._replies, copies = self._replies, [], self._copies
        if self._ends:
            out += self._ends
            self._ends = []
        if self._to_fill:
            pools, self._to_fill = self._to_fill, {}
            if self._queued:
                for send in fill(pools, now):
                    self._queued -= len(send.tasks)
                    out.append(send)
            if self._pools.behind:
                donors = [pool for pool in self._pools.values() if pool.behind]
                asks = [for_idle(pool, donors, now) for pool in pools]
                out += [ask for ask in asks if ask is not None]
            if copies.look_at is NEVER and len(self._workers) > 1:
                for pool in pools:
                    if pool.occupied & 1:
                        copies.look_soon(now)
        if copies.look_at <= now or copies.late:
            out += copies.sends(now)
        if self._to_ask:
            workers, self._to_ask = self._to_ask, {}
            asks = [in_vain(worker) for worker in workers]
            out += [ask for ask in asks if ask is not None]
        return out

    def has_idle(self) -> bool:
        """Whether some worker has a free slot."""
        return self._pools.has_idle()

    def runs_in_vain(self, worker_id: WorkerId) -> bool:
        """Whether a worker holds nothing but calls that other workers have answered."""
        return self._workers[worker_id].runs_in_vain

    def queue(self, model: str, operation: Operation) -> Queue:
        """Return the queue of a known model, for its run times and workers."""
        return self._models[model].by_operation[operation]

    def wakeup(self) -> float | None:
        """Return when to call `actions` next if no fact comes before; None: never."""
        first = min(self._pools.recheck_at, self._copies.look_at, self._idle_until)
        at = min(first, self._deadlines.earliest())
        return None if at == NO_END else at

    def end_sequences(self) -> None:
        """End all idle sequences now, and others as soon as they are idle: the farm stops."""
        for sequences in self._sequences.values():
            sequences.limits = SequenceLimits(sequences.limits.most, 0.0)
            for live in list(sequences.idle):
                self._end_sequence(live)

    def _expire(self, now: float) -> None:
        for task in self._deadlines.passed(now):
            if task.phase.has_caller:
                self.fail(task.id, error_for_deadline(task, now), now=now)

    # Inspection

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return workers, queues and the most notable calls as JSON data."""
        calls = standing_out(self._tasks.values(), self._suspects.values(), now)
        number = self.view.number
        return snapshot(self._workers.values(), self._models.values(), calls, now, number)

    def check(self) -> None:
        """Assert every invariant of the state."""
        check(self._tasks, self._workers, self._models, self._pools, self._clients, self._queued)

    def __len__(self) -> int:
        return len(self._tasks)
