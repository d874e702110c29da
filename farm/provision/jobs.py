"""The jobs of one farm as SLURM and the dispatcher tell of them; a record, which starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from farm.provision.policy import Job
from farm.provision.slurm import ORDINARY_REASONS, JobRow

DRAINING_S = 2.0
"""A job none of whose workers has taken anything for so long drains; one that cannot be reached for
a moment takes nothing either."""

DESERTED_S = 30.0
"""A job whose workers have been gone for so long is of no use, whatever SLURM says of it: of a node
that fails it says RUNNING for some minutes yet."""

PAST_KEPT = 2000
"""Ended jobs that are remembered, so that squeue's memory of them does not bring them back."""


@dataclass(slots=True)
class FarmJob:
    """One job. state, reason: SLURM's words; empty until squeue has told of it.

    workers: those that are joined now; served: some have joined at some time. shut_since: since
    when none takes calls, or all are gone; useless: that was too long ago. let_go_at: when it was
    asked to end, None as long as it is wanted; cancelled: and then it was cancelled.
    """

    id: str
    kind: str
    since: float
    state: str = ""
    reason: str = ""
    nodes: str = ""
    workers: int = 0
    served: bool = False
    useless: bool = False
    shut_since: float | None = None
    in_flight: int = 0
    done: int = 0
    idle_since: float | None = None
    ends_in_s: float | None = None
    let_go_at: float | None = None
    cancelled: bool = False

    @property
    def phase(self) -> Literal["pending", "starting", "serving"]:
        """Where it is on its way. Workers that have joined count, whatever squeue said last."""
        if self.workers:
            return "serving"
        return "pending" if JobRow(self.id, self.state or "PENDING", "").is_pending else "starting"

    @property
    def is_leaving(self) -> bool:
        """Whether it can be counted on no more."""
        return self.let_go_at is not None or self.useless or self.state == "COMPLETING"

    @property
    def is_deserted(self) -> bool:
        """Whether the workers that it had are gone."""
        return self.served and not self.workers


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a job.

    event: adopted, waits, started, requeued, ended; gone: SLURM does not know it any more;
    deserted: its last worker has left or was lost.
    """

    event: Literal["adopted", "waits", "started", "deserted", "requeued", "ended", "gone"]
    job: FarmJob
    text: str


class Jobs:
    """All live jobs of the farm with this identity, by their ids, in the order of submission."""

    def __init__(self, identity: str) -> None:
        self.prefix = f"farm-{identity}-"
        self.live: dict[str, FarmJob] = {}
        self._past: dict[str, None] = {}

    def of(self, kind: str) -> list[FarmJob]:
        """The live jobs of one kind."""
        return [job for job in self.live.values() if job.kind == kind]

    def submitted(self, job_id: str, kind: str, now: float) -> FarmJob:
        """Take note of a new job."""
        job = self.live[job_id] = FarmJob(job_id, kind, now)
        return job

    def looked(self, rows: Sequence[JobRow], asked_at: float, now: float) -> list[Change]:
        """Take in what squeue told when it was asked at `asked_at`; what has changed by that."""
        changes: list[Change] = []
        seen = set()
        for row in rows:
            ours = row.id in self.live or row.name.startswith(self.prefix)
            if not ours or row.id in self._past:
                continue
            seen.add(row.id)
            job = self.live.get(row.id)
            if job is None:
                if row.has_ended:
                    self._forget(row.id)
                    continue
                job = self.submitted(row.id, row.name.removeprefix(self.prefix), now)
                changes.append(Change("adopted", job, f"it lives: {row.in_words}"))
            changes += self._update(job, row)
        for job in list(self.live.values()):
            if job.id not in seen and job.since < asked_at:
                self._forget(job.id)
                changes.append(Change("gone", job, ""))
        return changes

    def _update(self, job: FarmJob, row: JobRow) -> list[Change]:
        before, job.state, job.nodes = job.state, row.state, row.nodes
        reason, job.reason = job.reason, row.reason
        if row.has_ended:
            self._forget(job.id)
            return [Change("ended", job, row.in_words)]
        if row.is_pending and before and not JobRow("", before, "").is_pending:
            job.served = False  # it starts anew
            return [Change("requeued", job, row.in_words)]
        if row.is_pending and row.reason != reason and row.reason not in ORDINARY_REASONS:
            return [Change("waits", job, row.in_words)]
        return []

    def _forget(self, job_id: str) -> None:
        self.live.pop(job_id, None)
        self._past[job_id] = None
        if len(self._past) > PAST_KEPT:
            del self._past[next(iter(self._past))]

    def hear(self, workers: Iterable[Mapping[str, Any]], now: float) -> list[Change]:
        """Take in the dispatcher's rows of workers: which jobs serve, and which are idle."""
        by_job: dict[str, list[Mapping[str, Any]]] = {}
        for row in workers:
            if row["job"] in self.live:
                by_job.setdefault(row["job"], []).append(row)
        changes = []
        for job in self.live.values():
            rows = by_job.get(job.id, [])
            done = sum(row["done"] for row in rows)
            job.in_flight = sum(row["in_flight"] for row in rows)
            if not rows or job.in_flight or done != job.done or len(rows) != job.workers:
                job.idle_since = None
            elif job.idle_since is None:
                job.idle_since = now
            if job.workers and not rows:
                changes.append(Change("deserted", job, ""))
            job.done = done
            job.workers = len(rows)
            if any(row["slots"] for row in rows) or not (rows or job.served):
                job.shut_since = None
                job.useless = False
            else:
                job.shut_since = now if job.shut_since is None else job.shut_since
                shut_s = now - job.shut_since
                # Once it drains it stays of no use when its workers are gone.
                job.useless |= shut_s >= (DRAINING_S if rows else DESERTED_S)
            ends = [row["ends_in_s"] for row in rows if row["ends_in_s"] is not None]
            job.ends_in_s = min(ends, default=None)
            if rows and not job.served:
                job.served = True
                where = sorted({row["host"] for row in rows})
                changes.append(Change("started", job, f"serves on {', '.join(where)}"))
        return changes

    def for_policy(self, kind: str, now: float) -> list[Job]:
        """The jobs of a kind that can be counted on, as its policy wants them."""
        return [
            Job(
                job.id,
                job.phase,
                0.0 if job.idle_since is None else now - job.idle_since,
                job.ends_in_s,
            )
            for job in self.of(kind)
            if not job.is_leaving
        ]
