"""Counters and histograms of a farm since it started, for Prometheus: see `farm/server/metrics.py`.

They only grow, so that whoever reads them now and then computes rates and quantiles of the time in
between. `dispatcher/call_statistics.py` has those of the last moments.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from farm.call import Operation, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.ended import ANSWERED, EndedCall
from farm.dispatcher.events import Departure
from farm.errors import LossCause, TimeLimitExceeded, WorkerLost

TIMES_S = tuple(float(f"{digit}e{power}") for power in range(-4, 5) for digit in (1, 2, 5))
"""Bounds of run times and waits, in seconds: 0.1 ms to 14 hours, three in each decade."""

SHORT_TIMES_S = tuple(bound for bound in TIMES_S if bound <= 1.0)
"""Bounds of times that farm itself takes, in seconds."""


@dataclass(slots=True)
class Histogram:
    """How many times lie between which bounds and above the last, and their sum.

    A time equal to a bound lies below it, as in Prometheus.
    """

    bounds: Sequence[float] = TIMES_S
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, times: Iterable[float], count: int = 1) -> None:
        """Record events by the seconds that each took. count: how many took each of them."""
        bounds, counts, at, until_s = self.bounds, self.counts, 0, -math.inf
        for seconds in sorted(times):
            if seconds > until_s:
                at = bisect_left(bounds, seconds)
                until_s = bounds[at] if at < len(bounds) else math.inf
            counts[at] += count
            self.sum += seconds * count


DONE = "done"
"""The outcome of a call that did not fail; others are the names of their errors' classes."""


@dataclass(slots=True)
class _OfQueue:
    """The counts of one model and operation."""

    ends: dict[str, int] = field(default_factory=lambda: {DONE: 0})
    retries: int = 0
    run_times_s: Histogram = field(default_factory=Histogram)
    waits_s: Histogram = field(default_factory=Histogram)
    overheads_s: Histogram = field(default_factory=partial(Histogram, SHORT_TIMES_S))

    def add(self, records: Sequence[EndedCall]) -> None:
        """Count answers to tasks."""
        for ended in records:
            error = ended.error
            if ended.losses:
                was_last = isinstance(error, WorkerLost | TimeLimitExceeded) and not ended.ran
                self.retries += ended.losses - was_last
            if error is not None:
                name = type(error).__name__
                self.ends[name] = self.ends.get(name, 0) + 1
            if not ended.ran:
                continue
            self.ends[DONE] += ended.done if ended.is_run else error is None
            if ended.is_run:
                self.run_times_s.add([ended.row_s], ended.done)
                self.waits_s.add([ended.queue_s], ended.done or 1)
        single = [ended for ended in records if ended.ran and not ended.is_run]
        self.run_times_s.add([ended.row_s for ended in single])
        self.waits_s.add([ended.queue_s for ended in single])
        alone = [e for e in records if e.ran and not (e.waited or e.copied)]
        overheads_s = [e.at - e.began - e.run_s for e in alone]
        self.overheads_s.add([each if each > 0.0 else 0.0 for each in overheads_s])


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
        self._of: defaultdict[tuple[str, Operation], _OfQueue] = defaultdict(_OfQueue)
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.ended.add_window(self)
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

    def fold(self, records: Sequence[EndedCall]) -> None:
        """Take the records since the last time."""
        of_queue = defaultdict(list)
        for ended in records:
            if ended.ending is ANSWERED:
                of_queue[ended.model, ended.operation].append(ended)
        for queue, some in of_queue.items():
            self._of[queue].add(some)

    def snapshot(self) -> dict[str, Any]:
        """Return all counts as JSON data."""
        return {
            "joins": self._joins,
            "drained": self._drained,
            "losses": dict(self._losses),
            "queues": [
                {"model": model, "operation": operation.value, **asdict(of)}
                for (model, operation), of in self._of.items()
            ],
        }
