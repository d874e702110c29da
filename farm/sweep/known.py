"""What is known of every point of a sweep, in memory: all but the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from farm.call import Array
from farm.sweep.journal import NO_WORKER, Row, Status, Worker

COLUMNS: dict[str, tuple[str, float]] = {
    "status": ("u1", Status.PENDING),
    "attempts": ("u1", 0),
    "t_start": ("f8", np.nan),
    "t_run": ("f4", np.nan),
    "t_queue": ("f4", np.nan),
    "t_total": ("f4", np.nan),
    "worker": ("u4", NO_WORKER),
}
"""The columns of one number per point: dtype, and the value where nothing is known."""

MOST_ATTEMPTS = 255


@dataclass(eq=False)
class Known:
    """The small columns of every point, the workers seen, and every failure there was.

    The columns are those of `journal.Row`, and have the same names in the file.
    """

    status: Array
    attempts: Array
    t_start: Array
    t_run: Array
    t_queue: Array
    t_total: Array
    worker: Array
    workers: list[Worker] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)

    @staticmethod
    def nothing(size: int) -> Known:
        """All points pending."""
        columns = {name: np.full(size, fill, dtype) for name, (dtype, fill) in COLUMNS.items()}
        return Known.of(columns)

    @staticmethod
    def of(columns: Mapping[str, Array]) -> Known:
        """With these columns, and neither workers nor failures."""
        return Known(
            status=columns["status"],
            attempts=columns["attempts"],
            t_start=columns["t_start"],
            t_run=columns["t_run"],
            t_queue=columns["t_queue"],
            t_total=columns["t_total"],
            worker=columns["worker"],
        )

    def add(self, content: Row | Worker) -> None:
        """Take in an outcome, of which the last one of a point counts, or a worker."""
        if isinstance(content, Worker):
            self.workers.append(content)
            return
        for name in COLUMNS:
            getattr(self, name)[content.point] = field_of(content, name)
        if content.values is None:
            self.failures.append(content)

    def grow(self, size: int) -> None:
        """Make room for more points, all pending."""
        longer = Known.nothing(size)
        for name in COLUMNS:
            old, column = getattr(self, name), getattr(longer, name)
            column[: len(old)] = old
            setattr(self, name, column)

    def count(self, status: Status) -> int:
        """How many points have this status."""
        return int(np.count_nonzero(self.status == status))

    @property
    def ended(self) -> Array:
        """For each worker the end of its last run, Unix time; NaN for one without."""
        ended = np.full(len(self.workers), np.nan)
        ran = self.worker != NO_WORKER
        np.fmax.at(ended, self.worker[ran], self.t_start[ran] + self.t_run[ran])
        return ended


def field_of(row: Row, column: str) -> float:
    """The number of an outcome that belongs in a column."""
    if column == "attempts":
        return min(row.attempt, MOST_ATTEMPTS)
    value: float = getattr(row, column)
    return value
