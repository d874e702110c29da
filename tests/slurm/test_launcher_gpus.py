"""Requests for GPUs and their launcher on a real SLURM, whose GPUs are simulated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.launched import FARM, Launched, write_files

REQUESTS = {
    "-N2 --gpus=4": "2+2",
    "-N2 --gpus=3": "2+1",
    "-N2 --gpus=2": "1+1",
    "-N2 -n4 --gpus=4": "2+2",
    "--ntasks-per-gpu=1 --gpus=2": "2",
    "-N2 --ntasks-per-gpu=1 --gpus=4": "2+2",
    "-N2 --ntasks-per-gpu=2 --gpus-per-node=1": "1+1",
    "-N1 --gres=gpu:2": "2",
    "-N1 --gres=gpu:toy:1": "1",
    "-N2 --gpus=toy:4": "2+2",
    "-N2 --exclusive --gpus-per-node=toy:2": "2+2",
    "-N2 --ntasks-per-node=2 --gpus-per-node=2 --mem-per-cpu=200": "2+2",
    "-N2 --ntasks-per-node=2 --gpus-per-task=1": "2+2",
    "-N2 -n3 --gpus-per-task=1": "2+1",
    "-n1 -c2 --gpus-per-task=2 --mem=1000": "2",
    "-N1 --gpus=2 --cpus-per-gpu=2": "2",
    "-N1 --gpus=2 --mem-per-gpu=200 --gpu-bind=single:1": "2",
    "-N1 --gpus-per-socket=1 --sockets-per-node=2": "2",
    "-p cpu -N1 : -p gpu -N2 --gpus=3": "2+1",
}
"""Requests of sbatch, and the GPUs of the job's nodes."""

MODEL = """
import subprocess
import farm

@farm.model(inputs={"x": 1}, outputs={"ranks": 1})
def own(x):
    command = ["srun", "-N1", "--ntasks-per-node=2", "echo", "rank"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return run.stdout.count("rank") + 10 * len(run.stderr)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with models that the nodes can read."""
    write_files(tmp_path)
    (tmp_path / "own.py").write_text(MODEL)
    return tmp_path


@pytest.mark.parametrize(("request_", "gpus"), REQUESTS.items())
def test_each_gpu_of_the_job_gets_a_worker(
    cluster: Cluster, folder: Path, request_: str, gpus: str
) -> None:
    """A trial says that the workers' steps can start, and then they do."""
    options = ("-p", "gpu", *request_.split())
    kinds: tuple[str, ...] = ("--gpus", "auto", "model.py:device")
    if ":" in options:
        kinds = ("model.py:total", "+", *kinds)
    check = [str(FARM), "launcher", "--check", "sbatch", *options, "farm.sh", *kinds]
    assert "1 worker for each GPU" in cluster.run(check, cwd=folder)
    trial = Launched(cluster, folder, *options, "farm.sh", "--check", *kinds)
    assert trial.exit_code() == "0:0", trial.output()
    job = Launched(cluster, folder, *options, "farm.sh", *kinds)
    each = [int(count) for count in gpus.split("+")]
    rows = [row for row in job.workers(sum(each) + (":" in options)) if row["device"]]
    by_host: dict[str, list[str]] = {}
    for row in rows:
        by_host.setdefault(row["host"], []).append(row["device"])
    if cluster.has_host_names:
        assert sorted(map(sorted, by_host.values()), reverse=True) == [
            [str(i) for i in range(count)] for count in each
        ]
    job.cancel()


@pytest.mark.parametrize(
    ("request_", "words", "groups"),
    [
        ("-N2 -n4 --ntasks-per-node=2 --gpus=4", "--mpi 2", 2),
        ("-N2 --ntasks-per-node=2 --gpus-per-node=2", "--mpi 2", 2),
        ("-N2 --ntasks-per-node=2 --gpus-per-task=1", "--mpi 2", 2),
        ("-N1 --ntasks-per-gpu=2 --gpus=2", "--mpi 2", 2),
        ("-N1 -n2 --gpus=1", "--mpi 1", 2),
    ],
)
def test_groups_of_ranks_share_the_gpus(
    cluster: Cluster, folder: Path, request_: str, words: str, groups: int
) -> None:
    """Otherwise the first group holds all of them, and the second one waits for ever."""
    options = ("-p", "gpu", *request_.split(), "farm.sh", "--check")
    job = Launched(cluster, folder, *options, *words.split(), "model.py:total")
    assert job.exit_code() == "0:0", job.output()
    assert f"{groups} groups of" in job.output()
    assert "disabled, retrying" not in job.output()


def test_check_names_a_step_that_cannot_start(cluster: Cluster, folder: Path) -> None:
    """The second group of ranks waits for the processor that the first step of the job holds."""
    hold = "srun -n1 --exact sleep 60 & sleep 2; FARM_PROBE_S=5 bash farm.sh --check {}"
    words = ("-n2", "--wrap", hold.format("--mpi 2 model.py:total"))
    job = Launched(cluster, folder, *words)
    assert job.exit_code() == "2:0", job.output()
    assert "not all steps of the workers can start in this job" in job.output()


def test_check_says_when_the_job_has_no_such_node(cluster: Cluster, folder: Path) -> None:
    check = [str(FARM), "launcher", "--check", "sbatch", "-p", "gpu", "--gpus=9", "farm.sh"]
    with pytest.raises(subprocess.CalledProcessError, match="returned non-zero"):
        cluster.run([*check, "--gpus", "auto", "model.py:device"], cwd=folder)


def test_a_model_starts_its_own_ranks_with_srun(cluster: Cluster, folder: Path) -> None:
    """The worker's step has one task on each node, which is no limit for a step of the model."""
    words = ("farm.sh", "--workers", "1", "own.py:own", "--", "farm", "call", "1")
    job = Launched(cluster, folder, "-N1", "-n2", *words)
    assert job.exit_code() == "0:0", job.output()
    assert "ranks = [2.]" in job.output()
