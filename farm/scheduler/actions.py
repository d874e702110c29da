"""What the scheduler asks its owner to do."""

from __future__ import annotations

from dataclasses import dataclass

from farm.call import Result
from farm.errors import FarmError
from farm.scheduler.state import Task, TaskId, WorkerId

Outcome = Result | FarmError


@dataclass(slots=True)
class Send:
    """Send these tasks to this worker in one message."""

    worker: WorkerId
    tasks: list[Task]


@dataclass(slots=True)
class Reply:
    """Answer the task's caller; it is said once for each task that was not cancelled.

    Of a stream it is said for each answer, which then says that more follow, and for its end.
    """

    task: Task
    outcome: Outcome
    queue_time_s: float
    worker: WorkerId | None

    def result(self, of: Result) -> Result:
        """The worker's result with what only the farm knows: who that was, the time in queues."""
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
        )


@dataclass(slots=True)
class TakeBack:
    """Ask the worker to hand these back if it has not begun them; `taken_back` is its answer."""

    worker: WorkerId
    tasks: list[TaskId]


@dataclass(slots=True)
class EndStream:
    """Let this worker end a stream before its time, as nobody waits for more of it."""

    worker: WorkerId
    task: TaskId


Action = Send | Reply | TakeBack | EndStream
