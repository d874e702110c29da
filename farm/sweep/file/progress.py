"""Progress of a sweep: counts, rate, expected end, run times, nodes; and the status file."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.storage.files import beside, read_own, replacing
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import NO_WORKER, PointStatus
from farm.sweep.file.point_columns import PointColumns

VERSION = 1
RATE_OVER_S = 120.0
"""Length of the window for the rate: in a sweep of days, the first hour predicts little."""
RUNS_PER_WINDOW = 3
"""Length of the window for the work done per second, in longest runs, if that is longer."""
ENOUGH_TO_EXPECT = 5
"""Number of finished points from which on the expected cost is reported."""
RECENT = 10_000
"""Most finished points used for percentiles, which are computed every second."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a sweep at one moment; times in seconds, None where not yet known.

    finished: done, failed, cancelled and timeout together. expected_work_s: expected time in the
    model for all points, from the guess of their run times or the mean of the finished ones.
    basis: where that guess comes from, in words; empty without one. nodes: rows of host, done,
    failed, mean_run_s; those with most failures first. message: a notice for the user, such as a
    full disk.
    """

    state: str
    title: str
    total: int
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    timeout: int = 0
    pending: int = 0
    in_flight: int = 0
    rate_per_s: float | None = None
    eta_s: float | None = None
    elapsed_s: float = 0.0
    work_s: float = 0.0
    expected_work_s: float | None = None
    run_mean_s: float | None = None
    run_p50_s: float | None = None
    run_p95_s: float | None = None
    nodes: tuple[dict[str, Any], ...] = ()
    message: str = ""
    time: float = 0.0
    host: str = ""
    pid: int = 0
    version: int = VERSION
    run_id: str = ""
    basis: str = ""

    @property
    def finished(self) -> int:
        """Number of points with an outcome."""
        return self.done + self.unsuccessful

    @property
    def unsuccessful(self) -> int:
        """Number of points that failed, were cancelled or timed out."""
        return self.failed + self.cancelled + self.timeout

    def to_json(self) -> str:
        """Return JSON text, which `read_status` reads back."""
        return json.dumps(asdict(self))


class Meter:
    """Measures the progress of a running sweep. Times are monotonic seconds; began: its start."""

    def __init__(self, known: PointColumns, plan: Plan, began: float) -> None:
        self._known = known
        self._plan = plan
        self._began = began
        self._samples = deque([(began, float(np.count_nonzero(known.status)))])
        self._work = deque([(began, self._work_s())])
        self._expected_s: Array | None = None
        self._basis = ""

    def expect(self, expected_s: Array | None, basis: str) -> None:
        """Use these run times for the points that are not done; None: expect the mean.

        basis: where they come from, in words.
        """
        self._expected_s, self._basis = expected_s, basis

    def elapsed_s(self, at: float) -> float:
        """Return the seconds since the sweep's start."""
        return at - self._began

    def now(self, state: str, at: float, *, in_flight: int = 0, message: str = "") -> Progress:
        """Return the progress at the current time `at`."""
        known = self._known
        counts = np.bincount(known.status, minlength=len(PointStatus)).tolist()
        rate = _growth(self._samples, at, float(np.count_nonzero(known.status)), RATE_OVER_S)
        runs = known.t_run[np.isfinite(known.t_run) & (known.status == PointStatus.DONE)]
        mean = float(np.mean(runs)) if len(runs) else None
        p50, p95 = _percentiles(runs)
        total = len(known.status)
        pending = counts[PointStatus.PENDING]
        work_s, parallel = self._work_s(), self._parallel(runs, at)
        eta_s = pending / rate if rate and pending else (0.0 if not pending else None)
        expected_work_s = None
        if mean is not None and len(runs) >= min(ENOUGH_TO_EXPECT, total):
            expected_work_s = mean * total
        if self._expected_s is not None and pending:
            left = self._expected_s[known.status == PointStatus.PENDING]
            expected_work_s = work_s + float(np.sum(left))
            if parallel is not None:
                # Runs cannot be divided: the longest one must still run.
                eta_s = max(float(np.sum(left)) / parallel, float(np.max(left)))
        return Progress(
            state=state,
            title=self._plan.title,
            total=total,
            **{status.name.lower(): counts[status] for status in PointStatus},
            in_flight=in_flight,
            rate_per_s=rate,
            eta_s=eta_s,
            elapsed_s=self.elapsed_s(at),
            work_s=work_s,
            expected_work_s=expected_work_s,
            run_mean_s=mean,
            run_p50_s=p50,
            run_p95_s=p95,
            nodes=tuple(nodes(known)),
            message=message,
            time=time.time(),
            host=platform.node(),
            pid=os.getpid(),
            run_id=self._plan.run_id,
            basis=self._basis,
        )

    def _work_s(self) -> float:
        return float(np.nansum(self._known.t_run))

    def _parallel(self, runs: Array, now: float) -> float | None:
        """Return how many points ran at once of late; None if none has finished.

        runs: the known run times. The window is longer than a run, of which work is known at its
        end.
        """
        work = self._work_s()
        if work == self._work[-1][1] and len(self._work) > 1:
            self._work.pop()
        window = max(RATE_OVER_S, RUNS_PER_WINDOW * float(np.max(runs, initial=0.0)))
        return _growth(self._work, now, work, window)


