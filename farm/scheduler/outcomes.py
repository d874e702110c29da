"""Outcomes of lost and late tasks and of rows, and the history that their errors tell."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from farm.errors import DeadlineExceeded, FarmError, LossCause, TimeLimitExceeded, WorkerLost
from farm.scheduler.actions import Outcome
from farm.scheduler.phases import LOST, QUEUED
from farm.scheduler.placement import FITS_FACTOR
from farm.scheduler.state import Task, TaskId
from farm.scheduler.workers import Worker
from farm.wording import counted, timespan

CRASH_RETRIES = 1
"""How often a call is requeued although its model crashed: each time costs a restart of a group."""

STEPS_TOLD = 8
"""Maximum number of steps listed; of a longer history, the last ones with a count of the others."""


def may_be_guilty(
    worker: Worker, running: Iterable[TaskId] | None, cause: LossCause
) -> set[TaskId]:
    """Return the tasks that may have caused the loss of a worker.

    These are the tasks it was running, if known, and the calls that need no slot, unless it was
    killed by a time limit; otherwise, those that were sent first.
    """
    if running is None:
        return {task.id for task in worker.held_in_turn(worker.most_slots)[0]}
    guilty = set(running)
    if cause is not LossCause.TIME_LIMIT:
        guilty |= {task.id for task in worker.held.values() if task.attempt.lot is None}
    return guilty


def error_for_loss(
    task: Task, cause: LossCause, detail: str, row: int | None, retries: int
) -> FarmError | None:
    """Return the outcome of a task whose last attempt was lost; None: it is requeued.

    detail: the worker's last output, for the error. row: for a run of rows, the row that ran. Such
    a task ends here too, as does one of gathered calls: the code that formed it resubmits that row
    alone, or each of them, so that only the faulty one fails.
    """
    if cause is LossCause.CRASH:
        retries = min(retries, CRASH_RETRIES)
    time_limit = cause is LossCause.TIME_LIMIT
    too_long = _too_long_for_jobs(task, cause)
    text = too_long or _why_given_up(task, time_limit=time_limit, retries=retries)
    one_by_one = task.queue.max_batch == 1
    if text:
        text = with_story(text, task, task.attempt.ended_at)
        kind = TimeLimitExceeded if too_long or time_limit else WorkerLost
        error: FarmError = kind(text, detail=detail)
    elif task.is_run or task.callers > 1:
        error = WorkerLost(task.past.lost_on[-1], detail=detail)
    else:
        return None
    if one_by_one and task.queue.repeatable:
        error.row = row
    return error


def _too_long_for_jobs(task: Task, cause: LossCause) -> str:
    """Return why a new job like the last one is too short for a lost task; empty if it may not be.

    The rows of a run, and tasks that were evaluated together, are tried alone first.
    """
    attempt = task.attempt
    worker, ran_s = attempt.worker, attempt.outlasted_s
    if (
        FITS_FACTOR * ran_s < worker.lifetime_s
        or cause not in (LossCause.UNKNOWN, LossCause.STOPPED)
        or not task.queue.repeatable
        or task.is_run
        or not (attempt.lot is None or attempt.lot.size == 1)
    ):
        return ""
    return (
        f"the call needs more than {timespan(ran_s)}: it ran that long on worker {worker.id} until "
        f"the time limit of its job, which leaves a worker about {timespan(worker.lifetime_s)}; "
        "raise the limit (`time` in the file of --cluster, --time of sbatch)"
    )


def _why_given_up(task: Task, *, time_limit: bool, retries: int) -> str:
    """Return why a lost task does not run again; empty if it may."""
    attempt = task.attempt
    worker, reason = attempt.worker.id, attempt.why
    if time_limit:
        return f"worker {worker} was killed: {reason}"
    if not task.queue.repeatable:
        return (
            f"worker {task.past.lost_on[0]} may have run this call before it was lost, and model "
            f"{task.call.model!r} is not repeatable"
        )
    if task.past.answers:
        return (
            f"worker {worker} was lost ({reason}) after {task.past.answers} answers of a stream, "
            "which cannot be restarted"
        )
    if len(task.past.lost_on) > retries:
        times = counted(len(task.past.lost_on), "time")
        return f"the call was lost {times}, with {', '.join(task.past.lost_on)}"
    return ""


def error_for_deadline(task: Task, now: float) -> DeadlineExceeded:
    """Return the outcome of a task that has run out of time, whether it waits or runs."""
    waits = task.phase is QUEUED
    where = "in the queue" if waits else f"on worker {task.attempt.worker.id}"
    text = f"no answer within {now - task.submitted_at:.3g} s; the call was {where}"
    return DeadlineExceeded(with_story(text, task, now))


def of_row(outcome: Outcome, row: int) -> Outcome | None:
    """Return the outcome of row `row` of a run; None: the run has ended before it.

    outcome: an answer to the run, or to the call of the row.
    """
    if isinstance(outcome, FarmError):
        return outcome
    times = outcome.row_times_s
    if not times and outcome.failed is None:
        return outcome
    if row >= len(times):
        return outcome.failed if row == len(times) else None
    outputs = tuple([array[row : row + 1] for array in outcome.outputs])
    return replace(
        outcome, outputs=outputs, run_time_s=times[row], row_times_s=(times[row],), failed=None
    )


class Deadlines:
    """The deadlines of `tasks`, earliest first; those of completed tasks are removed over time."""

    SLACK = 1000

    def __init__(self, tasks: Mapping[TaskId, Task]) -> None:
        self._tasks = tasks
        self._heap: list[tuple[float, TaskId, bool]] = []
        self.first_at = math.inf  # a lower bound: that task may have ended

    def add(self, at: float, task_id: TaskId, *, to_start: bool = False) -> None:
        """Add a deadline for the task's answer, or with `to_start` for its start."""
        if len(self._heap) >= 2 * len(self._tasks) + self.SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._tasks]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (at, task_id, to_start))  # the task is among those just after
        self.first_at = self._heap[0][0]

    def passed(self, now: float) -> list[Task]:
        """Remove and return the tasks whose deadline has passed, each once."""
        heap = self._heap
        late: dict[Task, None] = {}
        while heap and (heap[0][0] <= now or heap[0][1] not in self._tasks):
            _, task_id, to_start = heapq.heappop(heap)
            task = self._tasks.get(task_id)
            if task is not None and (task.phase is QUEUED or not to_start):
                late[task] = None
        self.first_at = heap[0][0] if heap else math.inf
        return list(late)


