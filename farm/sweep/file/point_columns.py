"""The state of every point of a sweep, in memory: everything except the outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import (
    COPIED,
    NO_WORKER,
    OUTCOME,
    PLAIN,
    REUSED,
    ROW,
    ROW_FIELDS,
    AnsweringWorker,
    DoneRows,
    PointStatus,
    Row,
    content_of,
    head_of,
    read_runs,
)

COLUMNS: dict[str, tuple[str, float]] = {
    "status": ("u1", PointStatus.PENDING),
    "attempts": ("u1", 0),
    "copied": ("u1", 0),
    "reused": ("u1", 0),
    "t_start": ("f8", np.nan),
    "t_run": ("f4", np.nan),
    "t_queue": ("f4", np.nan),
    "t_total": ("f4", np.nan),
    "worker": ("u4", NO_WORKER),
}
"""The columns with one number per point: dtype and fill value for unknown entries."""


@dataclass(eq=False)
class PointColumns:
    """The small columns of all points, the workers that answered, and every failure.

    The columns are fields of `journal.Row` and have the same names in the file.
    """

    status: Array
    attempts: Array
    copied: Array
    reused: Array
    t_start: Array
    t_run: Array
    t_queue: Array
    t_total: Array
    worker: Array
    workers: list[AnsweringWorker] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)

    @staticmethod
    def nothing(size: int) -> PointColumns:
        """Return the state of `size` pending points."""
        columns = {name: np.full(size, fill, dtype) for name, (dtype, fill) in COLUMNS.items()}
        return PointColumns(**columns)  # type: ignore[arg-type]  # the others have defaults

    def add(self, content: Row | DoneRows | AnsweringWorker) -> None:
        """Add a worker, or outcomes, which replace earlier outcomes of their points."""
        if isinstance(content, AnsweringWorker):
            self.workers.append(content)
        elif isinstance(content, DoneRows):
            self.add_all(content.heads)
        else:
            self.add_all(np.frombuffer(head_of(content), ROW_FIELDS))
            if content.values is None:
                self.failures.append(content)

    def add_all(self, rows: Array) -> None:
        """Add outcomes of `ROW_FIELDS` at once, in order; their failures are added elsewhere."""
        points, marked = rows["point"], rows["status"]
        status = marked & PLAIN
        PointStatus(int(status.max(initial=0)))  # raises ValueError for an unknown one
        derived = {"status": status, "copied": marked & COPIED > 0, "reused": marked & REUSED > 0}
        for name in COLUMNS:
            # Of equal indices the last one counts.
            getattr(self, name)[points] = derived[name] if name in derived else rows[name]

    def heads(self, points: Array) -> Array:
        """Return what is known of these points, as `ROW_FIELDS`."""
        heads = np.empty(len(points), ROW_FIELDS)
        heads["point"] = points
        for name in ("status", "attempts", "worker", "t_start", "t_run", "t_queue", "t_total"):
            heads[name] = getattr(self, name)[points]
        heads["status"] |= COPIED * self.copied[points] | REUSED * self.reused[points]
        return heads

    def grow(self, size: int) -> None:
        """Extend the columns to `size` points; the new ones are pending."""
        longer = PointColumns.nothing(size)
        for name in COLUMNS:
            old, column = getattr(self, name), getattr(longer, name)
            column[: len(old)] = old
            setattr(self, name, column)

    def count(self, status: PointStatus) -> int:
        """Return the number of points with this status."""
        return int(np.count_nonzero(self.status == status))

    @property
    def ended(self) -> Array:
        """End of each worker's last run, Unix time; NaN for a worker without one."""
        ended = np.full(len(self.workers), np.nan)
        ran = self.worker != NO_WORKER
        np.fmax.at(ended, self.worker[ran], self.t_start[ran] + self.t_run[ran])
        return ended


