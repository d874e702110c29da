"""How the kinds of an elastic farm stand: their state, and rows and words about it for people."""

from __future__ import annotations

from typing import Any

from farm.provision.batch.farm_job import FarmJob
from farm.provision.batch.jobs import Jobs
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.policy import Bounds, KindPolicy


class KindState:
    """One kind of workers with its policy and its state.

    models: the names of its models, None while they are unknown. describing: whether a process of
    this machine is loading them.
    refusal: the batch system's message for the last submission; failure: why the last job failed.
    """

    def __init__(self, settings: WorkerKind) -> None:
        self.settings = settings
        self.policy = KindPolicy(
            Bounds(
                min_jobs=settings.min_jobs,
                max_jobs=settings.max_jobs,
                workers=settings.workers_per_job,
                backlog_s=settings.backlog_s,
                grow_after_s=settings.grow_after_s,
                idle_timeout_s=settings.idle_timeout_s,
                time_limit_s=settings.time_limit_s,
            )
        )
        self.models: frozenset[str] | None = None
        self.describing = False
        self.wanted = 0
        self.refusal = ""
        self.failure = ""
        self.too_long = ""


def how_it_stands(kind: KindState, jobs: Jobs, problem: str) -> str:
    """Return what a kind without workers waits for; problem: of the batch system."""
    name, models = kind.settings.name, ", ".join(kind.settings.models)
    mine = jobs.of(name)
    if mine:
        how = ", ".join(
            f"job {job.key} {job.state or 'submitted'} {job.reason}".strip() for job in mine[:3]
        )
    elif kind.describing:
        how = "its models are being described"
    else:
        how = kind.refusal or kind.failure or problem or "no job yet"
    return f"waiting for workers of kind {name} ({models}): {how}"


def kind_row(kind: KindState, jobs: Jobs, now: float) -> dict[str, Any]:
    """Return a kind and the numbers of its jobs as JSON data."""
    settings = kind.settings
    mine = jobs.of(settings.name)
    pause_s = max(0.0, kind.policy.paused_until - now)
    return {
        "name": settings.name,
        "models": sorted(kind.models or settings.models),
        "queue": settings.queue,
        "min_jobs": settings.min_jobs,
        "max_jobs": settings.max_jobs,
        "wanted": kind.wanted,
        "pending": sum(job.is_pending for job in mine),
        "running": sum(not job.is_pending for job in mine),
        "workers": sum(job.workers for job in mine),
        "next_try_in_s": pause_s or None,
        "problem": "; ".join(text for text in (kind.refusal, kind.failure, kind.too_long) if text),
    }


def job_row(job: FarmJob, now: float) -> dict[str, Any]:
    """Return a job as JSON data; a submission without an id has its name in place of the id."""
    return {
        "id": job.key,
        "kind": job.kind,
        "phase": job.shown,
        "state": job.state,
        "reason": job.reason,
        "nodes": job.nodes,
        "workers": job.workers,
        "idle_s": None if job.idle_since is None else now - job.idle_since,
        "ends_in_s": job.ends_in_s,
    }
