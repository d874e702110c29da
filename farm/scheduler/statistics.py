"""What has become of each model's calls since the farm is up: counts and times, for inference.

The fields are those of the KServe protocol's statistics extension, as Triton has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from farm.call import Operation, Result
from farm.errors import FarmError
from farm.scheduler.state import Task


@dataclass(slots=True)
class Duration:
    """How often, and for how many seconds in all."""

    count: float = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: float = 1) -> None:
        """Take note of `count` times that took `seconds` in all."""
        self.count += count
        self.seconds += seconds


@dataclass(slots=True)
class ModelStatistics:
    """Counts and times of one model.

    success, fail: from taking a call to its outcome; queue: until its run; compute: each call's
    share of the runs, by rows. rows: of calls that succeeded; executions: runs of the model for
    them, so that rows / executions is the mean size of a batch; by_batch: the runs by their rows.
    last: Unix time of the last success, 0 before.
    """

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute: Duration = field(default_factory=Duration)
    rows: int = 0
    executions: float = 0.0
    by_batch: dict[int, Duration] = field(default_factory=dict)
    last: float = 0.0

    def add(self, task: Task, outcome: Result | FarmError, now: float, today: float) -> None:
        """Take note of an outcome; `now` is the scheduler's time, `today` Unix time."""
        waited_s = now - task.submitted_at
        if isinstance(outcome, FarmError):
            self.fail.add(waited_s)
            return
        self.success.add(waited_s)
        self.queue.add(outcome.queue_time_s)
        # All calls of a run tell of it: each counts for its share.
        batch_rows = max(outcome.batch_rows, task.rows)
        share = task.rows / batch_rows
        self.compute.add(share * outcome.run_time_s)
        self.rows += task.rows
        self.executions += share
        of_size = self.by_batch.get(batch_rows)
        if of_size is None:
            of_size = self.by_batch[batch_rows] = Duration()
        of_size.add(share * outcome.run_time_s, share)
        self.last = today


class Statistics:
    """The statistics of all models of one dispatcher."""

    def __init__(self) -> None:
        self.models: dict[str, ModelStatistics] = {}

    def add(self, task: Task, outcome: Result | FarmError, now: float, today: float) -> None:
        """Take note of what became of a task; questions of what a model is do not count."""
        call = task.call
        if call.operation is Operation.DESCRIBE:
            return
        known = self.models.get(call.model)
        if known is None:
            known = self.models[call.model] = ModelStatistics()
        known.add(task, outcome, now, today)
