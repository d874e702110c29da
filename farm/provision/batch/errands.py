"""What the autoscaler asks of the batch system, in the background: lists, questions, releases.

A command that hangs delays only the next command of its sort, not the loop of the autoscaler.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal

from farm.dispatcher.dispatcher import Dispatcher
from farm.provision.batch.farm_job import Change, FarmJob
from farm.provision.batch.job_phases import PENDING
from farm.provision.batch.jobs import ON_CANCELLED, ON_LET_GO, Jobs
from farm.provision.batch.standing import tell
from farm.provision.batch.system import Adapter, BatchError, Stand

log = logging.getLogger(__name__)

FIRST_LOOK_S = 1.0
LONGEST_LOOK_S = 30.0
LOOK_GROWS = 1.5
"""Growth of the interval between two lists of jobs, which is short after a change. The interval
between questions about single jobs grows in the same way while they get no answer."""

DRAIN_S = 60.0
"""A job that was asked to drain and has no calls in flight is cancelled after this time, unless the
batch system no longer knows it."""

CANCEL_AGAIN_S = 10.0
"""Time between two commands to cancel a job when the farm stops."""


class Errands:
    """Background tasks, at most one for each key; a failing one is logged."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Start a task unless one with this key is running; return whether it was started."""
        if key in self._tasks:
            return False

        async def run() -> None:
            try:
                await work()
            except Exception:
                log.exception("%s failed", key)
            finally:
                del self._tasks[key]

        self._tasks[key] = asyncio.get_running_loop().create_task(run(), name=key)
        return True

    def is_running(self, beginning: str) -> bool:
        """Whether any task runs whose key begins with this word."""
        return any(key.startswith(beginning) for key in self._tasks)

    def drop(self, key: str) -> None:
        """Cancel the task with this key, if one is running."""
        if (task := self._tasks.get(key)) is not None:
            task.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks and wait for their ends."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()


class JobWatch:
    """Keeps `jobs` up to date, and passes what changes on to `changed`.

    is_known: whether all jobs of this farm are known, from its own file or from a whole list.
    problem: why the last list is missing or incomplete; empty if it was whole.
    """

    def __init__(
        self,
        adapter: Adapter,
        jobs: Jobs,
        errands: Errands,
        *,
        is_known: bool,
        dispatcher: Dispatcher,
        changed: Callable[[Iterable[Change]], None],
    ) -> None:
        self.is_known = is_known
        self.problem = ""
        self._adapter = adapter
        self._jobs = jobs
        self._errands = errands
        self._changed = changed
        self._dispatcher = dispatcher
        self._clock = asyncio.get_running_loop().time
        self._look_at = self._clock()
        self._look_every_s = FIRST_LOOK_S
        self._ask_at = self._look_at
        self._ask_every_s = FIRST_LOOK_S

    def soon(self) -> None:
        """Ask for a list soon, as something has changed."""
        self._look_every_s = FIRST_LOOK_S
        self._look_at = min(self._look_at, self._clock() + FIRST_LOOK_S)

    def step(self) -> None:
        """Begin to ask what is due."""
        now = self._clock()
        if now >= self._look_at and (any(self._jobs) or not self.is_known):
            self._errands.begin("look", self._look)
        if now >= self._ask_at and self._jobs.questions(now):
            self._errands.begin("ask", self._ask)

    async def _look(self) -> None:
        asked_at = self._clock()
        problem = ""
        changes = []
        try:
            listing = await self._adapter.jobs()
        except BatchError as error:
            problem = str(error)
        else:
            problem = listing.problem
            changes = self._jobs.looked(listing, asked_at, self._clock())
            self.is_known = self.is_known or not problem
        finally:
            self._look_every_s = min(LOOK_GROWS * self._look_every_s, LONGEST_LOOK_S)
            self._look_at = self._clock() + self._look_every_s
        if problem and not self.problem:
            self._dispatcher.note(f"no word from {self._adapter.system.title}", "", problem)
        self.problem = problem
        self._report(changes)

    async def _ask(self) -> None:
        for job_id in self._jobs.questions(self._clock()):
            asked_at = self._clock()
            try:
                row = await self._adapter.job(job_id)
            except BatchError:
                now = self._clock()
                self._jobs.unanswered(job_id, now)
                self._ask_every_s = min(LOOK_GROWS * self._ask_every_s, LONGEST_LOOK_S)
                self._ask_at = now + self._ask_every_s
                return
            self._ask_every_s = FIRST_LOOK_S
            self._report(self._jobs.answered(job_id, row, asked_at, self._clock()))

    def _report(self, changes: list[Change]) -> None:
        self._changed(changes)
        if changes:
            self.soon()


class Releases:
    """Asks a batch system to end jobs of a farm; its commands run as errands."""

    def __init__(
        self,
        adapter: Adapter,
        jobs: Jobs,
        errands: Errands,
        watch: JobWatch,
        dispatcher: Dispatcher,
    ) -> None:
        self._adapter = adapter
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
            await (self._adapter.cancel(ids) if verb == "cancel" else self._adapter.drain(ids))
        except BatchError as error:
            self._dispatcher.note("cancel fails", ", ".join(f"job {i}" for i in ids), str(error))
            return
        if verb == "cancel":
            for job in jobs:
                job.cancel_accepted(self._clock())
