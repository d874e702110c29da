"""Random histories of an elastic farm on a SLURM that answers as badly as real ones do.

The whole autoscaler runs, down to the parsing of the commands' texts, in virtual time. After every
second the truth is compared with what the farm knows.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import ModelInfo, Operation, TensorInfo
from farm.dispatcher.dispatcher import Dispatcher
from farm.provision.batch import elastic as elastic_module
from farm.provision.batch.absence import CONFIRM_S
from farm.provision.batch.commands import Commands
from farm.provision.batch.elastic import KILLED_S, Elastic
from farm.provision.batch.errands import DRAIN_S
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.plan import ClusterPlan
from farm.provision.batch.restart_state import JobKey, RestartState
from farm.provision.batch.standing import KindState
from farm.provision.batch.systems.slurm import Slurm
from tests.provision.conftest import in_virtual_time
from tests.provision.simulated_slurm import (
    SBATCH,
    SCANCEL,
    SCONTROL,
    SQUEUE,
    SimulatedSlurm,
    TrueJob,
)
from tests.support.coroutines import until
from tests.support.virtual_time import run_virtually

STEP_S = 1.0
SETTLES_S = 300.0
"""A submission that hangs, its confirmed absence, and the end of what may have come of it."""
MOST = 3
BEAM = ModelInfo(
    "beam", (TensorInfo("x", (1,)),), (TensorInfo("y", (1,)),), frozenset({Operation.EVALUATE})
)


@dataclass
class Demand:
    """The part of a dispatcher that the autoscaler uses, with so many calls of a minute each."""

    slurm: SimulatedSlurm
    calls: int = 0
    events: list[tuple[str, str, str]] = field(default_factory=list)
    first_worker: Any = field(default_factory=lambda: SimpleNamespace(models_known=list))

    def snapshot(self) -> dict[str, Any]:
        times = {"run_time_mean_s": 60.0, "run_time_p95_s": 60.0}
        queue = {"model": "beam", "operation": "evaluate", "queued": self.calls, "in_flight": 0}
        return {"workers": self.slurm.workers(), "queues": [{**queue, **times}]}

    def models(self) -> dict[str, ModelInfo]:
        return {"beam": BEAM}

    def note(self, event: str, subject: str, text: str) -> None:
        self.events.append((event, subject, text))

    def add_part(self, name: str, give: Any) -> None: ...

    def expect(self, models: Any) -> None: ...


class World:
    """A farm, its SLURM and the rules that hold at every time."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.slurm = SimulatedSlurm(random.Random(seed))
        self.demand = Demand(self.slurm)
        self.elastic: Elastic

    def start(self) -> None:
        kind = WorkerKind(
            name="small",
            models=["beam.py"],
            max_jobs=MOST,
            idle_timeout_s=20.0,
            grow_after_s=1.0,
        )
        system = Slurm(cast(Commands, self.slurm))
        connect = self.folder / "farm.json"
        plan = ClusterPlan((kind,))
        self.elastic = Elastic(plan, connect=connect, folder=self.folder, adapter=system)
        self.elastic.start(cast(Dispatcher, self.demand), self.slurm.drain)

    async def kill(self) -> None:
        """End the farm as SIGKILL does; submissions that are under way arrive."""
        mine = {asyncio.current_task(), *self.slurm.tasks}
        others = [task for task in asyncio.all_tasks() if task not in mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def known(self) -> list[str]:
        """Ids, or names, of the jobs and submissions that the farm has on its list."""
        return [job["id"] for job in self.elastic.snapshot()["jobs"]]

    def check(self) -> None:
        known = self.known()
        alive = self.slurm.alive()
        assert len(alive) <= MOST, "more jobs live than max_jobs"
        for job in alive:
            found = [key for key in known if key in (job.id, job.name)]
            assert len(found) == 1, f"job {job.id}, {job.state}, is known as {found}"

    def left(self) -> list[TrueJob]:
        """The jobs that live and do not end by themselves."""
        return [job for job in self.slurm.alive() if not job.is_doomed]

    async def run(self, duration_s: float) -> None:
        for _ in range(round(duration_s / STEP_S)):
            await asyncio.sleep(STEP_S)
            self.slurm.step()
            self.check()

    async def settle(self) -> None:
        """SLURM answers well again: soon the farm knows exactly the jobs that live."""
        self.slurm.squeue = self.slurm.sbatch = self.slurm.scontrol = self.slurm.scancel = "fine"
        for job in self.slurm.alive():
            if job.is_cut_off:
                self.slurm.set(job, "NODE_FAIL")
        await self.run(SETTLES_S)
        for _ in range(round(CONFIRM_S / STEP_S)):
            if sorted(self.known()) == sorted(job.id for job in self.slurm.alive()):
                return
            await self.run(STEP_S)  # a job has ended a moment ago
        assert sorted(self.known()) == sorted(job.id for job in self.slurm.alive())

    async def stop(self, *, mended_after_s: float = 0.0) -> list[str]:
        """Stop in order; return what was logged as an error."""

        async def go_on() -> None:
            self.demand.calls = 0
            while True:
                await asyncio.sleep(STEP_S)
                self.slurm.step()
                if asyncio.get_running_loop().time() > mend_at:
                    self.slurm.squeue = self.slurm.sbatch = "fine"
                    self.slurm.scontrol = self.slurm.scancel = "fine"

        mend_at = asyncio.get_running_loop().time() + mended_after_s
        going_on = asyncio.create_task(go_on())
        with errors_logged() as errors:
            await self.elastic.stop()
        going_on.cancel()
        return errors


@contextmanager
def errors_logged() -> Iterator[list[str]]:
    """The texts of errors that the autoscaler logs in the block."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    elastic_module.log.addHandler(handler)
    try:
        yield found
    finally:
        elastic_module.log.removeHandler(handler)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def serving(world: World, count: int = 1) -> list[str]:
    """Run until so many jobs serve; return their ids."""
    world.demand.calls = count
    for _ in range(100):
        await world.run(STEP_S)
        jobs = world.elastic.snapshot()["jobs"]
        if sum(job["phase"] == "serving" for job in jobs) == count:
            return [job["id"] for job in jobs]
    raise AssertionError(f"{count} jobs should serve: {world.elastic.snapshot()}")


def events(world: World, *kinds: str) -> list[str]:
    return [subject for event, subject, _ in world.demand.events if event in kinds]


@in_virtual_time
async def test_while_squeue_hangs_jobs_come_and_go(world: World) -> None:
    world.slurm.squeue = "hangs"
    world.start()
    (first,) = await serving(world)
    world.demand.calls = 0
    await world.run(120.0)
    assert world.known() == [], "let go, and its end confirmed"
    world.slurm.kept_s = 0.0
    (second,) = await serving(world)
    assert first != second
    assert await world.stop(mended_after_s=20.0) == []


@in_virtual_time
async def test_a_job_that_has_ended_and_is_forgotten_is_not_late(world: World) -> None:
    """Confirming its end takes a minute, as long as a job may take to end."""
    world.slurm.kept_s = 0.0
    world.start()
    (job_id,) = await serving(world)
    world.demand.calls = 0
    await world.run(150.0)
    assert world.known() == []
    assert events(world, "ended") == [f"job {job_id}"]
    assert events(world, "cancelled") == []
    assert await world.stop() == []


@in_virtual_time
async def test_a_job_that_only_lists_lack_is_cancelled_if_it_does_not_end(world: World) -> None:
    world.start()
    (job_id,) = await serving(world)
    job = world.slurm.jobs[job_id]
    job.is_stuck = True
    world.slurm.squeue = "no rows"
    world.demand.calls = 0
    await world.run(30.0)
    assert events(world, "let go") == [f"job {job_id}"]
    job.is_cut_off = True
    await world.run(DRAIN_S)
    assert events(world, "cancelled") == [f"job {job_id}"]
    assert job.state == "CANCELLED"
    world.slurm.squeue = "fine"
    assert await world.stop() == []


@in_virtual_time
async def test_a_job_that_no_signal_reaches_is_drained_over_the_farms_own_connection(
    world: World,
) -> None:
    world.start()
    (job_id,) = await serving(world)
    world.slurm.scancel = "fails"
    world.demand.calls = 0
    await world.run(DRAIN_S - 10.0)
    assert world.slurm.jobs[job_id].state == "COMPLETED"
    world.slurm.scancel = "fine"
    assert await world.stop() == []


@in_virtual_time
async def test_while_sbatch_hangs_jobs_that_are_idle_are_let_go(world: World) -> None:
    world.start()
    (first,) = await serving(world)
    world.slurm.sbatch = "hangs before"
    world.demand.calls = 3
    await world.run(5.0)
    assert len(world.known()) == 2, "a submission that hangs counts"
    world.demand.calls = 0
    await world.run(40.0)
    assert events(world, "ended") == [f"job {first}"]
    assert len(world.known()) == 1
    assert await world.stop() == []


@in_virtual_time
async def test_lists_without_a_job_do_not_end_it_while_nobody_answers_about_it(
    world: World,
) -> None:
    world.start()
    (job_id,) = await serving(world)
    world.slurm.jobs[job_id].is_cut_off = True
    world.slurm.squeue, world.slurm.scontrol = "no rows", "hangs"
    await world.run(300.0)
    assert job_id in world.known()
    world.slurm.squeue = world.slurm.scontrol = "fine"
    assert await world.stop() == []
    assert world.left() == []


@in_virtual_time
async def test_a_job_that_is_requeued_just_before_the_end_is_not_left_over(world: World) -> None:
    """SLURM calls it COMPLETING, as it does jobs that end, and starts it again."""
    world.start()
    (job_id,) = await serving(world)
    job = world.slurm.jobs[job_id]
    world.slurm.requeue(job)
    await asyncio.sleep(STEP_S)
    assert await world.stop() == []
    assert job.is_doomed


@in_virtual_time
async def test_a_submission_that_lists_lack_for_long_is_cancelled_by_name(world: World) -> None:
    world.start()
    world.slurm.sbatch, world.slurm.squeue = "answer lost", "no rows"
    await world.run(3.0)
    (job,) = world.slurm.alive()
    assert world.known() == [job.name]
    world.slurm.set(job, "RUNNING")
    job.is_cut_off = True
    world.slurm.scancel = "fails"
    await world.run(150.0)
    assert world.known() == [job.name], "as long as it cannot be cancelled"
    world.slurm.sbatch = world.slurm.scancel = "fine"
    await world.run(20.0)
    assert job.state == "CANCELLED"
    assert events(world, "refused") == [], "it may take its time to end"
    world.demand.calls = 0
    await world.run(KILLED_S)
    assert len(events(world, "refused")) == 1
    world.slurm.squeue = "fine"
    assert await world.stop() == []


@in_virtual_time
async def test_a_job_whose_id_sbatch_did_not_tell_is_found_by_its_name(world: World) -> None:
    world.start()
    world.slurm.sbatch, world.demand.calls = "no id", 1
    await world.run(3.0)
    assert len(events(world, "unsure")) == 1
    await world.run(60.0)
    (job,) = world.slurm.alive()
    assert events(world, "adopted") == [f"job {job.id}"]
    (kind,) = world.elastic.snapshot()["kinds"]
    assert (kind["problem"], kind["next_try_in_s"]) == ("", None)
    assert await world.stop() == []


@in_virtual_time
async def test_a_job_that_fails_is_told_with_its_output_and_the_next_one_waits(
    world: World,
) -> None:
    world.start()
    await world.run(3.0)
    (job,) = world.slurm.alive()
    world.slurm.set(job, "FAILED")
    while not events(world, "failed"):
        await world.run(STEP_S)
    (text,) = [text for event, _, text in world.demand.events if event == "failed"]
    assert "FAILED" in text
    assert f"{job.id}.out cannot be read" in text
    (kind,) = world.elastic.snapshot()["kinds"]
    assert kind["next_try_in_s"] > 0
    assert await world.stop() == []


@in_virtual_time
async def test_a_farm_that_is_killed_during_a_submission_finds_the_job(world: World) -> None:
    world.start()
    world.slurm.sbatch = "hangs after"
    await world.run(3.0)
    await world.kill()
    world.slurm.squeue, world.slurm.sbatch = "no rows", "fine"
    world.start()
    world.demand.calls = 5
    await world.run(30.0)
    world.slurm.squeue = "fine"
    await world.run(30.0)
    assert len(world.known()) == MOST
    assert await world.stop() == []
    assert world.left() == []


@in_virtual_time
async def test_jobs_that_are_found_during_submissions_count(world: World) -> None:
    """Three jobs of a farm whose list was lost, and a first answer of squeue without them."""
    world.start()
    for job_id in await serving(world, MOST):
        world.slurm.jobs[job_id].is_cut_off = True  # their workers would tell of them
    await world.kill()
    (world.folder / "jobs.json").unlink()
    world.slurm.squeue, world.slurm.sbatch = "no rows", "slow"
    world.demand.calls = MOST
    world.start()
    while not events(world, "adopted"):
        await asyncio.sleep(STEP_S)
        if world.known():
            world.slurm.squeue = "fine"
    for _ in range(60):
        await asyncio.sleep(STEP_S)
        world.slurm.step()
    assert world.slurm.submitted == MOST + 1, "the submission that was under way"
    assert await world.stop() == []
    assert world.left() == []


@pytest.mark.parametrize("has_accounts", [False, True])
@in_virtual_time
async def test_where_no_records_are_kept_the_end_takes_a_minute_and_no_more(
    world: World, has_accounts: bool
) -> None:
    world.slurm.kept_s, world.slurm.has_accounts = 0.0, has_accounts
    world.start()
    for job_id in await serving(world, 2):
        world.slurm.set(world.slurm.jobs[job_id], "COMPLETED")  # as its workers have ended
    began = asyncio.get_running_loop().time()
    assert await world.stop() == []
    took_s = asyncio.get_running_loop().time() - began
    assert took_s < 100.0
    assert (took_s >= CONFIRM_S) == (not has_accounts)
    assert world.left() == []


EVENTS = ("", "", "", "ends", "is cancelled", "is requeued", "is cut off", "node fails", "kill")


@st.composite
def episodes(draw: st.DrawFn) -> dict[str, Any]:
    fine = st.just("fine")
    return {
        "squeue": draw(fine | st.sampled_from(SQUEUE)),
        "sbatch": draw(fine | st.sampled_from(SBATCH)),
        "scontrol": draw(fine | st.sampled_from(SCONTROL)),
        "scancel": draw(fine | st.sampled_from(SCANCEL)),
        "age_s": draw(st.sampled_from((5.0, 40.0, 300.0))),
        "delay_s": draw(st.sampled_from((2.0, 20.0, 50.0))),
        "calls": draw(st.integers(0, 5)),
        "event": draw(st.sampled_from(EVENTS)),
        "for_s": draw(st.sampled_from((3.0, 10.0, 40.0, 100.0))),
    }


async def happen(world: World, event: str) -> None:
    slurm = world.slurm
    running = [job for job in slurm.jobs.values() if job.state == "RUNNING"]
    if event == "kill":
        await world.kill()
        world.start()
    elif event == "is cancelled" and slurm.alive():
        slurm.cancel(slurm.alive()[-1])
    elif running:
        job = slurm.chance.choice(running)
        if event == "ends":
            slurm.set(job, "FAILED")
        elif event == "is requeued":
            slurm.requeue(job)
        elif event == "is cut off":
            job.is_cut_off = True
        elif event == "node fails":
            slurm.set(job, "NODE_FAIL")


@pytest.mark.slow
@given(
    plan=st.lists(episodes(), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    kept_s=st.sampled_from((0.0, 2.0, 300.0)),
    has_accounts=st.booleans(),
    mended_after_s=st.sampled_from((0.0, 10.0, 600.0)),
    settles=st.booleans(),
)
def test_no_job_is_one_too_many_forgotten_or_left_over(
    plan: list[dict[str, Any]],
    seed: int,
    kept_s: float,
    has_accounts: bool,
    mended_after_s: float,
    settles: bool,
) -> None:
    async def history(world: World) -> None:
        slurm = world.slurm
        slurm.kept_s, slurm.has_accounts = kept_s, has_accounts
        world.start()
        for episode in plan:
            for name in ("squeue", "sbatch", "scontrol", "scancel", "age_s", "delay_s"):
                setattr(slurm, name, episode[name])
            world.demand.calls = episode["calls"]
            await happen(world, episode["event"])
            await world.run(episode["for_s"])
        if settles:
            await world.settle()
        errors = await world.stop(mended_after_s=mended_after_s)
        assert errors or not world.left(), "a job is left over, and nothing says so"
        if mended_after_s < 60.0:
            assert errors == []

    with tempfile.TemporaryDirectory() as folder:
        run_virtually(history(World(Path(folder), seed)))


@pytest.mark.parametrize("stops", [False, True])
async def test_no_job_is_submitted_before_it_is_on_the_list_for_the_next_farm(
    world: World, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """In real time: the list is written by a thread, and here its file system hangs."""
    may_write, write_jobs = threading.Event(), RestartState.write_jobs

    def write_later(self: RestartState, jobs: list[JobKey]) -> None:
        if jobs:
            may_write.wait(30)
        write_jobs(self, jobs)

    monkeypatch.setattr(RestartState, "write_jobs", write_later)
    world.demand.calls = 1
    world.start()
    await until(world.known)
    (name,) = world.known()
    assert name.startswith("farm-")
    assert world.slurm.submitted == 0
    if stops:
        world.elastic.begin_stop()
    may_write.set()
    if not stops:
        await until(lambda: world.slurm.submitted)
        assert [key[1] for key in RestartState(world.folder).jobs() or ()] == [name]
    await world.elastic.stop()
    assert world.slurm.submitted == (0 if stops else 1)
    assert world.left() == []


async def test_models_that_are_known_are_not_described(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[str] = []

    def describe(kind: KindState, dispatcher: object) -> asyncio.Task[None]:
        described.append(kind.settings.name)
        return asyncio.get_running_loop().create_task(asyncio.sleep(0))

    monkeypatch.setattr(KindState, "describe", describe)
    world.start()
    world.elastic.describe_models()
    assert described == ["small"]
    world.elastic._kinds["small"].knows(["beam"])
    world.elastic.describe_models()
    assert described == ["small"]
    await world.elastic.stop()
