"""When the batch system is asked what, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from farm.provision.batch.absence import ASK_AGAIN_S
from farm.provision.batch.errands import Errands
from farm.provision.batch.farm_job import Change
from farm.provision.batch.jobs import Jobs
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems.slurm import Slurm
from farm.provision.batch.watch import FIRST_LOOK_S, LONGEST_LOOK_S, JobWatch
from tests.support.virtual_time import run_virtually


class System(Slurm):
    """A batch system that answers with its fields; `never` in `takes_s` hangs."""

    def __init__(self) -> None:
        self.listing: Listing | BatchError = Listing(())
        self.row: JobRow | BatchError | None = None
        self.list_takes_s = 0.0
        self.looks: list[float] = []
        self.asked: list[float] = []

    async def jobs(self) -> Listing:
        self.looks.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.list_takes_s)
        if isinstance(self.listing, BatchError):
            raise self.listing
        return self.listing

    async def job(self, job_id: str) -> JobRow | None:
        self.asked.append(asyncio.get_running_loop().time())
        if isinstance(self.row, BatchError):
            raise self.row
        return self.row


class Scene:
    def __init__(self, *, is_known: bool = True) -> None:
        self.system = System()
        self.jobs = Jobs("ab")
        self.changes: list[Change] = []
        self.problems: list[str] = []
        self.watch = JobWatch(
            self.system,
            self.jobs,
            Errands(),
            is_known=is_known,
            dispatcher=cast(Any, SimpleNamespace(note=self._note)),
            changed=self.changes.extend,
        )

    def _note(self, event: str, subject: str, text: str) -> None:
        assert (event, subject) == ("no word from SLURM", "")
        self.problems.append(text)

    def add(self, job_id: str) -> None:
        self.jobs.remember(job_id, f"farm-ab-small+{job_id}", "small", 0.0)

    async def run(self, duration_s: float) -> None:
        for _ in range(round(duration_s / 0.5)):
            self.watch.step()
            await asyncio.sleep(0.5)


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtually(scene())


def test_lists_are_asked_for_less_and_less_often_until_something_changes() -> None:
    async def scene() -> None:
        s = Scene()
        await s.run(5.0)
        assert s.system.looks == [], "there is no job"
        s.system.row = JobRow("1", Stand.RUNNING, "RUNNING", "x")
        s.system.listing = Listing((s.system.row,))
        s.add("1")
        await s.run(300.0)
        gaps = [b - a for a, b in zip(s.system.looks, s.system.looks[1:], strict=False)]
        assert gaps[-1] >= LONGEST_LOOK_S
        looks = len(s.system.looks)
        s.watch.soon()
        await s.run(FIRST_LOOK_S + 1.0)
        assert len(s.system.looks) == looks + 1

    play(scene)


def test_a_list_that_hangs_holds_up_neither_the_loop_nor_questions() -> None:
    async def scene() -> None:
        s = Scene()
        s.system.list_takes_s = 1e6
        s.add("1")
        await s.run(100.0)
        assert len(s.system.looks) == 1
        assert len(s.system.asked) >= 8, "it is not known to exist"
        assert s.changes == []
        s.system.row = JobRow("1", Stand.ENDED, "COMPLETED", "x")
        await s.run(2 * ASK_AGAIN_S)
        assert [change.event for change in s.changes] == ["ended"]

    play(scene)


def test_all_jobs_are_known_after_one_whole_list() -> None:
    async def scene() -> None:
        s = Scene(is_known=False)
        s.system.listing = BatchError("no controller")
        await s.run(3.0)
        known = [s.watch.is_known]
        assert s.problems == ["no controller"], "reported once"
        s.system.listing = Listing((), "squeue printed nothing")
        await s.run(10.0)
        known.append(s.watch.is_known)
        assert s.watch.problem == "squeue printed nothing"
        s.system.listing = Listing(())
        await s.run(30.0)
        assert [*known, s.watch.is_known] == [False, False, True]
        assert s.watch.problem == ""

    play(scene)


def test_questions_without_an_answer_come_less_and_less_often() -> None:
    async def scene() -> None:
        s = Scene()
        s.system.row = BatchError("no controller")
        for n in range(50):
            s.add(f"{n}")
        await s.run(100.0)
        assert 5 < len(s.system.asked) < 12, "one by one, although all fifty are due"

    play(scene)
