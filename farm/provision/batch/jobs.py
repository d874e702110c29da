"""The record of a farm's jobs, as reported by the batch system and the dispatcher; starts no jobs.

A list of jobs may be old or lack some, so it only brings good news: a job is there, has nodes. Bad
news, that a job has ended, is back in the queue or is not listed, is a reason to ask about that job
(`questions`), and only the answer counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from farm.provision.batch.absence import SILENCE_S, Evidence
from farm.provision.batch.farm_job import Change, FarmJob
from farm.provision.batch.job_phases import (
    DESERTED,
    JOBS,
    PENDING,
    SERVING,
    SHUT,
    UNSURE,
    JobPhase,
)
from farm.provision.batch.policy import Job
from farm.provision.batch.system import JobRow, Listing, Stand
from farm.transitions import PhaseEvent

DRAINING_S = 2.0
"""A job counts as draining after its workers have offered no slots for this time; a shorter time
may be a connection problem."""

DESERTED_S = 30.0
"""A job counts as given up after its workers have been gone for this time, whatever the batch
system reports: after a node failure SLURM reports RUNNING for some minutes."""

ON_GETS_ID = JOBS.event("gets id")
ON_GETS_NO_ID = JOBS.event("gets no id")
ON_REFUSED = JOBS.event("refused")
ON_NEVER_EXISTED = JOBS.event("never existed")
ON_GETS_NODES = JOBS.event("gets nodes")
ON_TAKES_CALLS = JOBS.event("workers take calls")
ON_TAKES_NONE = JOBS.event("workers take none")
ON_WORKERS_GONE = JOBS.event("workers gone")
ON_FOR_LONG = JOBS.event("for long")
ON_REQUEUED = JOBS.event("requeued")
ON_LET_GO = JOBS.event("let go")
ON_CANCELLED = JOBS.event("cancelled")
ON_ABSENT = JOBS.event("absent")
ON_ENDED = JOBS.event("ended")

FOR_LONG_S = {SHUT: DRAINING_S, DESERTED: DESERTED_S}

PAST_KEPT = 2000
"""Ended jobs to remember: lists still have them for a while, and they must not be adopted."""

ID_SEPARATOR = "+"
"""Ends the kind in a job's name; no kind has it in its name. A mark of the submission follows."""


@dataclass(slots=True)
class _Strangers:
    """Ids of jobs that are not recorded as live, although something says that they live."""

    ask_at: dict[str, float] = field(default_factory=dict)
    settled: dict[str, float] = field(default_factory=dict)

    def suspect(self, job_id: str, now: float) -> None:
        if now - self.settled.get(job_id, -math.inf) > SILENCE_S:
            self.ask_at.setdefault(job_id, now)

    def settle(self, job_id: str, now: float) -> None:
        self.ask_at.pop(job_id, None)
        self.settled[job_id] = now
        _keep_latest(self.settled)


