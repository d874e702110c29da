"""How the kinds of an elastic farm stand: their state, and rows and words about it for people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from farm.call import ModelInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.provision.batch.farm_job import FarmJob
from farm.provision.batch.jobs import Jobs
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.policy import KindPolicy
from farm.provision.local.describing import describe


class KindState:
    """One kind of workers with its policy and its state.

    models: the names of its models, None while they are unknown.
    refusal: the batch system's message for the last submission; failure: why the last job failed.
    """

    def __init__(self, settings: WorkerKind) -> None:
        self.settings = settings
        self.policy = KindPolicy(settings)
        self.models: frozenset[str] | None = None
        self._describing: asyncio.Task[None] | None = None
        self.wanted = 0
        self.refusal = ""
        self.failure = ""
        self.too_long = ""

    @property
    def is_incomplete(self) -> bool:
        """Whether its models are not known yet, and its last job has not failed."""
        return self.models is None and not self.failure

    @property
    def describing(self) -> bool:
        """Whether a process of this machine is loading its models."""
        return self._describing is not None and not self._describing.done()

    def knows(self, models: Iterable[str]) -> None:
        """Note the names of its models."""
        self.models = frozenset(models)

    def serves(self, models: Iterable[str]) -> None:
        """Workers of a job have joined, with these models."""
        self.policy.worked()
        self.failure = ""
        self.knows(models)

    def submission(self, refusal: str) -> None:
        """Note the batch system's message for a submission; "": it was accepted."""
        self.refusal = refusal

    def job_failed(self, why: str) -> None:
        """Note why a job failed; the reason holds until one serves."""
        self.failure = why

    def decided(self, wanted: int, too_long: str) -> bool:
        """Note the jobs that are wanted, and why calls are too long for them.

        Return whether these are other calls than before.
        """
        is_news = bool(too_long) and too_long != self.too_long
        self.wanted, self.too_long = wanted, too_long
        return is_news

    def describe(self, dispatcher: Dispatcher) -> asyncio.Task[None]:
        """Begin to describe its models in a process of this machine, for calls before its jobs."""
        self._describing = asyncio.get_running_loop().create_task(self._describe(dispatcher))
        return self._describing

    def describe_no_more(self) -> None:
        """End the process that describes its models, if there is one."""
        if self._describing is not None:
            self._describing.cancel()

    async def _describe(self, dispatcher: Dispatcher) -> None:
        infos: Sequence[ModelInfo] = ()
        try:
            infos = await describe(self.settings.models)
        except Unavailable as error:
            text = f"{error}; the farm knows these models once a worker has joined"
            dispatcher.note("not described", self.settings.name, text)
        if self.models is None and infos:
            self.knows(info.name for info in infos)
            dispatcher.expect(infos)


def how_it_stands(kind: KindState, jobs: Jobs, problem: str) -> str:
    """Return what a kind without workers waits for; problem: of the batch system."""
    name, models = kind.settings.name, ", ".join(kind.settings.models)
    mine = jobs.of(name)
    if mine:
        how = ", ".join(
            f"job {job.key} {job.row.state or 'submitted'} {job.row.reason}".strip() + _when(job)
            for job in mine[:3]
        )
    elif kind.describing:
        how = "its models are being described"
    else:
        how = kind.refusal or kind.failure or problem or "no job yet"
    return f"waiting for workers of kind {name} ({models}): {how}"


def _when(job: FarmJob) -> str:
    """Return when the batch system expects a job to start, in words, if that is still to come."""
    at = job.row.starts_at
    if at is None or at <= time.time():
        return ""
    return f", expected to start {time.strftime('%Y-%m-%d %H:%M', time.localtime(at))}"


def kinds_with(model: str, kinds: Iterable[KindState]) -> list[KindState]:
    """Return those of the kinds that have a model; for "" those whose models are unknown."""
    if not model:
        return [kind for kind in kinds if kind.models is None]
    return [kind for kind in kinds if model in (kind.models or ())]


def starts_in(kinds: Iterable[KindState], jobs: Jobs) -> float | None:
    """Return in how many seconds the first job of these kinds is expected to have nodes.

    None if the batch system does not say, or if that time has passed.
    """
    now = time.time()
    times: list[float] = []
    for kind in kinds:
        for job in jobs.of(kind.settings.name):
            if not job.is_pending:
                return 0.0
            if job.row.starts_at is not None and job.row.starts_at > now:
                times.append(job.row.starts_at - now)
    return min(times, default=None)


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
        "state": job.row.state,
        "reason": job.row.reason,
        "nodes": job.row.nodes,
        "starts_at": job.row.starts_at,
        "workers": job.workers,
        "idle_s": None if job.idle_since is None else now - job.idle_since,
        "ends_in_s": job.ends_in_s,
    }


def tell(dispatcher: Dispatcher, event: str, job: FarmJob, text: str) -> None:
    """Add a line about a job to the farm's events."""
    dispatcher.note(event, f"job {job.key}", f"{job.kind}: {text}" if text else job.kind)
