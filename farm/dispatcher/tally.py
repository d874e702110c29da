"""Counts of answers, and of worker-seconds, since a start and over the last while."""

from __future__ import annotations

from collections import deque

BUCKETS = 12
"""Answers are counted in this many steps; rates and shares are over all of them."""

SHORTEST_SPAN_S = 1.0
"""Least time that a rate is over: one answer after a millisecond is not 1,000 calls/s."""


class Tally:
    """Counts answers in steps of `bucket_s` seconds.

    worker_s: worker-seconds of the answered calls. last_at: time of the last answer.
    """

    __slots__ = ("began_at", "bucket_s", "done", "failed", "last_at", "recent", "worker_s")

    def __init__(self, now: float, bucket_s: float) -> None:
        self.began_at = now
        self.bucket_s = bucket_s
        self.last_at: float | None = None
        self.done = self.failed = 0
        self.worker_s = 0.0
        # Number of the step, answers, worker-seconds.
        self.recent: deque[tuple[int, int, float]] = deque(maxlen=BUCKETS)

    def answered(self, done: int, failed: int, now: float, worker_s: float = 0.0) -> None:
        """Count answers that came now. Of a run, its last part counts to the recent seconds."""
        self.done += done
        self.failed += failed
        self.worker_s += worker_s
        self.last_at = now
        worker_s = min(worker_s, BUCKETS * self.bucket_s)
        recent, step = self.recent, int(now // self.bucket_s)
        if recent and recent[-1][0] == step:
            _, answers, seconds = recent.pop()
            recent.append((step, answers + done + failed, seconds + worker_s))
        else:
            recent.append((step, done + failed, worker_s))

    def calls_per_s(self, now: float) -> float:
        """Return the rate of answers over the last steps, or since the start."""
        first = self._first(now)
        count = sum(answers for step, answers, _ in self.recent if step >= first)
        span_s = now - max(self.began_at, first * self.bucket_s)
        return count / max(SHORTEST_SPAN_S, span_s)

    def recent_s(self, now: float) -> float:
        """Return the worker-seconds of the calls answered in the last steps."""
        first = self._first(now)
        return sum(seconds for step, _, seconds in self.recent if step >= first)

    def _first(self, now: float) -> int:
        return int(now // self.bucket_s) - BUCKETS + 1

    def add(self, other: Tally) -> None:
        """Add the counts of another tally, which is forgotten."""
        self.done += other.done
        self.failed += other.failed
        self.worker_s += other.worker_s
        self.last_at = max(self.last_at or 0.0, other.last_at or 0.0)
        steps: dict[int, tuple[int, float]] = {}
        for step, answers, seconds in (*self.recent, *other.recent):
            known = steps.get(step, (0, 0.0))
            steps[step] = known[0] + answers, known[1] + seconds
        self.recent = deque(((step, *steps[step]) for step in sorted(steps)), maxlen=BUCKETS)
