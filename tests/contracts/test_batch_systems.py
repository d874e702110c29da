"""An elastic farm on each batch system, with commands that run its jobs as processes here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farm
from farm.provision.batch import absence, errands
from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.plan import ClusterPlan
from farm.provision.batch.system import Adapter, BatchError, Stand, SubmissionRefused
from farm.provision.batch.systems import BUILT_IN, GRID_ENGINE
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings
from tests.provision import slurm_stand_in
from tests.provision.batch.systems.test_grid_engine_output import one_job
from tests.provision.stand_ins.site import Site
from tests.support.batch_jobs import STAND_INS
from tests.support.dispatcher_farm import LIMIT_S
from tests.support.running_farm import wait_until
from tests.support.supervised_farm import supervised

NAME = "farm-1-small+ab"
SYSTEMS = {system.name: system for system in BUILT_IN}


def slurm_with_a_job(folder: Path) -> None:
    jobs = slurm_stand_in.install(folder) / "jobs"
    jobs.mkdir()
    for end, text in (("script", ""), ("state", "RUNNING"), ("name", NAME)):
        (jobs / f"7.{end}").write_text(text)


def grid_engine_with_a_job(folder: Path) -> None:
    folder.mkdir()
    (folder / "list").write_text(one_job("r", name=NAME))
    for name in (*GRID_ENGINE.commands, "qacct"):
        (folder / name).write_text("#!/bin/sh\n" + f"cat {folder}/list\n" * (name == "qstat"))
        (folder / name).chmod(0o755)


WITH_A_JOB = {"slurm": slurm_with_a_job, "grid-engine": grid_engine_with_a_job}
"""Systems that tests/slurm and tests/grid_engine run for real, with commands that list a job 7."""

MODEL = """
import os, farm

os.environ["FARM_JOB"]  # only jobs can load it

class Double(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]
"""


class Cluster:
    """The stand-in of one batch system, and a farm that uses it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.system = SYSTEMS[name]
        self.adapter = self.system.load()
        self.folder = folder
        self.signals = self.adapter.drain is not Adapter.drain
        self.stand_in = STAND_INS[name]
        self.commands = self.stand_in.install(folder / "bin")
        self.site = Site(self.commands)
        (folder / "double.py").write_text(MODEL)

    @contextlib.contextmanager
    def farm(self, **values: Any) -> Iterator[farm.Client]:
        defaults = {"name": "small", "idle_timeout_s": 2.0, "grow_after_s": 0.5, "time": "60"}
        kind = WorkerKind(models=[str(self.folder / "double.py")], **{**defaults, **values})
        settings = Settings(port=0, workers=0, dir=self.folder / "run")
        plan = ClusterPlan((kind,), host="127.0.0.1", system=self.system)
        with (
            running(Farm([], settings, plan=plan, doors=False)),
            farm.connect(self.folder / "run") as client,
        ):
            yield client

    def does(self, command: str, how: str, text: str = "") -> None:
        (self.commands / f"{command}.{how}").write_text(text)

    def ends(self) -> list[str]:
        """How each job stands: its state, or its exit code if it has ended by itself."""
        jobs = self.site.jobs().values()
        words = {True: "deleted", False: ""}
        return [
            str(job["code"])
            if job["state"] == "ended" and not job["deleted"]
            else words[job["deleted"]] or job["state"]
            for job in jobs
        ]


@pytest.fixture(params=STAND_INS)
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    found = Cluster(request.param, tmp_path)
    monkeypatch.setenv("PATH", f"{found.commands}:{os.environ['PATH']}")
    yield found
    for number, job in found.site.jobs().items():
        if job["state"] != "ended":
            found.site.cancel(number)


def events(client: farm.Client, *kinds: str) -> list[str]:
    return [e["text"] for e in client.status()["events"] if e["event"] in kinds]


@pytest.mark.slow
def test_jobs_come_with_calls_and_are_drained_when_idle(cluster: Cluster) -> None:
    with cluster.farm() as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        assert client.model()([2.0])[0] == 4.0
        (worker,) = client.status()["workers"]
        assert 0 < worker["ends_in_s"] <= 3600, "the script has told the end of its job"
        wait_until(lambda: events(client, "ended"), "the end of the idle job")
        assert "slurm" not in client.status(), "that is a word of SLURM's"
        assert events(client, "left") == ["drained"]
        assert cluster.ends() == ["0"]
        assert client.model()([3.0])[0] == 6.0
        wait_until(lambda: len(events(client, "started")) == 2, "word that the next one serves")
        assert events(client, "failed", "refused", "unsure", "cancelled") == []
    assert cluster.ends() == ["0", "0"]


