"""One job of a farm, with what is known of it and of its workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from farm.provision.batch.absence import Evidence
from farm.provision.batch.job_phases import (
    CANCELLED,
    DESERTED,
    GIVEN_UP,
    LEAVING,
    STOPPED,
    JobPhase,
)
from farm.provision.batch.system import JobRow, Stand
from farm.transitions import PhaseEvent

UNLISTED = JobRow("", Stand.PENDING, "", "")
"""In place of the row of a job that the batch system has not reported."""


@dataclass(slots=True, eq=False)
class FarmJob:
    """One job. row: as the batch system has last reported it.

    id: empty until the batch system has told it. name: unique for each submission, so that a job
    without an id can be found. phase_since: when it entered its phase, or was cancelled again.
    workers: number of workers that are connected now. evidence: for and against its existence.
    is_remembered: it was submitted by the farm before, and the batch system has not confirmed it.
    cancelled_at: when the batch system accepted to cancel it; cancel_at: do not ask before.
    """

    id: str
    kind: str
    name: str
    evidence: Evidence
    phase: JobPhase
    phase_since: float
    row: JobRow = UNLISTED
    workers: int = 0
    in_flight: int = 0
    done: int = 0
    idle_since: float | None = None
    ends_in_s: float | None = None
    is_remembered: bool = False
    cancelled_at: float | None = None
    cancel_at: float = -math.inf

    def goes_on(self, event: PhaseEvent[JobPhase], now: float) -> None:
        """Enter the phase that `event` leads to."""
        self.phase = event[self.phase]
        self.phase_since = now

    def has_id(self, job_id: str, told_at: float) -> None:
        """Note the id that the batch system has told at `told_at`."""
        self.id = job_id
        self.evidence.told(told_at)

    def listed(self, row: JobRow) -> bool:
        """Note what the batch system says of it. Return whether that is its first word of it."""
        self.row = row
        is_news, self.is_remembered = self.is_remembered, False
        return is_news

    def heard(self, rows: Sequence[Mapping[str, Any]], now: float) -> None:
        """Note what the dispatcher says of its workers."""
        if rows:
            self.evidence.heard()
        done = sum(row["done"] + row["failed"] for row in rows)
        self.in_flight = sum(row["in_flight"] for row in rows)
        kept = any(row.get("sequences") for row in rows)  # they wait for their next requests
        if not rows or self.in_flight or kept or done != self.done or len(rows) != self.workers:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
        self.done, self.workers = done, len(rows)
        ends = [row["ends_in_s"] for row in rows if row["ends_in_s"] is not None]
        self.ends_in_s = min(ends, default=None)

    def asked_to_end(self, again_at: float) -> None:
        """The batch system is asked to end it, and not before `again_at` again."""
        self.cancel_at = again_at

    def cancel_accepted(self, now: float) -> float:
        """Note that the batch system accepted to cancel it. Return when it did so first."""
        if self.cancelled_at is None:
            self.cancelled_at = now
        return self.cancelled_at

    @property
    def stand(self) -> Stand | None:
        """Where the batch system has it; None: it has not reported it."""
        return None if self.row is UNLISTED else self.row.stand

    @property
    def key(self) -> str:
        """Its id, or its name as long as it has none."""
        return self.id or self.name

    @property
    def is_pending(self) -> bool:
        """Whether the job has no nodes. A job with workers has nodes, whatever was last listed."""
        return not self.workers and self.stand in (None, Stand.PENDING)

    @property
    def is_leaving(self) -> bool:
        """Whether the job can no longer be counted on."""
        return not self.phase.counts or self.stand is Stand.COMPLETING

    @property
    def is_dying(self) -> bool:
        """Whether it is leaving its nodes for good: a job that completes may be requeued, unless it
        was cancelled."""
        return self.cancelled_at is not None and self.stand is Stand.COMPLETING

    @property
    def ending_since(self) -> float | None:
        """Since when the job should be ending: it has no worker and was let go or deserted."""
        ending = self.phase in (DESERTED, GIVEN_UP, STOPPED, LEAVING, CANCELLED)
        return self.phase_since if ending and not self.workers else None

    @property
    def shown(self) -> str:
        """The phase in one word, for people."""
        deserted = self.phase.shown == "deserted"
        return "leaving" if self.is_leaving and not deserted else self.phase.shown


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a job. before: the job's phase before the change.

    event: adopted, waits, started, requeued, ended; absent: the batch system no longer knows the
    job; deserted: its last worker left or was lost. row: how an ended job was described.
    """

    event: Literal["adopted", "waits", "started", "deserted", "requeued", "ended", "absent"]
    job: FarmJob
    text: str
    before: JobPhase
    row: JobRow | None = None