# The history of a task


def story(task: Task, now: float) -> list[str]:
    """Return the steps of an open task, oldest first: its waits and its attempts.

    For example: queued 3 s; lost with w1 after 12 s (signal 9); queued again 0.2 s; sent to w2 5 s
    ago; copied to w3 1 s ago.
    """
    steps = list(_steps(task, now))
    untold = len(steps) - STEPS_TOLD
    return [f"{untold} earlier steps", *steps[untold:]] if untold > 0 else steps


def with_story(text: str, task: Task, now: float) -> str:
    """Return an error's text, followed by the task's history if that adds more than its wait."""
    steps = story(task, now)
    return text if len(steps) == 1 else f"{text}; what happened: {', '.join(steps)}"


def _steps(task: Task, now: float) -> Iterator[str]:
    losses = sum(attempt.phase is LOST for attempt in task.attempts)
    for before in task.past.lost_on[: len(task.past.lost_on) - losses]:
        yield f"lost before with {before}"
    waits_since, queued = task.submitted_at, "queued"
    for attempt in sorted(task.attempts, key=attrgetter("sent_at")):
        copy = "copy " if attempt.is_copy else ""
        if not copy:
            yield f"{queued} {timespan(attempt.sent_at - waits_since)}"
        worker = attempt.worker.id
        if not attempt.phase.is_over:
            how = "copied" if copy else "sent"
            yield f"{how} to {worker} {timespan(now - attempt.sent_at)} ago"
            continue
        how = "lost with" if attempt.phase is LOST else "back from"
        lasted = timespan(attempt.ended_at - attempt.sent_at)
        yield f"{copy}{how} {worker} after {lasted} ({attempt.why})"
        waits_since, queued = max(waits_since, attempt.ended_at), "queued again"
    if task.phase is QUEUED:
        yield f"{queued} {timespan(now - waits_since)}"
