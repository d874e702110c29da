"""The open tasks: the ways in which they wait, come back and end.

`core.Scheduler` takes the facts and returns the actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from farm.errors import FarmError, LossCause
from farm.scheduler.actions import Action, EndSequence, EndStream, Outcome, Reply
from farm.scheduler.filling import fill
from farm.scheduler.outcomes import error_for_loss
from farm.scheduler.phases import ATTEMPTS, QUEUED, TASKS, TaskPhase
from farm.scheduler.placement import Pool
from farm.scheduler.sequences import LiveSequence, Sequences, step_of
from farm.scheduler.state import Attempt, Task, TaskId, WorkerId
from farm.scheduler.workers import Worker
from farm.transitions import PhaseEvent

TASK_ANSWERED = TASKS.event("answered")
TASK_CAME_BACK = TASKS.event("came back")
TASK_GIVEN_UP = TASKS.event("given up")
TASK_CANCELLED = TASKS.event("cancelled")
ATTEMPT_RETURNED = ATTEMPTS.event("returned")
ATTEMPT_LOST = ATTEMPTS.event("lost")


Todo = tuple[list[Action], dict[Pool, None], dict[Worker, None]]
"""Actions: replies, ends of streams and sequences, and what is sent; pools that were filled; and
workers to recall from.
"""


class OpenTasks:
    """The open tasks, and the ways in which one returns to its queue or ends.

    retries: how often a call is requeued after a worker died while running it. by_id: all of them,
    oldest first; suspects: those that were lost before. queued: how many wait. idle_until: a lower
    bound of when the first idle sequence ends. The rest is collected for the next `actions`.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self.by_id: dict[TaskId, Task] = {}
        self.suspects: dict[TaskId, Task] = {}
        self.queued = 0
        self.idle_until = math.inf
        self._replies: list[Action] = []
        self.ends: list[EndStream | EndSequence] = []
        self.to_fill: dict[Pool, None] = {}
        self.to_ask: dict[Worker, None] = {}

    def take_todo(self, now: float) -> Todo:
        """Assign waiting tasks; return the actions collected so far."""
        out, self._replies = self._replies, []
        if self.ends:
            out += self.ends
            self.ends = []
        pools, workers = self.to_fill, self.to_ask
        if pools:
            self.to_fill = {}
            if self.queued:
                sends = fill(pools, now)
                for send in sends:
                    self.queued -= len(send.tasks)
                out += sends
        if workers:
            self.to_ask = {}
        return out, pools, workers

    def suspect(self, task: Task) -> None:
        """Note that a task was lost before."""
        self.suspects[task.id] = task

    def enqueue(self, task: Task) -> None:
        """Let a new task, or one that comes back, wait in its queue."""
        queue = task.queue
        if (live := task.sequence) is not None:
            self._enqueue_step(task, live)
            return
        self.by_id[task.id] = task
        # Otherwise it waits behind others that find no room.
        if task.past.former or not queue.size or 0 < queue.company <= queue.size + 1:
            for pool in queue.model.pools:
                self.to_fill[pool] = None
        queue.add(task)
        self.queued += 1

    def requeue(self, task: Task, attempt: Attempt, why: str, now: float) -> None:
        """Requeue a task from a worker that did not answer, without counting a loss."""
        attempt.end(ATTEMPT_RETURNED, why, now)
        self._go_back(task, attempt)

    def _go_back(self, task: Task, attempt: Attempt) -> None:
        """Requeue a task, unless it goes on at another worker; an answer may still come late."""
        if attempt is not task.attempt:
            task.add_former(attempt)
        elif not task.phase.has_caller:
            self.end(task, TASK_GIVEN_UP)
        else:
            task.change(TASK_CAME_BACK)
            task.add_former(attempt)
            self.enqueue(task)

    def let_drop(self, task: Task, on: PhaseEvent[TaskPhase]) -> None:
        """Drop a task without a caller: it leaves its queue, or may finish where it runs."""
        if task.phase is QUEUED:
            if (live := task.sequence) is None:
                task.queue.remove(task)
            else:
                self._take_out(task, live)
            self.queued -= 1
            self.end(task, on)
            return
        task.change(on)
        worker = task.attempt.worker
        if task.queue.streams:
            self.ends.append(EndStream(worker.id, task.id))
        if worker.behind:  # it may not have begun
            self.to_ask[worker] = None

    def end(self, task: Task, on: PhaseEvent[TaskPhase]) -> None:
        """Close a task."""
        task.end(on)
        del self.by_id[task.id]
        if task.past.lost_on:
            self.suspects.pop(task.id, None)
        if (live := task.sequence) is not None:
            self._step_ended(task, live, ran=on is TASK_ANSWERED)

    # Calls of sequences: those before the end of a sequence have run, in order, or it breaks off

    def add_step(self, task: Task, sequences: Sequences) -> None:
        """Take in a new call of a sequence."""
        self.by_id[task.id] = task
        if sequences.add(task):
            assert task.sequence is not None
            self._enqueue_step(task, task.sequence)
        else:
            self.queued += 1

    def _enqueue_step(self, task: Task, live: LiveSequence) -> None:
        """Queue the call of a sequence whose turn it is; it may have been returned by a worker."""
        if step_of(task).start:  # any worker may run it
            self._leave_worker(live)
            for pool in task.queue.model.pools:
                self.to_fill[pool] = None
            task.queue.add(task)
        elif live.queue is not None:
            self.to_fill[live.queue.worker.pool] = None
            live.queue.add(task)
        else:
            self.reply(task, live.error(), 0.0, None)
            self.end(task, TASK_CANCELLED)
            return
        self.queued += 1

    def _take_out(self, task: Task, live: LiveSequence) -> None:
        """Remove a call of a sequence from where it waits; `end` lets go of one behind others."""
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
        if ran and step_of(task).end:
            self._leave_worker(live, has_state=False)
        if not ran:
            self._fail_steps(live.followers(None), live)
        following = live.goes_on()
        if following is not None:
            self.queued -= 1
            self._enqueue_step(following, live)
        elif ran and not live.closed and live.worker is not None:
            live.of.rest(live, live.worker.answers.last_at)
            self.idle_until = min(self.idle_until, live.of.ends_at())
        else:
            self.end_sequence(live)

    def _fail_steps(self, tasks: list[Task], live: LiveSequence) -> None:
        """Answer calls that wait behind one that did not run, and drop them."""
        for task in tasks:
            live.let_go(task)
            self.queued -= 1
            self.reply(task, live.error(), 0.0, None)
            self.end(task, TASK_CANCELLED)

    def end_sequence(self, live: LiveSequence) -> None:
        """Forget a sequence without calls."""
        self._leave_worker(live)
        live.of.remove(live)

    def _leave_worker(self, live: LiveSequence, *, has_state: bool = True) -> None:
        """Free its place. has_state: its worker, if that is there, may still have its state."""
        worker = live.worker
        if worker is None:
            return
        live.leave_worker()
        self.to_fill[worker.pool] = None
        if has_state and not live.lost_with:
            self.ends.append(EndSequence(worker.id, live.of.model.name, live.id))

    def lose_sequences(self, worker: Worker, reason: str) -> None:
        """Break off the sequences of a worker that has left; calls that it held end later."""
        for live in list(worker.sequences):
            live.lose(f"{worker.id} ({reason})")
            task = live.current
            if task is None:
                self.end_sequence(live)
                continue
            if task.phase is QUEUED:
                self.reply(task, live.error(), 0.0, None)
                self.let_drop(task, TASK_CANCELLED)
            live.leave_worker()

    def end_idle(self, sequences: Iterable[Sequences], now: float) -> None:
        """End the sequences that have been idle for too long."""
        self.idle_until = math.inf
        for of in sequences:
            while of.ends_at() <= now:
                self.end_sequence(next(iter(of.idle)))
            self.idle_until = min(self.idle_until, of.ends_at())

    def reply(self, task: Task, outcome: Outcome, waited_s: float, worker: WorkerId | None) -> None:
        """Answer the caller of a task."""
        failed = isinstance(outcome, FarmError) or outcome.failed is not None
        done = (not failed) if task.rows == 1 else task.ended(outcome)
        self.answer(Reply(task, outcome, waited_s, worker), done, failed)

    def answer(self, reply: Reply, done: int, failed: bool, left: int = 0) -> None:
        """Answer a caller. done: how many evaluations have succeeded; left: as for `CallCounts`."""
        self._replies.append(reply)
        reply.task.queue.counts.reply(done, failed, left)

    def reply_more(self, task: Task, outcome: Outcome, attempt: Attempt) -> None:
        """Pass on an answer that another one follows."""
        waited_s = attempt.sent_at - task.submitted_at
        self._replies.append(Reply(task, outcome, waited_s, attempt.worker.id))

    def lost(
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
        task.lose(f"{worker} ({reason})")
        self.suspects[task.id] = task
        error = None
        if attempt is task.attempt and task.phase.has_caller:
            error = error_for_loss(task, cause, detail, row, self._retries)
        if error is None:
            task.run_alone()  # so that only a faulty call fails
            self._go_back(task, attempt)
        else:
            self.reply(task, error, now - task.submitted_at, worker)
            self.end(task, TASK_GIVEN_UP)
