"""How jobs are released: drained if they have started, cancelled otherwise or when they linger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

from farm.provision.batch.errands import Errands
from farm.provision.batch.farm_job import FarmJob
from farm.provision.batch.job_phases import CANCELLED
from farm.provision.batch.jobs import Jobs
from farm.provision.batch.releases import DRAIN_S, Releases
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems.slurm import Slurm
from tests.support.virtual_time import run_virtually


class System(Slurm):
    """A batch system that records the commands, which fail with `error` if it is set."""

    def __init__(self) -> None:
        self.done: list[tuple[str, list[str]]] = []
        self.error: BatchError | None = None

    async def drain(self, jobs: Sequence[str]) -> None:
        self.done.append(("drain", list(jobs)))

    async def cancel(self, jobs: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(("cancel", list(jobs)))


class Scene:
    def __init__(self) -> None:
        self.system = System()
        self.jobs = Jobs("ab")
        self.events: list[tuple[str, str]] = []
        self.looks = 0
        self.releases = Releases(
            self.system,
            self.jobs,
            Errands(),
            cast(Any, SimpleNamespace(soon=self._soon)),
            cast(Any, SimpleNamespace(note=self._note)),
        )

    def _note(self, event: str, subject: str, text: str) -> None:
        self.events.append((event, text.removeprefix("small: ")))

    def _soon(self) -> None:
        self.looks += 1

    def add(self, job_id: str, stand: Stand) -> FarmJob:
        name = f"farm-ab-small+{job_id}"
        now = asyncio.get_running_loop().time()
        self.jobs.remember(job_id, name, "small", now)
        self.jobs.looked(Listing((JobRow(job_id, stand, stand.name, name),)), now, now)
        return self.jobs.live[job_id]


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtually(scene())


def test_started_jobs_are_drained_and_pending_ones_cancelled_once() -> None:
    async def scene() -> None:
        s = Scene()
        jobs = [s.add("1", Stand.RUNNING), s.add("2", Stand.PENDING)]
        for _ in range(2):
            s.releases.let_go(jobs, "not needed now")
            await asyncio.sleep(1.0)
        assert s.system.done == [("drain", ["1"]), ("cancel", ["2"])]
        assert sorted(s.events) == [("cancelled", "not needed now"), ("let go", "not needed now")]
        assert s.looks == 2, "each command makes the next list due"

    play(scene)


def test_a_job_that_does_not_end_in_time_is_cancelled() -> None:
    async def scene() -> None:
        s = Scene()
        job = s.add("1", Stand.RUNNING)
        s.releases.let_go([job], "not needed now")
        await asyncio.sleep(DRAIN_S - 1.0)
        s.releases.end_those_that_linger()
        assert s.system.done == [("drain", ["1"])]
        await asyncio.sleep(2.0)
        s.releases.end_those_that_linger()
        await asyncio.sleep(1.0)
        assert s.system.done == [("drain", ["1"]), ("cancel", ["1"])]
        assert job.phase is CANCELLED
        assert job.cancelled_at is not None

    play(scene)


def test_a_command_that_fails_is_an_event_and_leaves_the_job_to_the_next() -> None:
    async def scene() -> None:
        s = Scene()
        s.system.error = BatchError("the controller is away")
        job = s.add("1", Stand.PENDING)
        s.releases.let_go([job], "the farm stops")
        await asyncio.sleep(1.0)
        assert ("cancel fails", "the controller is away") in s.events
        assert job.cancelled_at is None

    play(scene)
