"""Facts about each worker: its age, restarts, run times, and the memory and processors it uses."""

from __future__ import annotations

import math
import time
from typing import Any

from farm.call import Operation, Result, WorkerInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.events import Departure
from farm.monitoring.health import troubles
from farm.monitoring.run_times import RunTimeSketch
from farm.scheduler.actions import Outcome
from farm.scheduler.state import Task, WorkerId
from farm.wire.usage import Used

STALE_S = 20.0
"""Use that was reported longer ago is not shown: the worker cannot say what it uses now."""

STALE_IDLE_S = 150.0
"""The same for an idle worker, which reports less often (`use_reports.REPORT_IDLE_S`)."""

FEW, REFRESH_S = 100, 1.0
"""Of more than 100 workers the facts are computed once a second, however many ask for them."""


class _Facts:
    """What is known about one worker that is here."""

    __slots__ = ("joined_at", "restarts", "run_times", "told", "used", "used_at")

    def __init__(self, restarts: int, now: float) -> None:
        self.joined_at = now
        self.restarts = restarts
        self.run_times = RunTimeSketch()
        self.used = Used()
        self.used_at = now
        self.told: dict[str, Any] = {}  # the keys of its row, computed lately

    def compute(self, now: float, *, idle: bool) -> None:
        """Compute the keys of its row, without comparing it with others."""
        p50, p90, p99 = self.run_times.quantiles(0.5, 0.9, 0.99)
        used = self.used if now - self.used_at < (STALE_IDLE_S if idle else STALE_S) else Used()
        self.told = {
            "restarts": self.restarts,
            "run_times_s": {"p50": p50, "p90": p90, "p99": p99, "count": self.run_times.count},
            "memory_bytes": used.memory_bytes,
            "processor": used.processor,
            "trouble": [],
        }


class WorkerFacts:
    """Adds its facts to the rows of the workers in the dispatcher's snapshot."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._facts: dict[str, _Facts] = {}
        self._computed_at = -math.inf
        dispatcher.on_joined.append(self.joined)
        dispatcher.on_left.append(self.left)
        dispatcher.on_recorded.append(self.answered)
        dispatcher.on_used.append(self.reported)
        dispatcher.on_shown.append(self.shown)

    def joined(self, info: WorkerInfo, before: WorkerInfo | None) -> None:
        """Note a new worker; one that joins again is the same process."""
        if info.name not in self._facts:
            restarts = info.labels.get("restarts", "")
            count = int(restarts) if restarts.isascii() and restarts.isdecimal() else 0
            self._facts[info.name] = _Facts(count, time.monotonic())

    def left(self, info: WorkerInfo, departure: Departure) -> None:
        """Forget a worker."""
        self._facts.pop(info.name, None)

    def answered(self, task: Task, outcome: Outcome, now: float) -> None:
        """Note the time of a run; for a run of rows, that of one row."""
        if not isinstance(outcome, Result) or task.call.operation is Operation.DESCRIBE:
            return
        facts = self._facts.get(outcome.worker)
        if facts is None:  # the worker names a process of its own, as in a Dask cluster
            facts = self._facts.get(task.attempt.worker.id)
            if facts is None:
                return
        seconds = outcome.run_time_s
        if task.is_run:
            seconds /= max(1, outcome.rows_done(task.rows))
        facts.run_times.add(seconds)

    def reported(self, worker: WorkerId, used: Used) -> None:
        """Note what a worker uses."""
        facts = self._facts.get(worker)
        if facts is not None:
            facts.used, facts.used_at = used, time.monotonic()

    def shown(self, rows: list[dict[str, Any]], now: float) -> None:
        """Add the facts to rows of workers."""
        again = len(rows) <= FEW or now - self._computed_at >= REFRESH_S
        for row in rows:
            facts = self._facts.get(row["name"]) or _Facts(0, now)
            if again or not facts.told:
                facts.compute(now, idle=row["running"] is None)
            row["age_s"] = now - facts.joined_at
            row.update(facts.told)
        if again:
            self._computed_at = now
            for row, trouble in zip(rows, troubles(rows), strict=True):
                row["trouble"] = trouble
                if (known := self._facts.get(row["name"])) is not None:
                    known.told["trouble"] = trouble
