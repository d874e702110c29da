"""`sbatch farm.sh` on a real SLURM: answers, ends, losses."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.launched import Launched, host_of, write_files

COUNTED = """
import os, time
import farm

@farm.model(inputs={"x": 2}, outputs={"y": 1})
def counted(x, config):
    with open("evaluated", "a") as file:
        file.write(f"{x[0]} {os.environ['SLURM_JOB_ID']} {os.getpid()}\\n")
    time.sleep(config["sleep"] if x[0] > 0.3 else config.get("longest", config["sleep"]))
    return x.sum()
"""

LATE_WATCH = """#!/bin/sh
# A step as it starts on a busy cluster, if it watches the job's first node.
case "$*" in *FARM_WATCH_S*) sleep 5;; esac
exec {srun} "$@"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with models that the nodes can read."""
    write_files(tmp_path)
    (tmp_path / "broken.py").write_text("raise ValueError('no licence')\n")
    return tmp_path


def test_a_command_runs_in_the_job_and_ends_it_with_its_status(
    cluster: Cluster, folder: Path
) -> None:
    command = "farm call 1,2; farm status --json; echo url $FARM_URL; hostname; exit 3"
    words = ("model.py:total", "--", "bash", "-c", command)
    job = Launched(cluster, folder, "-N2", "-n4", "farm.sh", *words)
    assert job.exit_code() == "3:0"
    text = job.output()
    assert "y = [3.]" in text
    status = json.loads(re.search(r"^\{.*^\}|^\{.*\}$", text, re.M | re.S)[0])  # type: ignore[index]
    assert 1 <= len(status["workers"]) <= 4
    assert re.search(r"^url http://farm:[\w-]+@cpu1:\d+$", text, re.M) or not cluster.has_host_names
    assert "model.py:total: 4 workers with 1 CPU each on 2 nodes" in text
    assert "ssh -N -L 4242:" in text
    assert f"farm url {job.run_folder}" in text
    assert "http://farm:" not in text.replace("url http://farm:", "")
    assert "Killed" not in text
    assert not (job.run_folder / "farm.json").exists()


def test_workers_come_on_all_nodes_as_many_as_there_is_room_for(
    cluster: Cluster, folder: Path
) -> None:
    job = Launched(
        cluster, folder, "-N3", "--exclusive", "farm.sh", "--cpus", "2", "model.py:total"
    )
    rows = job.workers(6)  # two workers on each of three nodes
    if cluster.has_host_names:
        assert {host_of(row) for row in rows} == {"cpu1", "cpu2", "cpu3"}
    job.cancel()


@pytest.mark.parametrize("request_", [("-N1", "--gres=gpu:2"), ("-n2", "--gpus-per-task=1")])
def test_gpus_get_a_worker_each(cluster: Cluster, folder: Path, request_: tuple[str, ...]) -> None:
    words = ("farm.sh", "--gpus", "auto", "model.py:device", "--", "bash", "-c")
    job = Launched(cluster, folder, "-p", "gpu", "-N1", *request_, *words, "farm call 1; sleep 100")
    assert {row["device"] for row in job.workers(2)} == {"0", "1"}
    wait_for(lambda: re.search(r"device = \[[01]\.\]", job.output()), "the call's answer")
    job.cancel()


def test_a_model_that_cannot_be_loaded_ends_the_job_with_its_error(
    cluster: Cluster, folder: Path
) -> None:
    job = Launched(cluster, folder, "-N2", "farm.sh", "broken.py")
    assert job.ended()["JobState"] == "FAILED"
    assert "raised ValueError: no licence" in job.output()


def test_a_mistake_is_told_in_one_line(cluster: Cluster, folder: Path) -> None:
    job = Launched(cluster, folder, "-N2", "farm.sh", "--cpus", "8", "model.py:total")
    assert job.exit_code() == "2:0"
    assert job.output().startswith("farm.sh: --cpus 8: a worker needs 8 CPUs on a node")
    assert job.output().count("\n") == 1


def test_steps_have_the_environment_of_the_script_whatever_the_job_exports(
    cluster: Cluster, folder: Path
) -> None:
    """With --export=NONE SLURM starts steps with no variable at all, unless the script says so."""
    words = ("farm.sh", "model.py:total", "--", "farm", "call", "1,2")
    job = Launched(cluster, folder, "--export=NONE", "-N2", *words)
    assert job.exit_code() == "0:0", job.output()
    assert "y = [3.]" in job.output()


def sweep_of_200(cluster: Cluster, folder: Path) -> tuple[Launched, str]:
    """Start a sweep in a job of three nodes; return the job and a node that is not its first."""
    sweep = "farm sweep --param x=0:1 --design random:200 --seed 1 -o s.h5"
    command = (*sweep.split(), "--config", '{"sleep": 0.2}')
    words = ("farm.sh", "--workers", "2", "model.py:total", "--", *command)
    job = Launched(cluster, folder, "-N3", "-n3", *words)
    wait_for(lambda: (folder / "s.h5.journal").exists(), "the sweep to begin")
    wait_for(lambda: (folder / "s.h5.journal").stat().st_size > 8000, "the first points")
    first = cluster.job(job.id)["BatchHost"]
    return job, next(n for n in ("cpu1", "cpu2", "cpu3") if n != first)


def check_sweep(folder: Path) -> None:
    with h5py.File(folder / "s.h5") as file:
        assert file["status"][:].tolist() == [1] * 200
        assert np.allclose(file["out_0"][:, 0], file["theta"][:].sum(axis=1), rtol=1e-15)


def test_a_sweep_outlives_a_node(cluster: Cluster, folder: Path) -> None:
    """A node with workers dies during the sweep: other workers evaluate its points."""
    job, other = sweep_of_200(cluster, folder)
    cluster.node("crash", other)
    assert job.exit_code(limit_s=90) == "0:0"
    check_sweep(folder)


def test_a_sweep_outlives_the_cable_of_a_node(netns_cluster: Cluster, folder: Path) -> None:
    """The node's workers keep running but cannot be reached; their late answers do no harm.

    Here each node has its own address and 127.0.0.1, as on a real cluster.
    """
    job, other = sweep_of_200(netns_cluster, folder)
    netns_cluster.node("cut", other)
    wait_for(lambda: not (folder / "s.h5.journal").exists(), "the sweep's end", 90)
    check_sweep(folder)
    netns_cluster.node("plug", other)
    assert job.exit_code(limit_s=90) == "0:0"


@pytest.mark.parametrize(("run_s", "wrapped"), [(0.5, False), (5.5, True)])
def test_a_job_of_one_minute_takes_what_runs_at_its_end(
    cluster: Cluster, folder: Path, run_s: float, wrapped: bool
) -> None:
    """A sweep that does not finish in time ends before the limit and continues in the next job.

    No evaluation runs again, though the second kind takes almost all of the time that is left. A
    shell around the sweep, which passes no signal on, changes nothing.
    """
    (folder / "counted.py").write_text(COUNTED)
    sweep = "farm sweep --param x=0:1 --design random:400 --seed 1 -o s.h5 --config"
    command = [*sweep.split(), json.dumps({"sleep": run_s})]
    if wrapped:
        command = ["bash", "-c", f"{shlex.join(command)}; exit $?"]
    words = ("farm.sh", "--workers", "1", "counted.py", "--", *command)
    job = Launched(cluster, folder, "-t1", "-N2", "-n2", *words)
    record = job.ended(limit_s=100)
    assert record["JobState"] != "TIMEOUT", job.output()
    assert re.search(r"^farm.sh: the job ends in (10|9|8) s: the farm ends$", job.output(), re.M)
    assert not (job.run_folder / "farm.json").exists()
    with h5py.File(folder / "s.h5") as file:
        done = int((file["status"][:] == 1).sum())
        assert file.attrs["state"] == "interrupted"
    evaluated = len((folder / "evaluated").read_text().splitlines())
    assert 0 < done == evaluated < 400, job.output()


@pytest.mark.parametrize(
    ("sleep", "longest", "points", "before_end", "again_each"),
    [(0.5, 0.9, 50, 8, 0), (1.5, 9.0, 18, 4, 1)],
    ids=["shorter than a tenth of the warning", "longer"],
)
@pytest.mark.timeout(240)
def test_chained_jobs_evaluate_little_again(
    cluster: Cluster,
    folder: Path,
    sleep: float,
    longest: float,
    points: int,
    before_end: int,
    again_each: int,
) -> None:
    """Each of the first two jobs is asked to end while its four workers have runs.

    The warning is 10 s. Some of the longer runs take more, and are lost with their jobs.
    """
    (folder / "counted.py").write_text(COUNTED)
    sweep = f"farm sweep --param x=0:1 --design random:{points} --seed 1 -o s.h5 --config".split()
    command = [*sweep, json.dumps({"sleep": sleep, "longest": longest})]
    chain = ("--job-name=chain", "--dependency=singleton", "-t1", "-N2", "-n4", "farm.sh")
    words = (*chain, "--workers", "2", "counted.py", "--", *command)
    jobs = [Launched(cluster, folder, *words) for _ in range(3)]

    def evaluated() -> list[list[str]]:
        """Return the rows of all evaluations so far: point, job, process of the worker."""
        path = folder / "evaluated"
        return [row.split() for row in path.read_text().splitlines()] if path.exists() else []

    def has_begun(job: Launched) -> bool:
        return sum(row[1] == job.id for row in evaluated()) >= before_end

    for job in jobs[:2]:
        wait_for(functools.partial(has_begun, job), f"job {job.id} to evaluate", 60)
        cluster.run(["scancel", "--signal=TERM", "--batch", job.id])
    assert jobs[2].exit_code(limit_s=100) == "0:0", jobs[2].output()
    with h5py.File(folder / "s.h5") as file:
        assert file["status"][:].tolist() == [1] * points
        assert np.allclose(file["out_0"][:, 0], file["theta"][:].sum(axis=1), rtol=1e-15)
        known = {str(x) for x in file["theta"][:, 0]}
    rows = evaluated()
    assert {row[0] for row in rows} == known
    assert {row[1] for row in rows} == {job.id for job in jobs}
    last = {row[0]: number for number, row in enumerate(rows)}
    again = Counter(
        (job, worker) for number, (x, job, worker) in enumerate(rows) if number != last[x]
    )
    print(f"{len(rows)} evaluations of {points} points in {len(jobs)} jobs; again: {again}")
    assert max(again.values(), default=0) <= again_each, [job.output() for job in jobs]


def test_a_farm_that_serves_until_the_limit_has_succeeded(cluster: Cluster, folder: Path) -> None:
    job = Launched(cluster, folder, "-t1", "-n2", "farm.sh", "model.py:total")
    assert job.ended(limit_s=100)["JobState"] == "COMPLETED", job.output()


def test_a_job_that_starts_again_after_the_loss_of_its_first_node(
    cluster: Cluster, folder: Path
) -> None:
    """SLURM itself would keep the job, because of --no-kill, on its second node with nothing to do.

    The step that watches the first node starts late here. The farm of the second start has a new
    port; the file of the first one is still there.
    """
    late = folder / "bin" / "srun"
    late.parent.mkdir()
    late.write_text(LATE_WATCH.format(srun=shutil.which("srun")))
    late.chmod(0o755)
    path = f"PATH={late.parent}:{os.environ['PATH']}"
    options = ("--requeue", f"--export=ALL,FARM_WATCH_S=2,{path}", "-N2", "-n2")
    job = Launched(cluster, folder, *options, "farm.sh", "model.py:total")
    job.workers(2)
    wait_for(lambda: "front door on" in job.output(), "the front door's address")
    first = cluster.job(job.id)["BatchHost"]
    cluster.node("crash", first)
    wait_for(lambda: job.output().count("front door on") == 2, "the second start", 200)
    assert cluster.job(job.id)["BatchHost"] != first
    ports = re.findall(r"front door on \S+, port (\d+);", job.output())
    connection = json.loads((job.run_folder / "farm.json").read_text())
    assert connection["url"].endswith(f":{ports[1]}")
    job.workers(2)
    job.cancel()
