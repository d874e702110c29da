"""Counts of answers, and of worker-seconds, since a start and over the last while."""

from __future__ import annotations

import math
from collections import deque

BUCKETS = 12
"""Answers are counted in this many steps; rates and shares are over all of them."""

SHORTEST_SPAN_S = 1.0
"""Least time that a rate is over: one answer after a millisecond is not 1,000 calls/s."""


class Tally:
    """Counts answers in steps of `bucket_s` seconds.

    worker_s: worker-seconds of the answered calls. last_at: time of the last answer.
    """

    __slots__ = (
        "_until",
        "began_at",
        "bucket_s",
        "done",
        "failed",
        "last_at",
        "recent",
        "worker_s",
    )

    def __init__(self, now: float, bucket_s: float) -> None:
        self.began_at = now
        self.bucket_s = bucket_s
        self.last_at: float | None = None
        self.done = self.failed = 0
        self.worker_s = 0.0
        # Lists of the number of the step, answers, worker-seconds.
        self.recent: deque[list[float]] = deque(maxlen=BUCKETS)
        self._until = -math.inf  # end of the last step

    def answered(self, done: int, failed: int, now: float, worker_s: float = 0.0) -> None:
        """Count answers that came now. Of a run, its last part counts to the recent seconds."""
        self.done += done
        self.failed += failed
        self.last_at = now
        if now >= self._until:
            step = int(now // self.bucket_s)
            self.recent.append([step, 0, 0.0])
            self._until = (step + 1) * self.bucket_s
        last = self.recent[-1]
        last[1] += done + failed
        if worker_s:
            self.worker_s += worker_s
            last[2] += min(worker_s, BUCKETS * self.bucket_s)

    def calls_per_s(self, now: float) -> float:
        """Return the rate of answers over the last steps, or since the start."""
        return self.lately(now)[0]

    def lately(self, now: float) -> tuple[float, float]:
        """Return the rate of answers, and the worker-seconds, of the last steps."""
        first = int(now // self.bucket_s) - BUCKETS + 1
        count = seconds = 0.0
        for step, answers, worker_s in self.recent:
            if step >= first:
                count += answers
                seconds += worker_s
        if not count:
            return 0.0, seconds
        span_s = now - max(self.began_at, first * self.bucket_s)
        return count / max(SHORTEST_SPAN_S, span_s), seconds

    def add(self, other: Tally) -> None:
        """Add the counts of another tally, which is forgotten."""
        self.done += other.done
        self.failed += other.failed
        self.worker_s += other.worker_s
        self.last_at = max(self.last_at or 0.0, other.last_at or 0.0)
        steps: dict[float, list[float]] = {}
        for step, answers, seconds in (*self.recent, *other.recent):
            known = steps.setdefault(step, [step, 0, 0.0])
            known[1] += answers
            known[2] += seconds
        self.recent = deque((steps[step] for step in sorted(steps)), maxlen=BUCKETS)
        self._until = max(self._until, other._until)
