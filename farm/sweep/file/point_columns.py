"""The state of every point of a sweep, in memory: everything except the outputs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.journal import (
    COLUMNS,
    HEAD,
    HEAD_NAMES,
    MARKS,
    NO_WORKER,
    OUTCOME,
    PLAIN,
    POINT_FIELDS,
    AnsweringWorker,
    DoneRows,
    PointStatus,
    Row,
    content_of,
    head_of,
    read_runs,
)


class PointColumns:
    """The small columns of all points, the workers that answered, and every failure.

    columns: those of `POINT_FIELDS`, or some of them, by name; each is an attribute, too.
    """

    def __init__(self, columns: dict[str, Array]) -> None:
        self.columns = columns
        self.workers: list[AnsweringWorker] = []
        self.failures: list[Row] = []

    @staticmethod
    def nothing(size: int, names: Container[str] = COLUMNS) -> PointColumns:
        """Return the state of `size` pending points, of it the columns `names`."""
        fields = [field for field in POINT_FIELDS if field.name in names]
        return PointColumns({f.name: np.full(size, f.fill, f.dtype) for f in fields})

    def __getattr__(self, name: str) -> Array:
        if name not in COLUMNS:
            raise AttributeError(f"points have no column {name!r}")
        return self.columns[name]

    def add(self, content: Row | DoneRows | AnsweringWorker) -> None:
        """Add a worker, or outcomes, which replace earlier outcomes of their points."""
        if isinstance(content, AnsweringWorker):
            self.workers.append(content)
        elif isinstance(content, DoneRows):
            self.add_all(content.heads)
        else:
            self.add_all(head_of(content))
            if content.values is None:
                self.failures.append(content)

    def add_all(self, rows: Array) -> None:
        """Add outcomes of `HEAD` at once, in order; their failures are added elsewhere."""
        points, marked = rows["point"], rows["status"]
        derived: dict[str, Array] = {name: marked & bit > 0 for name, bit in MARKS.items()}
        derived["status"] = marked & PLAIN
        PointStatus(int(derived["status"].max(initial=0)))  # raises ValueError for an unknown one
        for name, column in self.columns.items():
            # Of equal indices the last one counts.
            column[points] = derived[name] if name in derived else rows[name]

    def heads(self, points: Array) -> Array:
        """Return what is known of these points, as `HEAD`."""
        heads = np.empty(len(points), HEAD)
        heads["point"] = points
        for name in HEAD_NAMES[1:]:
            heads[name] = self.columns[name][points]
        for name, bit in MARKS.items():
            heads["status"] |= bit * self.columns[name][points]
        return heads

    def grow(self, size: int) -> None:
        """Extend the columns to `size` points; the new ones are pending."""
        new = PointColumns.nothing(size - len(self.status), self.columns).columns
        self.columns = {n: np.concatenate([old, new[n]]) for n, old in self.columns.items()}

    def count(self, status: PointStatus) -> int:
        """Return the number of points with this status."""
        return int(np.count_nonzero(self.status == status))

    @property
    def last_failures(self) -> dict[int, Row]:
        """The last failure of each point that failed and was not done since."""
        return {r.point: r for r in self.failures if self.status[r.point] > PointStatus.DONE}

    @property
    def ran(self) -> Array:
        """Which points have a start and a run time."""
        ran: Array = np.isfinite(self.t_start) & np.isfinite(self.t_run)
        return ran

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


def read(journal: Path, names: Container[str] = COLUMNS) -> Journaled:
    """Read a journal, even one that is being written or truncated. Raises SweepError, OSError.

    names: the columns of the points' state to read.
    """
    plan: Plan | None = None
    known, where, width = PointColumns.nothing(0, names), np.zeros((2, 0), dtype=np.int64), 0
    for run in read_runs(journal):
        if run.kind != OUTCOME:
            for content in map(content_of, run.frames()):
                if isinstance(content, Plan):
                    plan, width = content, HEAD.itemsize + 8 * content.row_size
                    known.grow(plan.size)
                    where = np.pad(where, ((0, 0), (0, plan.size - where.shape[1])))
                elif isinstance(content, AnsweringWorker):
                    known.workers.append(content)
            continue
        count, size = run.payloads.shape
        rows = np.ascontiguousarray(run.payloads[:, : HEAD.itemsize]).view(HEAD)[:, 0]
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
    ran = known.ran
    work = float(np.sum(known.t_run[ran], dtype=np.float64))
    ends = known.t_start[ran] + known.t_run[ran]
    makespan = float(np.max(ends) - np.min(known.t_start[ran])) if len(ends) else np.nan
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
        values = np.percentile(numbers if len(numbers) else [np.nan], PERCENTILES)
        summary |= {f"{name}_p{p}_s": v for p, v in zip(PERCENTILES, values.tolist(), strict=True)}
    return summary


def overheads(known: PointColumns) -> Array:
    """Return the seconds of each finished point spent neither in the model nor in the queue."""
    rest = known.t_total - known.t_queue - known.t_run
    finite: Array = rest[np.isfinite(rest)]
    return np.maximum(finite, 0.0)


def idle_gaps(known: PointColumns) -> Array:
    """Return the seconds between consecutive runs of each worker."""
    ran = np.flatnonzero((known.worker != NO_WORKER) & known.ran)
    order = ran[np.lexsort((known.t_start[ran], known.worker[ran]))]
    worker, start = known.worker[order], known.t_start[order]
    gaps = start[1:] - (start[:-1] + known.t_run[order][:-1])
    same: Array = gaps[worker[1:] == worker[:-1]]
    return np.maximum(same, 0.0)