@pytest.mark.slow
def test_a_job_that_ends_is_not_late_where_pbs_forgets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is confirmed by lists a minute apart, as long as a job may take to end. Here 5 s."""
    monkeypatch.setattr(absence, "CONFIRM_S", 5.0)
    monkeypatch.setattr(absence, "ASK_AGAIN_S", 0.5)
    monkeypatch.setattr(errands, "DRAIN_S", 5.0)
    cluster = Cluster("pbs", tmp_path)
    monkeypatch.setenv("PATH", f"{cluster.commands}:{os.environ['PATH']}")
    (cluster.commands / "no-history").touch()
    with cluster.farm() as client:
        wait_until(lambda: client.models() == ["Double"], "the model")
        wait_until(lambda: events(client, "ended"), "the end of the idle job")
        assert events(client, "cancelled", "failed") == []
        assert events(client, "ended") == ["small: the batch system no longer knows it"]
        assert client.status()["cluster"]["jobs"] == []


@pytest.mark.slow
def test_jobs_that_wait_when_the_farm_stops_are_cancelled(cluster: Cluster) -> None:
    (cluster.commands / "full").touch()
    with cluster.farm(min_jobs=2) as client:
        wait_until(lambda: len(client.status()["cluster"]["jobs"]) == 2, "both jobs")
        wait_until(lambda: all(j["state"] for j in client.status()["cluster"]["jobs"]), "a list")
        assert {j["phase"] for j in client.status()["cluster"]["jobs"]} == {"pending"}
    assert cluster.ends() == ["deleted", "deleted"]


@pytest.mark.slow
def test_a_killed_front_door_finds_its_jobs(cluster: Cluster, tmp_path: Path) -> None:
    text = f'system = "{cluster.name}"\nhost = "127.0.0.1"\n[[workers]]\nmin_jobs = 1\n'
    (tmp_path / "cluster.toml").write_text(text)
    with supervised(tmp_path, "double.py", "--cluster", "cluster.toml") as each:
        each.up()
        with farm.connect(each.folder, wait=LIMIT_S) as client:
            assert client.model("Double")([2.0])[0] == 4.0
            killed = each.kill_front_door()
            each.up(after=killed)
            assert client.model("Double")([3.0])[0] == 6.0
            wait_until(lambda: [j["phase"] for j in jobs_of(client)] == ["serving"], "its job")
        assert each.stop() == 0
    assert cluster.ends() == ["0"], "one job, which the second front door has ended"


def jobs_of(client: farm.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.status()["cluster"]["jobs"]
    return found


def test_a_refusal_is_told_in_the_systems_words(cluster: Cluster) -> None:
    said = cluster.stand_in.refusal
    with cluster.farm(min_jobs=1, queue="nosuch") as client:
        wait_until(lambda: events(client, "refused"), "the refusal")
        assert events(client, "refused") == [f"{said}; next try in 5 s"]
        assert client.status()["cluster"]["kinds"][0]["problem"] == f"refused: {said}"
    assert cluster.ends() == []


@pytest.mark.slow
def test_a_job_that_fails_is_told_with_its_last_words(cluster: Cluster) -> None:
    (cluster.folder / "double.py").write_text("import no_such_module_here\n")
    with cluster.farm(min_jobs=1) as client:
        wait_until(lambda: events(client, "failed"), "the failure")
        assert "no_such_module_here" in events(client, "failed")[0]


# The calls of the interface


def test_every_system_has_a_stand_in_or_runs_for_real() -> None:
    assert sorted([*STAND_INS, *WITH_A_JOB]) == sorted(SYSTEMS)


@pytest.mark.parametrize("name", WITH_A_JOB)
def test_jobs_are_listed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WITH_A_JOB[name](tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (row,) = asyncio.run(SYSTEMS[name].load()().jobs()).rows
    assert (row.id, row.name, row.stand) == ("7", NAME, Stand.RUNNING)


def script(cluster: Cluster, command: str, **values: Any) -> str:
    kind = WorkerKind(name="small", models=["m.py"], **values)
    lines = cluster.adapter.directives(kind, NAME, cluster.folder, cluster.folder)
    preamble = cluster.adapter.preamble(kind)
    last = f"{cluster.adapter.launch(kind)} {command}\nexit $?"  # a site may have lines after it
    return "\n".join(["#!/bin/bash", *lines, *preamble, last])


SLEEP = "sleep 600"
DRAINED = """bash -c 'trap "sleep 0.3; exit 0" TERM; touch ready; while :; do sleep 0.05; done'"""
"""A program that takes a while to end after SIGTERM, as workers do."""

WAITS = "bash -c 'touch ready; until [ -e go ]; do sleep 0.05; done'"


async def until(holds: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, holds, what)


async def test_a_job_from_its_submission_to_its_end(cluster: Cluster) -> None:
    system = cluster.adapter()
    job_id = await system.submit(script(cluster, WAITS))
    await until((cluster.folder / "ready").exists, "the program")
    # It is ready a moment before its system calls it running.
    await until(lambda: cluster.ends() == ["running"], "the program to be called so")
    (row,) = (await system.jobs()).rows
    assert (row.id, row.name, row.stand) == (job_id, NAME, Stand.RUNNING)
    assert await system.job(job_id) == row
    (cluster.folder / "go").touch()
    await until(lambda: cluster.ends() == ["0"], "the end")
    ended = await system.job(job_id)
    assert ended is not None
    assert (ended.stand, ended.crashed, ended.taken) == (Stand.ENDED, False, False)
    await system.drain([job_id])
    await system.cancel([job_id])


async def test_a_request_to_drain_harms_no_program_that_takes_its_time(cluster: Cluster) -> None:
    """Where the system has such a command, the shell around the program outlives it."""
    system = cluster.adapter()
    job_id = await system.submit(script(cluster, DRAINED))
    await until((cluster.folder / "ready").exists, "the program")
    await system.drain([job_id])
    if cluster.signals:
        await until(lambda: cluster.ends() == ["0"], "the end, after SIGTERM to the program")
    else:
        # It is ready a moment before its system calls it running.
        await until(lambda: cluster.ends() == ["running"], "the program to run on")
        await system.cancel([job_id])
        await until(lambda: cluster.ends() == ["deleted"], "the end")


async def test_the_output_of_a_job_is_where_the_farm_looks_for_it(cluster: Cluster) -> None:
    job_id = await cluster.adapter().submit(script(cluster, "bash -c 'echo $FARM_JOB; pwd'"))
    await until(lambda: cluster.ends() == ["0"], "the end")
    text = (cluster.folder / f"{job_id}.out").read_text()
    assert text.split() == [job_id, str(cluster.folder)]


async def test_a_program_that_fails_has_crashed_and_says_how(cluster: Cluster) -> None:
    system = cluster.adapter()
    job_id = await system.submit(script(cluster, "bash -c 'exit 7'"))
    await until(lambda: cluster.ends() == ["7"], "the end")
    row = await system.job(job_id)
    assert row is not None
    assert (row.stand, row.crashed) == (Stand.ENDED, True)
    assert "7" in row.reason


async def test_jobs_are_cancelled_by_id_and_by_name(cluster: Cluster) -> None:
    system = cluster.adapter()
    first = await system.submit(script(cluster, SLEEP))
    second = await system.submit(script(cluster, SLEEP).replace("+ab", "+cd"))
    await until(lambda: cluster.ends() == ["running", "running"], "both")
    await system.cancel_named("farm-1-small+nosuch")
    await system.cancel_named("farm-1-small+cd")
    await until(lambda: cluster.ends() == ["running", "deleted"], "the end of the second")
    await system.cancel([second, first])
    await until(lambda: cluster.ends() == ["deleted", "deleted"], "the end of both")
    for job_id in (first, second):
        row = await system.job(job_id)
        assert row is not None
        assert (row.stand, row.crashed) == (Stand.ENDED, False)


async def test_a_job_that_the_system_does_not_know_is_none(cluster: Cluster) -> None:
    unknown = cluster.stand_in.unknown
    system = cluster.adapter()
    assert await system.job(unknown) is None
    listing = await system.jobs()
    assert (listing.rows, listing.problem) == ((), "")
    await system.cancel([unknown])
    await system.drain([unknown])


async def test_an_answer_that_is_none_says_nothing(cluster: Cluster) -> None:
    system = cluster.adapter()
    job_id = await system.submit(script(cluster, "true"))
    for text in ("", '*** maintenance ***\n\0\0{"JOBS": 1, "RECO'):
        for command in (cluster.stand_in.list, "qstat"):
            cluster.does(command, "says", text)
        with contextlib.suppress(BatchError):
            assert (await system.jobs()).problem
        with pytest.raises(BatchError):
            await system.job(job_id)
    cluster.does(cluster.stand_in.submit, "says", "*** maintenance ***\n")
    with pytest.raises(BatchError) as caught:
        await system.submit(script(cluster, "true"))
    assert not isinstance(caught.value, SubmissionRefused)


async def test_a_failing_command_says_nothing_about_jobs(cluster: Cluster) -> None:
    system = cluster.adapter()
    job_id = await system.submit(script(cluster, "true"))
    for command in (cluster.stand_in.list, *cluster.stand_in.others):
        cluster.does(command, "fails", "cannot connect to the server\n")
    calls: list[Callable[[], Awaitable[object]]] = [
        system.jobs,
        lambda: system.job(job_id),
        lambda: system.cancel([job_id]),
        lambda: system.cancel_named(NAME),
    ]
    if cluster.signals:
        calls.append(lambda: system.drain([job_id]))
    for call in calls:
        with pytest.raises(BatchError, match="cannot connect to the server"):
            await call()


@pytest.mark.parametrize(
    "text",
    [
        *("SUBMIT: connection timed out. Job not submitted.", "SUBMIT: End of File", "Killed"),
        "SUBMIT: ERROR: Broken pipe",
    ],
)
def test_a_submission_whose_answer_is_lost_may_have_made_a_job(cluster: Cluster, text: str) -> None:
    command = cluster.stand_in.submit
    cluster.does(command, "fails", text.replace("SUBMIT", command))
    with pytest.raises(BatchError) as caught:
        asyncio.run(cluster.adapter().submit(script(cluster, "true")))
    assert not isinstance(caught.value, SubmissionRefused)


def test_an_option_that_the_system_rejects_is_a_refusal(cluster: Cluster) -> None:
    with pytest.raises(SubmissionRefused):
        asyncio.run(cluster.adapter().submit(script(cluster, "true", options=["--no-such x"])))
    assert cluster.ends() == []
