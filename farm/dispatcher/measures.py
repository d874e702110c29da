"""Measurements of a running farm: rates, overhead and idle gaps, at little cost per call."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from farm.call import Result
from farm.errors import FarmError
from farm.scheduler.state import Task

SAMPLES = 2000
"""Samples per percentile: enough for a p99, few enough to sort for each snapshot."""


class Measures:
    """Counts and recent samples of one dispatcher.

    overhead_s: time from call to answer minus the model's run time, of calls that found an idle
    worker; idle_gap_s: time that a worker was idle before a call that was already queued.
    """

    def __init__(self) -> None:
        self._overhead_s: deque[float] = deque(maxlen=SAMPLES)
        self._idle_gap_s: deque[float] = deque(maxlen=SAMPLES)
        self._done_at: deque[float] = deque(maxlen=SAMPLES)
        self.done = 0
        self.failed = 0
        self.run_time_s = 0.0

    def add(self, task: Task, outcome: Result | FarmError, fails: int, now: float) -> None:
        """Record one answered task; each row of a run counts.

        fails: how many calls fail for good with it.
        """
        self.failed += fails
        if isinstance(outcome, FarmError):
            self._done_at.append(now)
            return
        if task.is_run:
            done = outcome.rows_done(task.rows)
            self._done_at.extend([now] * min(done, SAMPLES))
            self.done += done
        else:
            self._done_at.append(now)
            self.done += 1
        self.run_time_s += outcome.run_time_s
        if outcome.copied:
            return  # the time before the copy is neither overhead nor idle time
        attempt = task.attempt
        waited = attempt.refill or not attempt.alone
        if waited and outcome.idle_s >= 0.0:
            self._idle_gap_s.append(outcome.idle_s)
        if attempt.alone and not attempt.refill:
            self._overhead_s.append(now - task.submitted_at - outcome.run_time_s)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return counts, calls/s over the last 10 s, and percentiles in seconds, as JSON data."""
        recent = sum(1 for t in self._done_at if t > now - 10.0)
        span = 10.0
        if recent == SAMPLES:  # the samples span less than 10 s: use their span
            span = max(now - self._done_at[0], 1e-9)
        return {
            "done": self.done,
            "failed": self.failed,
            "run_time_s": self.run_time_s,
            "calls_per_s": recent / span,
            "overhead_s": _percentiles(self._overhead_s),
            "idle_gap_s": _percentiles(self._idle_gap_s),
        }


def _percentiles(samples: deque[float]) -> dict[str, float] | None:
    if not samples:
        return None
    p50, p95, p99 = np.percentile(samples, (50, 95, 99))
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99), "samples": len(samples)}
