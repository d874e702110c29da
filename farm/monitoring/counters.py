"""Counters and histograms of a farm since it started, for Prometheus: see `farm/server/metrics.py`.

They only grow, so that whoever reads them now and then computes rates and quantiles of the time in
between. `dispatcher/measures.py` has those of the last moments.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from farm.call import Result, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.errors import LossCause, TimeLimitExceeded, WorkerLost
from farm.monitoring.histogram import SHORT_TIMES_S, Histogram
from farm.scheduler.actions import Outcome
from farm.scheduler.queues import Queue
from farm.scheduler.state import Task

DONE = "done"
"""The outcome of a call that did not fail; others are the names of their errors' classes."""


class _OfQueue:
    """The counts of one model and operation."""

    __slots__ = ("ends", "overheads_s", "retries", "run_times_s", "waits_s")

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter({DONE: 0})
        self.retries = 0
        self.run_times_s = Histogram()
        self.waits_s = Histogram()
        self.overheads_s = Histogram(SHORT_TIMES_S)


class Counters:
    """Counts of workers that joined and left and of answered calls, by kinds of bounded number.

    A task is a call, or one part of a call with many rows.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._joins = 0
        self._drained = 0
        self._losses = Counter(
            {cause.value: 0 for cause in LossCause if cause is not LossCause.STOPPED}
        )
        self._of: dict[Queue, _OfQueue] = {}
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.on_recorded.append(self.answered)
        dispatcher.add_part("counts", self.snapshot)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Count a worker that joined."""
        self._joins += 1

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Count a worker that left, by cause if it was lost."""
        if departure.in_order:
            self._drained += 1
        else:
            self._losses[departure.cause.value] += 1

    def answered(self, task: Task, outcome: Outcome, now: float) -> None:
        """Count the last answer to a task. now: monotonic time."""
        queue = task.queue
        of = self._of.get(queue)
        if of is None:
            of = self._of[queue] = _OfQueue()
        if task.lost_on:
            was_last = isinstance(outcome, WorkerLost | TimeLimitExceeded)
            of.retries += len(task.lost_on) - was_last
        if not isinstance(outcome, Result):
            of.ends[type(outcome).__name__] += 1
            return
        failed = outcome.failed
        run_time_s = outcome.run_time_s
        if failed is not None:
            of.ends[type(failed).__name__] += 1
        if task.is_run:
            if rows := outcome.rows_done(task.rows):
                of.ends[DONE] += rows
                of.run_times_s.add(run_time_s / rows, rows)
            of.waits_s.add(outcome.queue_time_s, max(1, rows))
        else:
            of.ends[DONE] += failed is None
            of.waits_s.add(outcome.queue_time_s)
            of.run_times_s.add(run_time_s)
        attempt = task.attempt
        if attempt.alone and not (attempt.refill or outcome.copied):
            of.overheads_s.add(max(0.0, now - task.submitted_at - run_time_s))

    def snapshot(self) -> dict[str, Any]:
        """Return all counts as JSON data."""
        return {
            "joins": self._joins,
            "drained": self._drained,
            "losses": dict(self._losses),
            "queues": [
                {
                    "model": queue.model.name,
                    "operation": queue.operation.value,
                    "ends": dict(of.ends),
                    "retries": of.retries,
                    "run_times_s": of.run_times_s.snapshot(),
                    "waits_s": of.waits_s.snapshot(),
                    "overheads_s": of.overheads_s.snapshot(),
                }
                for queue, of in self._of.items()
            ],
        }
