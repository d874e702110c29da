"""What the batch system is asked, and when; background tasks have one place for each key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farm.provision.batch.absence import ASK_AGAIN_S
from farm.provision.batch.errands import (
    DRAIN_S,
    FIRST_LOOK_S,
    LONGEST_LOOK_S,
    Errands,
    JobWatch,
    Releases,
)
from farm.provision.batch.farm_job import Change, FarmJob
from farm.provision.batch.job_phases import CANCELLED
from farm.provision.batch.jobs import Jobs
from farm.provision.batch.system import BatchError, JobRow, Listing, Stand
from farm.provision.batch.systems.slurm import Slurm
from tests.provision.conftest import in_virtual_time


class System(Slurm):
    """A batch system that answers with its fields, and records what it is asked.

    error: that of each command to cancel jobs.
    """

    def __init__(self) -> None:
        self.listing: Listing | BatchError = Listing(())
        self.row: JobRow | BatchError | None = None
        self.error: BatchError | None = None
        self.list_takes_s = 0.0
        self.looks: list[float] = []
        self.asked: list[float] = []
        self.done: list[tuple[str, list[str]]] = []

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

    async def drain(self, jobs: Sequence[str]) -> None:
        self.done.append(("drain", list(jobs)))

    async def cancel(self, jobs: Sequence[str]) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(("cancel", list(jobs)))


class Scene:
    def __init__(self, *, is_known: bool = True) -> None:
        self.system = System()
        self.jobs = Jobs("ab")
        self.changes: list[Change] = []
        self.events: list[tuple[str, str]] = []
        errands, dispatcher = Errands(), cast(Any, SimpleNamespace(note=self._note))
        self.watch = JobWatch(
            self.system,
            self.jobs,
            errands,
            is_known=is_known,
            dispatcher=dispatcher,
            changed=self.changes.extend,
        )
        self.releases = Releases(self.system, self.jobs, errands, self.watch, dispatcher)

    def _note(self, event: str, subject: str, text: str) -> None:
        self.events.append((event, text.removeprefix("small: ")))

    def remember(self, job_id: str) -> None:
        self.jobs.remember(job_id, f"farm-ab-small+{job_id}", "small", 0.0)

    def add(self, job_id: str, stand: Stand) -> FarmJob:
        name = f"farm-ab-small+{job_id}"
        now = asyncio.get_running_loop().time()
        self.remember(job_id)
        self.jobs.looked(Listing((JobRow(job_id, stand, stand.name, name),)), now, now)
        return self.jobs.live[job_id]

    async def run(self, duration_s: float) -> None:
        for _ in range(round(duration_s / 0.5)):
            self.watch.step()
            await asyncio.sleep(0.5)


@in_virtual_time
async def test_lists_are_asked_for_less_and_less_often_until_something_changes() -> None:
    s = Scene()
    await s.run(5.0)
    assert s.system.looks == [], "there is no job"
    s.system.row = JobRow("1", Stand.RUNNING, "RUNNING", "x")
    s.system.listing = Listing((s.system.row,))
    s.remember("1")
    await s.run(300.0)
    gaps = [b - a for a, b in zip(s.system.looks, s.system.looks[1:], strict=False)]
    assert gaps[-1] >= LONGEST_LOOK_S
    looks = len(s.system.looks)
    s.watch.soon()
    await s.run(FIRST_LOOK_S + 1.0)
    assert len(s.system.looks) == looks + 1


@in_virtual_time
async def test_a_list_that_hangs_holds_up_neither_the_loop_nor_questions() -> None:
    s = Scene()
    s.system.list_takes_s = 1e6
    s.remember("1")
    await s.run(100.0)
    assert len(s.system.looks) == 1
    assert len(s.system.asked) >= 8, "it is not known to exist"
    assert s.changes == []
    s.system.row = JobRow("1", Stand.ENDED, "COMPLETED", "x")
    await s.run(2 * ASK_AGAIN_S)
    assert [change.event for change in s.changes] == ["ended"]


@in_virtual_time
async def test_all_jobs_are_known_after_one_whole_list() -> None:
    s = Scene(is_known=False)
    s.system.listing = BatchError("no controller")
    await s.run(3.0)
    known = [s.watch.is_known]
    assert s.events == [("no word from SLURM", "no controller")], "reported once"
    s.system.listing = Listing((), "squeue printed nothing")
    await s.run(10.0)
    known.append(s.watch.is_known)
    assert s.watch.problem == "squeue printed nothing"
    s.system.listing = Listing(())
    await s.run(30.0)
    assert [*known, s.watch.is_known] == [False, False, True]
    assert s.watch.problem == ""


@in_virtual_time
async def test_questions_without_an_answer_come_less_and_less_often() -> None:
    s = Scene()
    s.system.row = BatchError("no controller")
    for n in range(50):
        s.remember(f"{n}")
    await s.run(100.0)
    assert 5 < len(s.system.asked) < 12, "one by one, although all fifty are due"


# Releases


@in_virtual_time
async def test_started_jobs_are_drained_and_pending_ones_cancelled_once() -> None:
    s = Scene()
    jobs = [s.add("1", Stand.RUNNING), s.add("2", Stand.PENDING)]
    s.system.listing = Listing(tuple(job.row for job in jobs))
    await s.run(100.0)
    looks = len(s.system.looks)
    for _ in range(2):
        s.releases.let_go(jobs, "not needed now")
        await asyncio.sleep(1.0)
    assert s.system.done == [("drain", ["1"]), ("cancel", ["2"])]
    assert sorted(s.events) == [("cancelled", "not needed now"), ("let go", "not needed now")]
    await s.run(FIRST_LOOK_S)
    assert len(s.system.looks) == looks + 1, "the commands make a list due"


@in_virtual_time
async def test_a_job_that_does_not_end_in_time_is_cancelled() -> None:
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


@in_virtual_time
async def test_a_command_that_fails_is_an_event_and_leaves_the_job_to_the_next() -> None:
    s = Scene()
    s.system.error = BatchError("the controller is away")
    job = s.add("1", Stand.PENDING)
    s.releases.let_go([job], "the farm stops")
    await asyncio.sleep(1.0)
    assert ("cancel fails", "the controller is away") in s.events
    assert job.cancelled_at is None


# Background tasks


async def test_a_second_task_with_the_same_key_waits_for_another_time() -> None:
    errands, done, go = Errands(), [], asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.append(1)

    assert errands.begin("look", work)
    assert not errands.begin("look", work)
    assert errands.begin("submit a", work)
    assert errands.is_running("submit ")
    assert not errands.is_running("ask")
    go.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(done) == 2
    assert not errands.is_running("")
    assert errands.begin("look", work)
    await errands.cancel()
    assert not errands.is_running("")


async def test_a_failure_is_logged_and_frees_the_key(caplog: pytest.LogCaptureFixture) -> None:
    errands = Errands()

    async def work() -> None:
        raise ValueError("no good")

    errands.begin("look", work)
    await asyncio.sleep(0)
    assert errands.begin("look", work)
    await asyncio.sleep(0)
    assert "look failed" in caplog.text
    assert "no good" in caplog.text


async def test_a_task_that_is_cancelled_before_it_begins_is_gone() -> None:
    errands = Errands()

    async def work() -> None: ...

    errands.begin("look", work)
    await errands.cancel()
    assert not errands.is_running("look")


async def test_a_task_that_is_dropped_frees_its_key() -> None:
    errands = Errands()

    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    errands.drop("look")
    errands.begin("look", work)
    errands.begin("ask", work)
    await asyncio.sleep(0)
    errands.drop("look")
    await asyncio.sleep(0)
    assert not errands.is_running("look")
    assert errands.is_running("ask")
    await errands.cancel()