class Jobs:
    """All live jobs of the farm with this identity.

    live: those with an id, by id in the order of submission. submissions: those without one, by
    name; each counts as a job until it is known that none came of it.
    """

    def __init__(self, identity: str) -> None:
        self.prefix = f"farm-{identity}-"
        self.live: dict[str, FarmJob] = {}
        self.submissions: dict[str, FarmJob] = {}
        self._past: dict[str, None] = {}
        self._strangers = _Strangers()

    def __iter__(self) -> Iterator[FarmJob]:
        """All jobs, with submissions that may become jobs."""
        return iter([*self.live.values(), *self.submissions.values()])

    def of(self, kind: str) -> list[FarmJob]:
        """Return the jobs and submissions of one kind."""
        return [job for job in self if job.kind == kind]

    # Submission

    def name(self, kind: str, mark: str) -> str:
        """Return the name of a new job of a kind; mark: unique for each submission."""
        return f"{self.prefix}{kind}{ID_SEPARATOR}{mark}"

    def submits(self, name: str, kind: str, now: float) -> FarmJob:
        """Record a submission that begins."""
        evidence = Evidence(math.inf, now)  # a list cannot have it yet
        job = FarmJob("", kind, name, evidence, JOBS.begins["submits"], now)
        self.submissions[name] = job
        return job

    def submitted(self, job: FarmJob, job_id: str, now: float) -> None:
        """Record the id of a job, unless a list or a worker was quicker."""
        if job_id in self.live:  # it was quicker, or sbatch printed a foreign number
            self.in_doubt(job, now)
        elif not job.phase.has_id:
            self._identify(job, job_id, now, now)

    def in_doubt(self, job: FarmJob, now: float) -> None:
        """A submission has ended without an id, so the job may exist."""
        if not job.phase.has_id:
            job.goes_on(ON_GETS_NO_ID, now)
            job.evidence.told(now)

    def refused(self, job: FarmJob, now: float) -> None:
        """A submission has ended without a job."""
        if not job.phase.has_id:
            job.goes_on(ON_REFUSED, now)
            del self.submissions[job.name]

    def never_listed(self) -> list[FarmJob]:
        """Return submissions that ended without an id and that lists have lacked for long enough.

        If all jobs with their names have been cancelled, call `never_existed`.
        """
        return [
            job
            for job in self.submissions.values()
            if job.phase is UNSURE and job.evidence.is_missing
        ]

    def never_existed(self, job: FarmJob, now: float) -> None:
        """Forget a submission of which no job came."""
        if job.phase is UNSURE:
            job.goes_on(ON_NEVER_EXISTED, now)
            del self.submissions[job.name]

    def remember(self, job_id: str, name: str, kind: str, now: float) -> None:
        """Record a job of the farm before, which may have ended; job_id: empty if unknown."""
        if not job_id:
            self.submits(name, kind, now)
            self.in_doubt(self.submissions[name], now)
            return
        evidence = Evidence(now, now, suspected=True)
        phase = JOBS.begins["remembered"]
        self.live[job_id] = FarmJob(job_id, kind, name, evidence, phase, now, is_remembered=True)

    def _identify(self, job: FarmJob, job_id: str, told_at: float, now: float) -> None:
        del self.submissions[job.name]
        self._past.pop(job_id, None)
        job.has_id(job_id, told_at)
        self.live[job_id] = job
        job.goes_on(ON_GETS_ID, now)

    def _found(self, row: JobRow, asked_at: float, now: float) -> Change:
        """Record a job of this farm that is not among the live ones."""
        job = self.submissions.get(row.name)
        before = JOBS.begins["found"]
        if job is not None:
            before = job.phase
            self._identify(job, row.id, asked_at, now)
        else:
            kind = row.name.removeprefix(self.prefix).partition(ID_SEPARATOR)[0]
            job = FarmJob(row.id, kind, row.name, Evidence(asked_at, now), before, now)
            self.live[row.id] = job
            self._past.pop(row.id, None)
        return Change("adopted", job, f"it is there: {row.in_words}", before)

    def _has_wrong_id(self, row: JobRow) -> FarmJob | None:
        """Return the job with the name of a row and an id that the system has never reported.

        Its id was another number in the output of the submission.
        """
        alike = (j for j in self.live.values() if j.name == row.name and j.stand is None)
        return next(alike, None)

    # The batch system's words

    def looked(self, listing: Listing, asked_at: float, now: float) -> list[Change]:
        """Process a list of jobs, requested at `asked_at`, and return the changes."""
        changes: list[Change] = []
        seen = set()
        for row in listing.rows:
            if row.id not in self.live:
                changes += self._met(row, asked_at, now)
            job = self.live.get(row.id)
            if job is None:
                continue
            seen.add(job)
            if asked_at < job.evidence.told_at:
                continue  # something newer is known
            back = row.stand is Stand.PENDING and job.stand not in (None, Stand.PENDING)
            if row.stand is Stand.ENDED or back:
                job.evidence.contradicted()
            else:
                job.evidence.listed(asked_at)
                changes += self._update(job, row, now)
        if not listing.problem:
            for job in self:
                if job not in seen:
                    job.evidence.missing(asked_at)
        return changes + self._absent(now)

    def _met(self, row: JobRow, asked_at: float, now: float) -> list[Change]:
        """Process the row of a job that is not recorded as live."""
        if row.name in self.submissions:
            return [self._found(row, asked_at, now)]
        if not row.name.startswith(self.prefix):
            return []
        if (job := self._has_wrong_id(row)) is not None:
            del self.live[job.id]
            job.has_id(row.id, job.evidence.told_at)
            self.live[job.id] = job
        elif row.stand is Stand.ENDED:
            self._put_past(row.id)
        elif row.id in self._past:  # an old list, or it was requeued
            self._strangers.suspect(row.id, now)
        else:
            return [self._found(row, asked_at, now)]
        return []

    def questions(self, now: float) -> list[str]:
        """Return the ids to ask the batch system about; pass its answers to `answered`."""
        return [
            *(
                job.id
                for job in self.live.values()
                if job.evidence.calls_for_question(now, ending_since=job.ending_since)
            ),
            *(job_id for job_id, at in self._strangers.ask_at.items() if now >= at),
        ]

    def answered(
        self, job_id: str, row: JobRow | None, asked_at: float, now: float
    ) -> list[Change]:
        """Process the answer about one job, requested at `asked_at`; None: no such job is known."""
        changes: list[Change] = []
        if job_id not in self.live:
            self._strangers.settle(job_id, now)
            if row is not None and (
                row.name in self.submissions
                or (row.name.startswith(self.prefix) and row.stand is not Stand.ENDED)
            ):
                changes = [self._found(row, asked_at, now)]
        job = self.live.get(job_id)
        if job is None:
            return []
        if row is None:
            job.evidence.unknown(asked_at, now)
            return self._absent(now)
        if row.stand is Stand.ENDED:
            job.listed(row)
            return [*changes, self._forget(job, ON_ENDED, now, row)]
        if asked_at < job.evidence.told_at:
            job.evidence.asked(now)  # something newer is known
            return []
        job.evidence.exists(asked_at)
        return changes + self._update(job, row, now)

    def unanswered(self, job_id: str, now: float) -> None:
        """The question about a job has brought no answer."""
        job = self.live.get(job_id)
        if job is not None:
            job.evidence.asked(now)
        elif job_id in self._strangers.ask_at:
            self._strangers.ask_at[job_id] = now + SILENCE_S

    def _update(self, job: FarmJob, row: JobRow, now: float) -> list[Change]:
        phase = job.phase
        before, reason = job.stand, job.row.reason
        changes = []
        if job.listed(row):
            changes.append(Change("adopted", job, f"it is alive: {row.in_words}", phase))
        is_pending = row.stand is Stand.PENDING
        if is_pending and before is not Stand.PENDING and job.phase is not PENDING:
            if job.phase in ON_REQUEUED:  # it will start again
                job.goes_on(ON_REQUEUED, now)
            if before is not None:
                changes.append(Change("requeued", job, row.in_words, phase))
        if not is_pending and job.phase is PENDING:
            job.goes_on(ON_GETS_NODES, now)
        if row.needs_action and row.reason != reason:
            changes.append(Change("waits", job, row.in_words, phase))
        return changes

    def _absent(self, now: float) -> list[Change]:
        return [
            self._forget(job, ON_ABSENT, now)
            for job in list(self.live.values())
            if job.evidence.is_absent and not job.workers and job.phase in ON_ABSENT
        ]

    def _forget(
        self, job: FarmJob, event: PhaseEvent[JobPhase], now: float, row: JobRow | None = None
    ) -> Change:
        before = job.phase
        job.goes_on(event, now)
        del self.live[job.id]
        self._put_past(job.id)
        if row is None:
            return Change("absent", job, "the batch system no longer knows it", before)
        return Change("ended", job, row.in_words, before, row)

    def _put_past(self, job_id: str) -> None:
        self._past[job_id] = None
        _keep_latest(self._past)

    # The dispatcher's words

    def hear(self, workers: Iterable[Mapping[str, Any]], now: float) -> list[Change]:
        """Process the dispatcher's rows of workers: find which jobs serve and which are idle."""
        by_job: dict[str, list[Mapping[str, Any]]] = {}
        for row in workers:
            if row["job"] in self.live:
                by_job.setdefault(row["job"], []).append(row)
            elif row["job"] and row.get("kind"):
                self._strangers.suspect(row["job"], now)
        changes = []
        for job in self.live.values():
            rows = by_job.get(job.id, [])
            if job.workers and not rows:
                changes.append(Change("deserted", job, "", job.phase))
            job.heard(rows, now)
            before = job.phase
            _follow(job, rows, now)
            if job.phase.has_served and not before.has_served:
                where = sorted({row["host"] for row in rows})
                changes.append(Change("started", job, f"serves on {', '.join(where)}", before))
        return changes

    def to_drain(self, workers: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the workers that take calls although their jobs were let go."""
        return [
            row["name"]
            for row in workers
            if row["slots"]
            and (job := self.live.get(row["job"])) is not None
            and job.phase.was_let_go
        ]

    def for_policy(self, kind: str, now: float) -> list[Job]:
        """Return the jobs of a kind that can be counted on, in the form that its policy needs."""
        return [
            Job(
                job.key,
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
    """The policy's word for a phase; it may have pending jobs cancelled, so these have an id."""
    if job.phase is PENDING:
        return "pending"
    return "serving" if job.phase in (SERVING, SHUT) else "starting"


def _keep_latest(table: dict[str, Any]) -> None:
    if len(table) > PAST_KEPT:
        del table[next(iter(table))]