def _growth(
    samples: deque[tuple[float, float]], now: float, value: float, window_s: float
) -> float | None:
    """Add a sample, and return the growth per second over the window; None if there is none."""
    samples.append((now, value))
    while len(samples) > 2 and samples[1][0] < now - window_s:
        samples.popleft()
    then, before = samples[0]
    return (value - before) / (now - then) if value > before and now > then else None


def nodes(known: PointColumns) -> list[dict[str, Any]]:
    """Return points and mean run time per host, sorted by most failures, then slowest first."""
    if not known.workers:
        return []
    hosts = sorted({worker.host for worker in known.workers})
    host_of = np.array([hosts.index(worker.host) for worker in known.workers])
    ran = known.worker != NO_WORKER
    host = host_of[known.worker[ran]]
    status, t_run = known.status[ran], known.t_run[ran]
    done = np.bincount(host[status == PointStatus.DONE], minlength=len(hosts))
    failed = np.bincount(host[status > PointStatus.DONE], minlength=len(hosts))
    timed = np.isfinite(t_run) & (status == PointStatus.DONE)
    work = np.bincount(host[timed], weights=t_run[timed], minlength=len(hosts))
    rows = [
        {
            "host": name,
            "done": int(done[k]),
            "failed": int(failed[k]),
            "mean_run_s": float(work[k] / done[k]) if done[k] else None,
        }
        for k, name in enumerate(hosts)
    ]
    return sorted(rows, key=lambda row: (-row["failed"], -(row["mean_run_s"] or 0.0)))


def status_of(path: Path) -> Path:
    """Return the path of a sweep's status file."""
    return beside(path, ".status.json")


def write_status(path: Path, progress: Progress) -> None:
    """Replace the status file atomically; if the disk is full, the old one stays."""
    with contextlib.suppress(OSError), replacing(path, durable=False) as new:
        new.write_text(progress.to_json(), encoding="utf-8")


def read_status(path: Path) -> Progress | None:
    """Read a status file; None if it does not exist. Raises SweepError if it is damaged."""
    try:
        data = json.loads(read_own(path))
        return Progress(**data | {"nodes": tuple(data["nodes"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SweepError(f"{path} cannot be read: {error!r}") from error


def _percentiles(runs: Any) -> tuple[float | None, float | None]:
    if not len(runs):
        return None, None
    p50, p95 = np.percentile(runs[-RECENT:], [50, 95])
    return float(p50), float(p95)
