"""The scheduler: a pure state machine that turns facts and the time into actions.

Times are seconds of any monotonic clock. After every fact, or a few at once, the owner carries out
`actions(now)` and sets one timer to `wakeup()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import cast

from farm.call import Call, ModelInfo, Operation, Result
from farm.errors import FarmError, LossCause, ModelNotFound
from farm.policies import USUAL, ModelPolicy
from farm.scheduler import affinity
from farm.scheduler.accounts import BULK, Chain, Clients, check_room
from farm.scheduler.actions import Action, EndStream, Outcome, Reply
from farm.scheduler.batching import batch_key, linger_after
from farm.scheduler.completion import OpenTasks
from farm.scheduler.copies import NEVER, Copies
from farm.scheduler.outcomes import Deadlines, error_for_deadline, may_be_guilty, of_row
from farm.scheduler.phases import OUTRUN, QUEUED, SENT, TASKS
from farm.scheduler.placement import NO_END, Pools, end_at_most, pool_for
from farm.scheduler.queues import ModelQueues, Queue
from farm.scheduler.recall import for_idle, has_too_much, in_vain, released
from farm.scheduler.sequences import Sequences
from farm.scheduler.state import ATTEMPT_ANSWERED, Attempt, Task, TaskId, WorkerId
from farm.scheduler.view import View
from farm.scheduler.workers import Answers, Worker

TASK_ANSWERED = TASKS.event("answered")
TASK_ANSWERED_LATE = TASKS.event("answered late")
TASK_CANCELLED = TASKS.event("cancelled")


class Scheduler:
    """Decides which call runs where and when.

    max_queued, max_queued_per_client: waiting calls from which on `submit` raises Overloaded.
    retries: how often a call is requeued after a worker died while running it.
    ends_at: when the farm ends, and all of its workers with it.
    first_task: the first task id; ids from before a restart of the farm must not recur.
    policies: of models with a reserve or a priority of their own.
    splits_runs: whether workers may split runs of rows.
    """

    def __init__(
        self,
        *,
        max_queued: int = 100_000,
        max_queued_per_client: int = 100_000,
        retries: int = 3,
        ends_at: float | None = None,
        first_task: int = 1,
        policies: Mapping[str, ModelPolicy] | None = None,
        splits_runs: bool = True,
    ) -> None:
        self.policies = policies or {}
        self._ends_at = end_at_most(ends_at)
        self._splits_runs = splits_runs
        # State: each object changes its own part.
        self._open = OpenTasks(retries)
        self._ids = cast(Iterator[TaskId], count(first_task))
        self._workers: dict[WorkerId, Worker] = {}
        self._models: dict[str, ModelQueues] = {}
        limits = max_queued, max_queued_per_client
        self.view = View(self._open, self._workers, self._models, first_task, limits)
        self._pools = Pools()
        self._clients = Clients()
        self._deadlines = Deadlines(self._open.by_id)
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
        times = queue.kinds.of(call.config)
        account = model.accounts.entering(client, times.mean)
        open_, of_client = self._open, account.client.queued
        most, most_of_client = self.view.limits
        if open_.queued >= most or of_client >= most_of_client:
            check_room(open_.queued, most, client, of_client, most_of_client)
        rows, most_rows = call.rows or 1, queue.max_batch
        is_run = rows > 1 and most_rows == 1
        task = Task(
            next(self._ids),
            call,
            queue,
            times,
            account,
            chain,
            priority + model.policy.priority,
            now,
            batch_key(call, max_batch=most_rows) if most_rows > 1 else None,
            rows,
            is_run,
            callers=rows if gathered else 1,
            calls=rows if gathered or is_run else 1,
        )
        if lost_on:
            task.lose(*lost_on)
            open_.suspect(task)
        account.opened(chain, task.callers)
        if deadline is not None:
            self._deadlines.add(deadline, task.id)
        if start_by is not None:
            self._deadlines.add(start_by, task.id, to_start=True)
        if step is None or sequences is None:
            open_.enqueue(task)
        else:
            open_.add_step(task, sequences)
        return task.id

    def cancel(self, task_id: TaskId) -> None:
        """Cancel a call: it gets no reply; a waiting task is dropped, a running one may finish."""
        task = self._open.by_id.get(task_id)
        if task is not None and task.phase.has_caller:
            self._open.let_drop(task, TASK_CANCELLED)

    def fail(self, task_id: TaskId, error: FarmError, *, now: float) -> None:
        """Answer a call with an error, and drop it as `cancel` does."""
        if (task := self._open.by_id.get(task_id)) is not None and task.phase.has_caller:
            self._open.reply(task, error, now - task.submitted_at, None)
            self._open.let_drop(task, TASK_CANCELLED)

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
                model.keep(Sequences(model, info.sequences))

    def worker_joined(
        self,
        worker_id: WorkerId,
        models: Sequence[ModelInfo],
        *,
        slots: int = 1,
        ends_at: float | None = None,
        host: str = "",
        ends_runs: bool = False,
        now: float,
    ) -> None:
        """Add a worker that offers `slots` concurrent calls of its models until `ends_at`.

        ends_runs: it can end a run whose answer is not needed, so that it may get copies.
        Joining twice under one name means leaving and joining again.
        """
        if worker_id in self._workers:
            self.worker_left(worker_id, "it joined again", now=now)
        self.expect(models)
        pool = pool_for(self._pools, [self._models[name] for name in {m.name for m in models}])
        end = min(end_at_most(ends_at), self._ends_at)
        worker = Worker(worker_id, pool, host, slots, end, end - now, Answers(now, now), ends_runs)
        self._workers[worker_id] = worker
        pool.add(worker)
        self._open.to_fill[pool] = None

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
        guilty = set() if drained else may_be_guilty(worker, running, cause)
        held = list(released(worker, list(worker.held)))
        worker.leave()
        affinity.forget(worker)
        worker.pool.remove(worker)
        self._pools.drop_if_empty(worker.pool)
        if worker.pool.reserving:
            self._open.to_fill[worker.pool] = None
        self._open.to_ask.pop(worker, None)
        if worker.sequences:
            self._open.lose_sequences(worker, reason)
        for task, attempt in held:
            # Not only the running tasks: the answer to a run that has just ended is lost, too.
            may_have_run = not (task.queue.repeatable or drained)
            if may_have_run or (task.id in guilty and cause is not LossCause.RECLAIMED):
                why = cause if task.id in guilty else LossCause.UNKNOWN
                self._open.lost(task, attempt, reason, now=now, cause=why, detail=detail, row=row)
            else:
                self._open.requeue(task, attempt, reason, now)

    def worker_resized(self, worker_id: WorkerId, slots: int, last_slots: int = 0) -> None:
        """Set a worker's slots; with 0 it gets no calls and returns those it has not begun.

        last_slots: with 0, how many calls of the sequences that it has it still runs at once.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.pool.resize(worker, slots, last_slots)
        worker.void_recall()
        self._open.to_fill[worker.pool] = None
        self._open.to_ask[worker] = None

    def worker_full(self, worker_id: WorkerId, full: bool) -> None:
        """Note whether a worker has so much unread data that it gets no more until it has read it.

        The tasks sent to it stay there: recalling and resending them would only fill it again.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.fill(full)
        worker.pool.moved(worker)
        self._open.to_fill[worker.pool] = None

    def finished(
        self, worker_id: WorkerId, task_id: TaskId, outcome: Outcome, *, now: float
    ) -> None:
        """Record a worker's answer. Only the first answer to a task counts, from any worker."""
        task = self._open.by_id.get(task_id)
        if task is None:
            return
        phase = task.phase
        if phase is QUEUED or (attempt := task.attempt).worker.id != worker_id:
            if task.copy is None or task.copy.worker.id != worker_id:
                self._answered_late(task, worker_id, outcome)
                return
            attempt = task.prefer(task.copy)
        is_wanted, worker = phase is SENT, attempt.worker
        if task.past.row >= 0 and not (isinstance(outcome, Result) and outcome.more):
            of_it = of_row(outcome, task.past.row)
            if of_it is None:
                self.recalled(worker_id, [task_id], now=now)
                return
            outcome = of_it
        done, failed = 0, True
        if isinstance(outcome, FarmError):
            attempt.fail()
        elif outcome.more:
            self._goes_on(task, attempt, outcome, is_wanted=is_wanted)
            return
        else:
            failed = outcome.failed is not None
            done = (not failed) if task.rows == 1 else task.ended(outcome)
            attempt.answer(task, outcome, now)
            if worker.behind and phase is not OUTRUN and has_too_much(worker, task.times.prefetch):
                self._open.to_ask[worker] = None
        open_, lot = self._open, attempt.lot
        if is_wanted:
            waited_s = attempt.sent_at - task.submitted_at
            open_.answer(Reply(task, outcome, waited_s, worker_id), done, failed, task.calls)
        else:
            task.queue.counts.leave(task.calls)
        if lot is not None and lot.size > 1 and lot.remaining == 1:
            linger_after(lot, task, now)
        if worker.release(task, attempt):
            open_.to_fill[worker.pool] = None
            if task.queue.size:  # with the updated run times, calls may fit before a worker's end
                for pool in task.queue.model.pools:
                    if pool.is_ending:
                        open_.to_fill[pool] = None
        if phase is OUTRUN:
            done, failed = 0, False
        worker.answers.add(lot, now, done, failed)
        if task.copy is None:
            open_.end(task, TASK_ANSWERED)
        else:
            open_.ends.append(EndStream(task.outrun().id, task.id))

    def _goes_on(self, task: Task, attempt: Attempt, outcome: Result, *, is_wanted: bool) -> None:
        """Record an answer that is not the last one: of a stream, or to the first rows of a run."""
        if task.queue.streams:
            task.goes_on()
        elif not (task.is_run and self._splits_runs) or task.phase is OUTRUN:
            return
        else:
            task = task.split(attempt, outcome)
        if is_wanted:
            self._open.reply_more(task, outcome, attempt)

    def _answered_late(self, task: Task, worker_id: WorkerId, outcome: Outcome) -> None:
        """Accept an answer from a worker that was given up or returned the task.

        Streams are excluded: parts of two runs do not join; and sequences: theirs have ended.
        """
        former = [attempt for attempt in task.past.former if attempt.worker.id == worker_id]
        if not former or not task.phase.has_caller or task.queue.streams or task.sequence:
            return
        if isinstance(outcome, Result) and outcome.more:
            return
        row = task.past.row
        answer = outcome if row < 0 else of_row(outcome, row)
        if answer is None:
            return
        former[-1].change(ATTEMPT_ANSWERED)
        waited_s = task.attempt.sent_at - task.submitted_at
        self._open.reply(task, answer, waited_s, worker_id)
        self._open.let_drop(task, TASK_ANSWERED_LATE)

    def recalled(self, worker_id: WorkerId, task_ids: Iterable[TaskId], *, now: float) -> None:
        """Requeue tasks that a worker returned, after a Recall or unasked.

        The worker will not run them. It has begun or answered the recalled tasks that it keeps:
        these are not recalled again.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.end_recall()
        for task, attempt in released(worker, task_ids):
            self._open.requeue(task, attempt, "recalled", now)
        self._open.to_fill[worker.pool] = None
        self._open.to_ask[worker] = None

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
            self._open.lost(task, attempt, reason, now=now)
        self._open.to_fill[worker.pool] = None

    # Actions

    def actions(self, now: float) -> list[Action]:
        """Return everything to carry out now, in order."""
        open_, copies = self._open, self._copies
        if self._deadlines.first_at <= now:
            for task in self._deadlines.passed(now):
                if task.phase.has_caller:
                    self.fail(task.id, error_for_deadline(task, now), now=now)
        if open_.idle_until <= now:
            open_.end_idle(self._sequences(), now)
        if self._pools.recheck_at <= now:
            for pool in self._pools.due(now):
                open_.to_fill[pool] = None
        out, pools, workers = open_.take_todo(now)
        if pools:
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
        if workers:
            asks = [in_vain(worker) for worker in workers]
            out += [ask for ask in asks if ask is not None]
        return out

    def runs_in_vain(self, worker_id: WorkerId) -> bool:
        """Whether a worker holds nothing but calls that other workers have answered."""
        return self._workers[worker_id].runs_in_vain

    def queue(self, model: str, operation: Operation) -> Queue:
        """Return the queue of a known model, for its run times and workers."""
        return self._models[model].by_operation[operation]

    def wakeup(self) -> float | None:
        """Return when to call `actions` next if no fact comes before; None: never."""
        at = self._deadlines.first_at
        for due in (self._pools.recheck_at, self._copies.look_at, self._open.idle_until):
            if due < at:
                at = due
        return None if at == NO_END else at

    def end_sequences(self) -> None:
        """End all idle sequences now, and others as soon as they are idle: the farm stops."""
        for sequences in self._sequences():
            sequences.end_when_idle()
            for live in list(sequences.idle):
                self._open.end_sequence(live)

    def _sequences(self) -> list[Sequences]:
        return [m.sequences for m in self._models.values() if m.sequences is not None]

    def __len__(self) -> int:
        return len(self._open.by_id)
