"""What becomes of a task whose worker was lost while it ran, or may have run."""

from __future__ import annotations

from collections.abc import Iterable

from farm.errors import FarmError, TimeLimitExceeded, WorkerLost
from farm.scheduler.state import Task, TaskId, Worker, WorkerId


def may_be_guilty(
    worker: Worker, running: Iterable[TaskId] | None, *, time_limit: bool
) -> set[TaskId]:
    """The tasks that a lost worker may have died of.

    Those that it was running, if that is known, and the questions that it answers beside them,
    unless it was killed for the time that it took; else those that were sent first.
    """
    if running is None:
        return {task.id for task in worker.held_in_turn(worker.most_slots)[0]}
    guilty = set(running)
    if not time_limit:
        guilty |= {task.id for task in worker.held.values() if task.lot is None}
    return guilty


def error_for_loss(
    task: Task, worker: WorkerId, reason: str, *, time_limit: bool, row: int | None, retries: int
) -> FarmError | None:
    """The outcome of a task that was lost with `worker`; None: it goes back to its queue.

    row: of a run of rows the one that ran. Such a task ends here too: whoever made it of a call
    with many rows asks for them again, for that row alone, so that only the guilty row fails.
    """
    error: FarmError | None = None
    if time_limit:
        error = TimeLimitExceeded(f"worker {worker} was killed: {reason}")
    elif not task.queue.repeatable:
        error = WorkerLost(
            f"worker {task.lost_on[0]} may have run this call before it was lost, and model "
            f"{task.call.model!r} is not repeatable"
        )
    elif task.answers:
        error = WorkerLost(
            f"worker {worker} was lost ({reason}) after {task.answers} answers of a stream, "
            "which cannot begin anew"
        )
    elif len(task.lost_on) > retries:
        error = WorkerLost(
            f"the call was lost {len(task.lost_on)} times, with " + ", ".join(task.lost_on)
        )
    elif task.rows > 1 and task.queue.max_batch == 1:
        error = WorkerLost(task.lost_on[-1])
    if error is not None and task.queue.max_batch == 1 and task.queue.repeatable:
        error.row = row
    return error
