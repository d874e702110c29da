"""The state of every point of a sweep, in memory: everything except the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from farm.call import Array
from farm.sweep.file.journal import NO_WORKER, AnsweringWorker, PointStatus, Row

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

MOST_ATTEMPTS = 255


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
        return PointColumns.of(columns)

    @staticmethod
    def of(columns: Mapping[str, Array]) -> PointColumns:
        """Return a state with these columns, and with neither workers nor failures."""
        return PointColumns(
            status=columns["status"],
            attempts=columns["attempts"],
            copied=columns["copied"],
            reused=columns["reused"],
            t_start=columns["t_start"],
            t_run=columns["t_run"],
            t_queue=columns["t_queue"],
            t_total=columns["t_total"],
            worker=columns["worker"],
        )

    def add(self, content: Row | AnsweringWorker) -> None:
        """Add a worker, or an outcome, which replaces earlier outcomes of its point."""
        if isinstance(content, AnsweringWorker):
            self.workers.append(content)
            return
        for name in COLUMNS:
            getattr(self, name)[content.point] = field_of(content, name)
        if content.values is None:
            self.failures.append(content)

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


def field_of(row: Row, column: str) -> float:
    """Return the value of an outcome for a column."""
    if column == "attempts":
        return min(row.attempt, MOST_ATTEMPTS)
    value: float = getattr(row, column)
    return value
