"""The record of a farm's jobs as reported by SLURM and the dispatcher; it starts no jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from farm.provision.batch.job_phases import DESERTED, JOBS, PENDING, SERVING, SHUT, JobPhase
from farm.provision.batch.policy import Job
from farm.provision.batch.slurm import ORDINARY_REASONS, JobRow
from farm.transitions import PhaseEvent

DRAINING_S = 2.0
"""A job counts as draining after its workers have offered no slots for this time; a shorter time
may be a connection problem."""

DESERTED_S = 30.0
"""A job counts as given up after its workers have been gone for this time, whatever SLURM reports:
after a node failure it reports RUNNING for some minutes."""

ON_GETS_NODES = JOBS.event("gets nodes")
ON_TAKES_CALLS = JOBS.event("workers take calls")
ON_TAKES_NONE = JOBS.event("workers take none")
ON_WORKERS_GONE = JOBS.event("workers gone")
ON_FOR_LONG = JOBS.event("for long")
ON_REQUEUED = JOBS.event("requeued")
ON_LET_GO = JOBS.event("let go")
ON_CANCELLED = JOBS.event("cancelled")
ON_ENDED = JOBS.event("ended")

FOR_LONG_S = {SHUT: DRAINING_S, DESERTED: DESERTED_S}

PAST_KEPT = 2000
"""Ended jobs to remember: squeue still lists them for a while, and they must not be adopted."""


@dataclass(slots=True)
class FarmJob:
    """One job. state, reason: as SLURM reports them; empty until squeue has listed the job.

    since: when it was submitted; phase_since: when it entered its phase, or was cancelled again.
    workers: number of workers that are connected now.
    """

    id: str
    kind: str
    since: float
    phase: JobPhase = PENDING
    phase_since: float = 0.0
    state: str = ""
    reason: str = ""
    nodes: str = ""
    workers: int = 0
    in_flight: int = 0
    done: int = 0
    idle_since: float | None = None
    ends_in_s: float | None = None

    def goes_on(self, event: PhaseEvent[JobPhase], now: float) -> None:
        """Enter the phase that `event` leads to."""
        self.phase = event[self.phase]
        self.phase_since = now

    @property
    def is_pending(self) -> bool:
        """Whether the job has no nodes. A job with workers has nodes, whatever squeue last said."""
        return not self.workers and JobRow(self.id, self.state or "PENDING", "").is_pending

    @property
    def is_leaving(self) -> bool:
        """Whether the job can no longer be counted on."""
        return not self.phase.counts or self.state == "COMPLETING"

    @property
    def shown(self) -> str:
        """The phase in one word, for people."""
        deserted = self.phase.shown == "deserted"
        return "leaving" if self.is_leaving and not deserted else self.phase.shown


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to a job.

    event: adopted, waits, started, requeued, ended; gone: SLURM no longer knows the job;
    deserted: its last worker left or was lost. before: the job's phase before the change.
    """

    event: Literal["adopted", "waits", "started", "deserted", "requeued", "ended", "gone"]
    job: FarmJob
    text: str
    before: JobPhase


class Jobs:
    """All live jobs of the farm with this identity, by id, in the order of submission."""

    def __init__(self, identity: str) -> None:
        self.prefix = f"farm-{identity}-"
        self.live: dict[str, FarmJob] = {}
        self._past: dict[str, None] = {}

    def of(self, kind: str) -> list[FarmJob]:
        """Return the live jobs of one kind."""
        return [job for job in self.live.values() if job.kind == kind]

    def submitted(self, job_id: str, kind: str, now: float) -> FarmJob:
        """Record a new job."""
        job = self.live[job_id] = FarmJob(job_id, kind, now, phase_since=now)
        return job

    def looked(self, rows: Sequence[JobRow], asked_at: float, now: float) -> list[Change]:
        """Process squeue's rows, requested at `asked_at`, and return the changes."""
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
                    self._remember(row.id)
                    continue
                job = self.submitted(row.id, row.name.removeprefix(self.prefix), now)
                changes.append(Change("adopted", job, f"it is alive: {row.in_words}", job.phase))
            changes += self._update(job, row, now)
        for job in list(self.live.values()):
            if job.id not in seen and job.since < asked_at:
                changes.append(Change("gone", job, "", job.phase))
                self._forget(job, now)
        return changes

    def _update(self, job: FarmJob, row: JobRow, now: float) -> list[Change]:
        phase = job.phase
        before, job.state, job.nodes = job.state, row.state, row.nodes
        reason, job.reason = job.reason, row.reason
        if row.has_ended:
            self._forget(job, now)
            return [Change("ended", job, row.in_words, phase)]
        if row.is_pending and before and not JobRow("", before, "").is_pending:
            if job.phase in ON_REQUEUED:  # it will start again
                job.goes_on(ON_REQUEUED, now)
            return [Change("requeued", job, row.in_words, phase)]
        if not row.is_pending and job.phase is PENDING:
            job.goes_on(ON_GETS_NODES, now)
        if row.is_pending and row.reason != reason and row.reason not in ORDINARY_REASONS:
            return [Change("waits", job, row.in_words, phase)]
        return []

    def _forget(self, job: FarmJob, now: float) -> None:
        job.goes_on(ON_ENDED, now)
        del self.live[job.id]
        self._remember(job.id)

    def _remember(self, job_id: str) -> None:
        self._past[job_id] = None
        if len(self._past) > PAST_KEPT:
            del self._past[next(iter(self._past))]

    def hear(self, workers: Iterable[Mapping[str, Any]], now: float) -> list[Change]:
        """Process the dispatcher's rows of workers: find which jobs serve and which are idle."""
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
                changes.append(Change("deserted", job, "", job.phase))
            job.done = done
            job.workers = len(rows)
            ends = [row["ends_in_s"] for row in rows if row["ends_in_s"] is not None]
            job.ends_in_s = min(ends, default=None)
            before = job.phase
            _follow(job, rows, now)
            if job.phase.has_served and not before.has_served:
                where = sorted({row["host"] for row in rows})
                changes.append(Change("started", job, f"serves on {', '.join(where)}", before))
        return changes

    def for_policy(self, kind: str, now: float) -> list[Job]:
        """Return the jobs of a kind that can be counted on, in the form that its policy needs."""
        return [
            Job(
                job.id,
                _in_policy(job),
                0.0 if job.idle_since is None else now - job.idle_since,
                job.ends_in_s,
            )
            for job in self.of(kind)
            if not job.is_leaving
        ]


def _follow(job: FarmJob, rows: Sequence[Mapping[str, Any]], now: float) -> None:
    """Move a job to the phase that its workers' rows indicate."""
    if not rows:
        event = ON_WORKERS_GONE
    else:
        event = ON_TAKES_CALLS if any(row["slots"] for row in rows) else ON_TAKES_NONE
    if job.phase in event:
        job.goes_on(event, now)
    if now - job.phase_since >= FOR_LONG_S.get(job.phase, math.inf):
        job.goes_on(ON_FOR_LONG, now)


def _in_policy(job: FarmJob) -> Literal["pending", "starting", "serving"]:
    if job.phase is PENDING:
        return "pending"
    return "serving" if job.phase in (SERVING, SHUT) else "starting"
