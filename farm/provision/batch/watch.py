"""Asks the batch system about a farm's jobs, in the background: all of them, and single ones.

A command that hangs delays only the next command of its sort, not the loop of the autoscaler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from farm.dispatcher.dispatcher import Dispatcher
from farm.provision.batch.errands import Errands
from farm.provision.batch.farm_job import Change
from farm.provision.batch.jobs import Jobs
from farm.provision.batch.system import BatchError, BatchSystem

FIRST_LOOK_S = 1.0
LONGEST_LOOK_S = 30.0
LOOK_GROWS = 1.5
"""Growth of the interval between two lists of jobs, which is short after a change. The interval
between questions about single jobs grows in the same way while they get no answer."""


class JobWatch:
    """Keeps `jobs` up to date, and passes what changes on to `changed`.

    is_known: whether all jobs of this farm are known, from its own file or from a whole list.
    problem: why the last list is missing or incomplete; empty if it was whole.
    """

    def __init__(
        self,
        system: BatchSystem,
        jobs: Jobs,
        errands: Errands,
        *,
        is_known: bool,
        dispatcher: Dispatcher,
        changed: Callable[[Iterable[Change]], None],
    ) -> None:
        self.is_known = is_known
        self.problem = ""
        self._system = system
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
            listing = await self._system.jobs()
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
            self._dispatcher.note(f"no word from {self._system.title}", "", problem)
        self.problem = problem
        self._report(changes)

    async def _ask(self) -> None:
        for job_id in self._jobs.questions(self._clock()):
            asked_at = self._clock()
            try:
                row = await self._system.job(job_id)
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
