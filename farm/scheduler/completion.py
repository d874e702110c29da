"""The ways in which tasks wait, come back and end: the state that all facts change.

`core.Scheduler` takes the facts and returns the actions.
"""

from __future__ import annotations

from collections.abc import Iterable

from farm.errors import FarmError, LossCause
from farm.scheduler.actions import Action, EndSequence, EndStream, Outcome, Reply
from farm.scheduler.copies import loser_ended
from farm.scheduler.losses import error_for_loss
from farm.scheduler.phases import ATTEMPTS, OUTRUN, QUEUED, TASKS, TaskPhase
from farm.scheduler.placement import Pool
from farm.scheduler.sequences import NEVER, LiveSequence, Sequences, step_of
from farm.scheduler.state import Attempt, Task, TaskId, Worker, WorkerId
from farm.transitions import PhaseEvent

TASK_ANSWERED = TASKS.event("answered")
TASK_CAME_BACK = TASKS.event("came back")
TASK_GIVEN_UP = TASKS.event("given up")
TASK_CANCELLED = TASKS.event("cancelled")
ATTEMPT_RETURNED = ATTEMPTS.event("returned")
ATTEMPT_LOST = ATTEMPTS.event("lost")


class Completion:
    """The open tasks, and the ways in which one returns to its queue or ends.

    retries: how often a call is requeued after a worker died while running it.
    """

    def __init__(self, retries: int) -> None:
        self.retries = retries
        self._tasks: dict[TaskId, Task] = {}
        self._suspects: dict[TaskId, Task] = {}  # the tasks that were lost before
        self._queued = 0
        # Collected between a fact and the next `actions`.
        self._replies: list[Action] = []
        self._ends: list[EndStream | EndSequence] = []
        self._to_fill: dict[Pool, None] = {}
        self._to_ask: dict[Worker, None] = {}
        self._idle_until = NEVER  # a lower bound of when the first idle sequence ends

    def _enqueue(self, task: Task) -> None:
        queue = task.queue
        if (live := task.sequence) is not None:
            self._enqueue_step(task, live)
            return
        # Otherwise it waits behind others that find no room.
        if task.former or not queue.size or 0 < queue.company <= queue.size + 1:
            for pool in queue.model.pools:
                self._to_fill[pool] = None
        queue.add(task)
        self._queued += 1

    def _returned(self, task: Task, attempt: Attempt, why: str, now: float) -> None:
        """Requeue a task from a worker that did not answer, without counting a loss."""
        attempt.end(ATTEMPT_RETURNED, why, now)
        self._go_back(task, attempt)

    def _go_back(self, task: Task, attempt: Attempt) -> None:
        """Requeue a task, unless it goes on at another worker; an answer may still come late."""
        if attempt is not task.attempt:
            task.former += (attempt,)
        elif not task.phase.has_caller:
            self._end(task, TASK_GIVEN_UP)
        else:
            task.phase = TASK_CAME_BACK[task.phase]
            task.former += (attempt,)
            self._enqueue(task)

    def _let_drop(self, task: Task, on: PhaseEvent[TaskPhase]) -> None:
        """Drop a task without a caller: it leaves its queue, or may finish where it runs."""
        if task.phase is QUEUED:
            if (live := task.sequence) is None:
                task.queue.remove(task)
            else:
                self._take_out(task, live)
            self._queued -= 1
            self._end(task, on)
            return
        task.phase = on[task.phase]
        worker = task.attempt.worker
        if task.queue.streams:
            self._ends.append(EndStream(worker.id, task.id))
        if worker.behind:  # it may not have begun
            self._to_ask[worker] = None

    def _end(self, task: Task, on: PhaseEvent[TaskPhase]) -> None:
        if task.phase is OUTRUN:
            loser_ended(task)
        else:
            task.account.closed(task.chain, task.callers)
        task.phase = on[task.phase]
        del self._tasks[task.id]
        if task.lost_on:
            self._suspects.pop(task.id, None)
        if (live := task.sequence) is not None:
            self._step_ended(task, live, ran=on is TASK_ANSWERED)

    # Calls of sequences: those before the end of a sequence have run, in order, or it breaks off

    def _add_step(self, task: Task, sequences: Sequences) -> None:
        """Take in a new call of a sequence."""
        if sequences.add(task):
            assert task.sequence is not None
            self._enqueue_step(task, task.sequence)
        else:
            self._queued += 1

    def _enqueue_step(self, task: Task, live: LiveSequence) -> None:
        """Queue the call of a sequence whose turn it is; it may have been returned by a worker."""
        if step_of(task).start:  # any worker may run it
            self._leave_worker(live)
            for pool in task.queue.model.pools:
                self._to_fill[pool] = None
            task.queue.add(task)
        elif live.queue is not None:
            self._to_fill[live.queue.worker.pool] = None
            live.queue.add(task)
        else:
            self._reply(task, live.error(), 0.0, None)
            self._end(task, TASK_CANCELLED)
            return
        self._queued += 1

    def _take_out(self, task: Task, live: LiveSequence) -> None:
        """Remove a call of a sequence from where it waits; `_end` lets go of one behind others."""
        if task.line is None:
            return
        if step_of(task).start:
            task.queue.remove(task)
        else:
            assert live.queue is not None, "it waits for the worker that has its sequence"
            live.queue.remove(task)

    def _step_ended(self, task: Task, live: LiveSequence, *, ran: bool) -> None:
        """Go on with a sequence whose call has ended. ran: its worker has run the call."""
        if task.id in live.waiting:
            broken = live.followers(task)
            live.let_go(task)
            self._fail_steps(broken, live)
            return
        if live.current is not task:
            return
        live.current = None
        if ran and step_of(task).end:
            self._leave_worker(live, has_state=False)
        if not ran:
            self._fail_steps(live.followers(None), live)
        following = next(iter(live.waiting.values()), None)
        if following is not None:
            live.let_go(following)
            self._queued -= 1
            live.current = following
            self._enqueue_step(following, live)
        elif ran and not live.closed and live.worker is not None:
            live.of.rest(live, live.worker.last_answer_at)
            self._idle_until = min(self._idle_until, live.of.ends_at())
        else:
            self._end_sequence(live)

    def _fail_steps(self, tasks: list[Task], live: LiveSequence) -> None:
        """Answer calls that wait behind one that did not run, and drop them."""
        for task in tasks:
            live.let_go(task)
            self._queued -= 1
            self._reply(task, live.error(), 0.0, None)
            self._end(task, TASK_CANCELLED)

    def _end_sequence(self, live: LiveSequence) -> None:
        """Forget a sequence without calls."""
        self._leave_worker(live)
        live.of.remove(live)

    def _leave_worker(self, live: LiveSequence, *, has_state: bool = True) -> None:
        """Free its place. has_state: its worker, if that is there, may still have its state."""
        worker = live.worker
        if worker is None:
            return
        live.leave_worker()
        self._to_fill[worker.pool] = None
        if has_state and not live.lost_with:
            self._ends.append(EndSequence(worker.id, live.of.model.name, live.id))

    def _lose_sequences(self, worker: Worker, reason: str) -> None:
        """Break off the sequences of a worker that has left; calls that it held end later."""
        for live in list(worker.sequences):
            live.lost_with = f"{worker.id} ({reason})"
            task = live.current
            if task is None:
                self._end_sequence(live)
                continue
            if task.phase is QUEUED:
                self._reply(task, live.error(), 0.0, None)
                self._let_drop(task, TASK_CANCELLED)
            live.leave_worker()

    def _end_idle(self, sequences: Iterable[Sequences], now: float) -> None:
        """End the sequences that have been idle for too long."""
        self._idle_until = NEVER
        for of in sequences:
            while of.ends_at() <= now:
                self._end_sequence(next(iter(of.idle)))
            self._idle_until = min(self._idle_until, of.ends_at())

    def _reply(
        self, task: Task, outcome: Outcome, waited_s: float, worker: WorkerId | None
    ) -> None:
        self._replies.append(Reply(task, outcome, waited_s, worker))
        is_failed = isinstance(outcome, FarmError) or outcome.failed is not None
        task.queue.failed += is_failed
        task.queue.done += (not is_failed) if task.rows == 1 else task.ended(outcome)

    def _lost(
        self,
        task: Task,
        attempt: Attempt,
        reason: str,
        *,
        now: float,
        cause: LossCause = LossCause.UNKNOWN,
        detail: str = "",
        row: int | None = None,
    ) -> None:
        """Requeue a task that a worker may have run in vain, or end it."""
        worker = attempt.worker.id
        attempt.end(ATTEMPT_LOST, reason, now)
        task.lost_on += (f"{worker} ({reason})",)
        self._suspects[task.id] = task
        error = None
        if attempt is task.attempt and task.phase.has_caller:
            error = error_for_loss(task, cause, detail, row, self.retries)
        if error is None:
            task.batch_key = None  # it runs alone from now on, so that only a faulty call fails
            self._go_back(task, attempt)
        else:
            self._reply(task, error, now - task.submitted_at, worker)
            self._end(task, TASK_GIVEN_UP)
