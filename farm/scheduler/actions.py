"""The actions that the scheduler requests from its owner."""

from __future__ import annotations

from dataclasses import dataclass

from farm.call import Result
from farm.errors import FarmError
from farm.scheduler.state import Task, TaskId, WorkerId
from farm.sequences import SequenceId

Outcome = Result | FarmError


@dataclass(slots=True)
class Send:
    """Send these tasks to this worker in one message."""

    worker: WorkerId
    tasks: list[Task]


@dataclass(slots=True)
class Reply:
    """Answer the task's caller; issued once for each task that was not cancelled.

    A stream has one Reply per answer, which is marked as followed by more, and one for its end.
    """

    task: Task
    outcome: Outcome
    queue_time_s: float
    worker: WorkerId | None

    def result(self, of: Result) -> Result:
        """Return the worker's result, with its worker, its time in queues and its copy added."""
        return Result(
            of.outputs,
            of.run_time_s,
            of.info,
            of.worker or self.worker or "",
            self.queue_time_s + of.queue_time_s,
            of.idle_s,
            of.batch_rows,
            of.more,
            of.failed,
            self.task.past.copied,
            row_times_s=of.row_times_s,
        )


@dataclass(slots=True)
class Recall:
    """Ask the worker to return these tasks unless begun; it answers with `recalled`."""

    worker: WorkerId
    tasks: list[TaskId]


@dataclass(slots=True)
class EndStream:
    """Tell this worker that no further answer to a task is needed.

    It ends a stream early, and returns a call that it has not begun. Any other call runs on.
    """

    worker: WorkerId
    task: TaskId


@dataclass(slots=True)
class EndSequence:
    """Tell this worker that a sequence of a model has ended: its state is not needed any more."""

    worker: WorkerId
    model: str
    id: SequenceId


Action = Send | Reply | Recall | EndStream | EndSequence
