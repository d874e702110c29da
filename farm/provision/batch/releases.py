"""Releases jobs that are not needed: drains those that have started, cancels the others."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Literal

from farm.dispatcher.dispatcher import Dispatcher
from farm.provision.batch.errands import Errands
from farm.provision.batch.farm_job import FarmJob
from farm.provision.batch.job_phases import PENDING
from farm.provision.batch.jobs import ON_CANCELLED, ON_LET_GO, Jobs
from farm.provision.batch.standing import tell
from farm.provision.batch.system import BatchError, BatchSystem, Stand
from farm.provision.batch.watch import JobWatch

DRAIN_S = 60.0
"""A job that was asked to drain and has no calls in flight is cancelled after this time, unless the
batch system no longer knows it."""

CANCEL_AGAIN_S = 10.0
"""Time between two commands to cancel a job when the farm stops."""


class Releases:
    """Asks a batch system to end jobs of a farm; its commands run as errands."""

    def __init__(
        self,
        system: BatchSystem,
        jobs: Jobs,
        errands: Errands,
        watch: JobWatch,
        dispatcher: Dispatcher,
    ) -> None:
        self._system = system
        self._jobs = jobs
        self._errands = errands
        self._watch = watch
        self._dispatcher = dispatcher
        self._clock = asyncio.get_running_loop().time

    def let_go(self, jobs: Sequence[FarmJob], why: str) -> None:
        """Release jobs: drain those that have started, cancel the pending ones."""
        now = self._clock()
        jobs = [job for job in jobs if not job.phase.was_let_go]
        pending = [job for job in jobs if job.phase is PENDING]
        begun = [job for job in jobs if job.phase is not PENDING]
        for job in pending:
            job.goes_on(ON_CANCELLED, now)
            tell(self._dispatcher, "cancelled", job, why)
        for job in begun:
            job.goes_on(ON_LET_GO, now)
            tell(self._dispatcher, "let go", job, why)
        self.command("drain", begun)
        self.command("cancel", pending)

    def end_those_that_linger(self) -> None:
        """Cancel released jobs that have not ended, for example as the signal came too early."""
        now = self._clock()
        late = [
            job
            for job in self._jobs.live.values()
            if job.phase.was_let_go
            and not job.in_flight
            and now > job.phase_since + DRAIN_S
            and job.stand is not Stand.COMPLETING
            and not job.evidence.seems_gone
        ]
        for job in late:
            job.goes_on(ON_CANCELLED, now)
            tell(self._dispatcher, "cancelled", job, f"it did not end within {DRAIN_S:.0f} s")
        self.command("cancel", late)

    def command(self, verb: Literal["drain", "cancel"], jobs: Sequence[FarmJob]) -> None:
        """Ask the batch system to cancel jobs or to signal them to drain."""
        if jobs:
            ids = [job.id for job in jobs]
            key = f"{verb} {' '.join(ids)}"
            for job in jobs:
                job.asked_to_end(self._clock() + CANCEL_AGAIN_S)
            self._errands.begin(key, functools.partial(self._run_command, verb, jobs))

    async def _run_command(self, verb: Literal["drain", "cancel"], jobs: Sequence[FarmJob]) -> None:
        ids = [job.id for job in jobs]
        self._watch.soon()
        try:
            await (self._system.cancel(ids) if verb == "cancel" else self._system.drain(ids))
        except BatchError as error:
            self._dispatcher.note("cancel fails", ", ".join(f"job {i}" for i in ids), str(error))
            return
        if verb == "cancel":
            for job in jobs:
                job.cancel_accepted(self._clock())
