"""`sbatch launchers/farm.sh` on a real SLURM: answers, ends, losses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.slurm.cluster import Cluster, wait_for

FARM_SH = Path(__file__).parents[2] / "launchers" / "farm.sh"
FARM = Path(sys.executable).parent / "farm"

MODEL = """
import os, socket, time
import farm

@farm.model(inputs={"x": 2}, outputs={"y": 1})
def total(x, config):
    time.sleep(config.get("sleep", 0.0))
    return x.sum()

@farm.model(inputs={"x": 1}, outputs={"device": 1})
def device(x):
    return float(os.environ["CUDA_VISIBLE_DEVICES"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with models that the nodes can read."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "broken.py").write_text("raise ValueError('no licence')\n")
    return tmp_path


def submit(cluster: Cluster, folder: Path, *words: str, sbatch: tuple[str, ...] = ()) -> str:
    """Submit the launcher from `folder` and return the job's id."""
    command = ["sbatch", "--parsable", f"--output={folder}/%j.out", *sbatch]
    given = ["env", f"FARM={FARM}", *command, str(FARM_SH), *words]
    return cluster.run(given, cwd=folder).strip()


def output(folder: Path, job: str) -> str:
    path = folder / f"{job}.out"
    return path.read_text() if path.exists() else ""


def ended(cluster: Cluster, folder: Path, job: str, limit_s: float = 60.0) -> dict[str, str]:
    """Wait until a job has ended and return SLURM's record of it."""
    states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    try:
        return cluster.wait_for_job(job, *states, limit_s=limit_s)
    except AssertionError as error:
        error.add_note(output(folder, job))
        raise


def test_a_command_runs_in_the_job_and_ends_it_with_its_status(
    cluster: Cluster, folder: Path
) -> None:
    command = f"{FARM} call 1,2; {FARM} status --json; echo url $FARM_URL; hostname; exit 3"
    words = ("model.py:total", "--", "bash", "-c", command)
    job = submit(cluster, folder, *words, sbatch=("-N2", "-n4"))
    assert ended(cluster, folder, job)["ExitCode"] == "3:0"
    text = output(folder, job)
    assert "y = [3.]" in text
    status = json.loads(re.search(r"^\{.*^\}|^\{.*\}$", text, re.M | re.S)[0])  # type: ignore[index]
    assert 1 <= len(status["workers"]) <= 4
    assert re.search(r"^url http://farm:[\w-]+@cpu1:\d+$", text, re.M) or not cluster.has_host_names
    assert "ssh -N -L 4242:" in text
    assert f"farm url {folder / f'farm-{job}'}" in text
    assert "http://farm:" not in text.replace("url http://farm:", "")
    assert "Killed" not in text
    assert not (folder / f"farm-{job}" / "farm.json").exists()


def test_workers_come_on_all_nodes_as_many_as_there_is_room_for(
    cluster: Cluster, folder: Path
) -> None:
    job = submit(cluster, folder, "--cpus", "2", "model.py:total", sbatch=("-N3", "--exclusive"))

    def workers() -> list[str]:
        text = cluster.run([str(FARM), "status", "--json", "--to", f"farm-{job}"], cwd=folder)
        return [row["name"] for row in json.loads(text)["workers"]]

    wait_for(lambda: (folder / f"farm-{job}" / "farm.json").exists(), "the front door")
    wait_for(lambda: len(workers()) == 6, "two workers on each of three nodes")
    if cluster.has_host_names:
        assert {name.partition("/")[0] for name in workers()} == {"cpu1", "cpu2", "cpu3"}
    cluster.run(["scancel", job])
    assert ended(cluster, folder, job)["JobState"] == "CANCELLED"
    wait_for(lambda: not (folder / f"farm-{job}" / "farm.json").exists(), "the farm's end")


def test_gpus_get_a_worker_each(cluster: Cluster, folder: Path) -> None:
    command = f"{FARM} status --json; {FARM} call 1"
    words = ("--gpus", "auto", "model.py:device", "--", "bash", "-c", command)
    sbatch = ("-p", "gpu", "-N1", "--gres=gpu:2")
    job = submit(cluster, folder, *words, sbatch=sbatch)
    assert ended(cluster, folder, job)["ExitCode"] == "0:0", output(folder, job)
    shown = set(re.findall(r'"device": ?"(\d)"', output(folder, job)))
    assert shown in ({"0"}, {"1"}, {"0", "1"})  # the second one may join later
    assert re.search(r"device = \[[01]\.\]", output(folder, job))


def test_a_model_that_cannot_be_loaded_ends_the_job_with_its_error(
    cluster: Cluster, folder: Path
) -> None:
    job = submit(cluster, folder, "broken.py", sbatch=("-N2",))
    assert ended(cluster, folder, job)["JobState"] == "FAILED"
    assert "raised ValueError: no licence" in output(folder, job)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "which MODEL?"),
        (("--speed", "model.py"), "there is no option --speed"),
        (("--cpus", "many", "model.py"), "--cpus is many; expected a number"),
    ],
)
def test_mistakes_are_told_in_one_line(
    cluster: Cluster, folder: Path, words: tuple[str, ...], expected: str
) -> None:
    job = submit(cluster, folder, *words)
    assert ended(cluster, folder, job)["ExitCode"] == "2:0"
    assert expected in output(folder, job)


def sweep_of_200(cluster: Cluster, folder: Path) -> tuple[str, str]:
    """Start a sweep in a job of three nodes; return the job and a node that is not its first."""
    sweep = "sweep --param x=0:1 --design random:200 --seed 1 -o s.h5"
    command = (str(FARM), *sweep.split(), "--config", '{"sleep": 0.2}')
    words = ("--workers", "2", "model.py:total", "--", *command)
    job = submit(cluster, folder, *words, sbatch=("-N3", "-n3"))
    wait_for(lambda: (folder / "s.h5.journal").exists(), "the sweep to begin")
    wait_for(lambda: (folder / "s.h5.journal").stat().st_size > 8000, "the first points")
    first = cluster.job(job)["BatchHost"]
    return job, next(n for n in ("cpu1", "cpu2", "cpu3") if n != first)


def check_sweep(folder: Path) -> None:
    with h5py.File(folder / "s.h5") as file:
        assert file["status"][:].tolist() == [1] * 200
        assert np.allclose(file["out_0"][:, 0], file["theta"][:].sum(axis=1), rtol=1e-15)


def test_a_sweep_outlives_a_node(cluster: Cluster, folder: Path) -> None:
    """A node with workers dies during the sweep: other workers evaluate its points."""
    job, other = sweep_of_200(cluster, folder)
    cluster.node("crash", other)
    assert ended(cluster, folder, job, limit_s=90)["ExitCode"] == "0:0"
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
    assert ended(netns_cluster, folder, job, limit_s=90)["ExitCode"] == "0:0"
