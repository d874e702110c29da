"""Decides the outcome of tasks whose worker was lost while it ran them, or may have run them."""

from __future__ import annotations

from collections.abc import Iterable

from farm.errors import FarmError, LossCause, TimeLimitExceeded, WorkerLost
from farm.scheduler.placement import FITS_FACTOR
from farm.scheduler.state import Task, TaskId
from farm.scheduler.story import with_story
from farm.scheduler.workers import Worker
from farm.wording import counted, timespan

CRASH_RETRIES = 1
"""How often a call is requeued although its model crashed: each time costs a restart of a group."""


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