@dataclass(frozen=True, slots=True, eq=False)
class Journaled:
    """The content of a journal except the points' outputs.

    plan: its last plan; known: the state of all points; sequence: number of the last record;
    end: byte at which that record ends. records, ends: the same of the record with the outputs of
    each point; 0 without outputs.
    """

    plan: Plan
    known: PointColumns
    sequence: int
    end: int
    records: Array
    ends: Array


def read(journal: Path) -> Journaled:
    """Read a journal, even one that is being written or truncated. Raises SweepError, OSError."""
    plan: Plan | None = None
    known, where, width = PointColumns.nothing(0), np.zeros((2, 0), dtype=np.int64), 0
    for run in read_runs(journal):
        if run.kind != OUTCOME:
            for content in map(content_of, run.frames()):
                if isinstance(content, Plan):
                    plan, width = content, ROW.size + 8 * content.row_size
                    known.grow(plan.size)
                    where = np.pad(where, ((0, 0), (0, plan.size - where.shape[1])))
                elif isinstance(content, AnsweringWorker):
                    known.workers.append(content)
            continue
        count, size = run.payloads.shape
        rows = np.ascontiguousarray(run.payloads[:, : ROW.size]).view(ROW_FIELDS)[:, 0]
        known.add_all(rows)
        done = rows["status"] & PLAIN == PointStatus.DONE
        numbers = run.sequence + np.arange(count)
        if size != width and done.any():
            number = numbers[done][0]
            raise SweepError(f"{journal}: record {number} is not of the journal's plan")
        where[:, rows["point"][done]] = numbers[done], run.ends()[done]
        if not done.all():
            failed = [f for f, is_done in zip(run.frames(), done, strict=True) if not is_done]
            known.failures.extend(r for r in map(content_of, failed) if isinstance(r, Row))
    assert plan is not None, "read_runs gives a plan first"
    return Journaled(plan, known, run.sequence + len(run.payloads) - 1, run.end, *where)


PERCENTILES = (50, 95, 99)


def summarise(known: PointColumns, wall_s: float) -> dict[str, Any]:
    """Return the attributes of /summary; times in seconds, NaN where unknown.

    wall_s: wall time of the last session. work_s: total time in the model; efficiency: work_s
    divided by the number of workers and the time between the first start and the last end.
    """
    ran = np.isfinite(known.t_start) & np.isfinite(known.t_run)
    work = float(np.sum(known.t_run[ran], dtype=np.float64))
    starts, ends = known.t_start[ran], known.t_start[ran] + known.t_run[ran]
    makespan = float(np.max(ends) - np.min(starts)) if len(starts) else float("nan")
    workers = len(np.unique(known.worker[known.worker != NO_WORKER]))
    summary: dict[str, Any] = {
        "points": len(known.status),
        **{status.name.lower(): known.count(status) for status in PointStatus},
        "wall_s": wall_s,
        "work_s": work,
        "makespan_s": makespan,
        "workers": workers,
        "efficiency": work / (workers * makespan) if workers and makespan > 0 else float("nan"),
    }
    for name, numbers in (("idle_gap", idle_gaps(known)), ("overhead", overheads(known))):
        for percent in PERCENTILES:
            value = float(np.percentile(numbers, percent)) if len(numbers) else float("nan")
            summary[f"{name}_p{percent}_s"] = value
    return summary


def overheads(known: PointColumns) -> Array:
    """Return the seconds of each finished point spent neither in the model nor in the queue."""
    rest = known.t_total - known.t_queue - known.t_run
    finite: Array = rest[np.isfinite(rest)]
    return np.maximum(finite, 0.0)


def idle_gaps(known: PointColumns) -> Array:
    """Return the seconds between consecutive runs of each worker."""
    ran = np.flatnonzero(
        (known.worker != NO_WORKER) & np.isfinite(known.t_start) & np.isfinite(known.t_run)
    )
    order = ran[np.lexsort((known.t_start[ran], known.worker[ran]))]
    worker, start = known.worker[order], known.t_start[order]
    gaps = start[1:] - (start[:-1] + known.t_run[order][:-1])
    same: Array = gaps[worker[1:] == worker[:-1]]
    return np.maximum(same, 0.0)
