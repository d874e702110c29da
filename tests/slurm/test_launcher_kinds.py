"""Kinds of workers in one job of the launcher, on a real SLURM: components, MPI, Dask, joining."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.worker.mpi.world import STARTS_WITHIN_S
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.launched import FARM, Launched, host_of, workers_of, write_files
from tests.slurm.test_mpi import MODEL as MPI_MODEL
from tests.support.time_limits import scaled

BOTH = "farm call --model total 1,2; farm call --model device 1; farm status --json"
"""A command that needs a worker of each of two kinds."""

STARTS_TWICE_S = scaled(60.0) + 2 * STARTS_WITHIN_S
"""Time limit for groups of ranks: farm starts a group again whose MPI does not start in time."""

ANSWERS = re.compile(r"^y = \[3\.\]$.*^device = \[[01]\.\]$", re.DOTALL | re.MULTILINE)
"""What it prints, and between the lines those of the front door about workers that join."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with models that the nodes can read."""
    write_files(tmp_path)
    (tmp_path / "solver.py").write_text(MPI_MODEL)
    return tmp_path


def test_a_kind_runs_on_all_components_of_a_heterogeneous_job(
    cluster: Cluster, folder: Path
) -> None:
    job = Launched(cluster, folder, "-N1", ":", "-N2", "-c2", "farm.sh", "model.py:total")
    rows = job.workers(3)
    if cluster.has_host_names:
        assert {host_of(row) for row in rows} == {"cpu1", "cpu2", "cpu3"}
    text = job.output()
    assert "model.py:total: 1 worker with 1 CPU each on 1 node\n" in text
    assert "model.py:total: 2 workers with 2 CPUs each on 2 nodes\n" in text
    job.cancel()


def test_each_component_gets_its_kind(cluster: Cluster, folder: Path) -> None:
    sbatch = ("-N1", "-n2", ":", "-p", "gpu", "-N1", "--gpus-per-node=2")
    words = ("model.py:total", "+", "--gpus", "auto", "model.py:device")
    command = ("--", "bash", "-c", BOTH + "; sleep 100")
    job = Launched(cluster, folder, *sbatch, "farm.sh", *words, *command)
    rows = job.workers(4)
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("1", "2")}
    assert [row["models"] for row in by_kind["1"]] == [["total"]] * 2
    assert {row["device"] for row in by_kind["2"]} == {"0", "1"}
    if cluster.has_host_names:
        assert {host_of(row) for row in by_kind["1"]} == {"cpu1"}
        assert {host_of(row) for row in by_kind["2"]} == {"gpu1"}
    assert all(0 < row["ends_in_s"] < 1800 for row in rows)
    wait_for(lambda: re.search(ANSWERS, job.output()), "the answers")
    job.cancel()


def test_kinds_share_the_nodes_of_another_job(cluster: Cluster, folder: Path) -> None:
    sbatch = ("-p", "gpu", "-N1", "-n4", "--gpus-per-node=2")
    words = ("--workers", "2", "model.py:total", "+", "--gpus", "auto", "model.py:device")
    job = Launched(cluster, folder, *sbatch, "farm.sh", *words, "--", "bash", "-c", BOTH)
    assert job.exit_code() == "0:0", job.output()
    assert re.search(ANSWERS, job.output())


def test_a_kind_that_cannot_be_loaded_ends_the_job_although_the_other_works(
    cluster: Cluster, folder: Path
) -> None:
    (folder / "broken.py").write_text("raise ValueError('no licence')\n")
    words = ("model.py:total", "+", "broken.py", "--", "sleep", "100")
    job = Launched(cluster, folder, "-N1", ":", "-N1", "farm.sh", *words)
    assert job.ended()["JobState"] == "FAILED"
    assert "raised ValueError: no licence" in job.output()


def test_groups_of_ranks_are_steps_of_the_job(cluster: Cluster, folder: Path) -> None:
    words = ("--mpi", "4", "solver.py", "--", "farm", "call", "1,2")
    job = Launched(cluster, folder, "-N2", "-n4", "--ntasks-per-node=2", "farm.sh", *words)
    assert job.exit_code(STARTS_TWICE_S) == "0:0", job.output()
    text = job.output()
    assert "solver.py: 1 group of 4 ranks with 1 CPU each on 2 nodes" in text
    assert "y = [4. 8.]" in text
    assert "hosts = [2.]" in text or not cluster.has_host_names
    assert not (job.run_folder / "farm.json").exists()


def test_groups_of_ranks_in_a_component_beside_another_kind(cluster: Cluster, folder: Path) -> None:
    call = "farm call --model total 1,2; farm call --model Total 1,2"
    words = ("model.py:total", "+", "--mpi", "2", "solver.py", "--", "bash", "-c", call)
    job = Launched(cluster, folder, "-N1", ":", "-N2", "-n4", "farm.sh", *words)
    assert job.exit_code(STARTS_TWICE_S) == "0:0", job.output()
    assert "solver.py: 2 groups of 2 ranks" in job.output()
    assert "y = [3.]" in job.output()
    assert "y = [2. 4.]" in job.output()


@pytest.fixture
def dask_scheduler(cluster: Cluster, folder: Path) -> Iterator[str]:
    """A Dask cluster of one worker on the login node; yields its scheduler file."""
    dask = [sys.executable, "-m", "dask"]
    file = str(folder / "scheduler.json")
    scheduler = ["scheduler", "--scheduler-file", file, "--port", "0", "--no-dashboard"]
    worker = ["worker", "--scheduler-file", file, "--no-dashboard", "--no-nanny", "--nthreads", "1"]
    with (
        subprocess.Popen([*dask, *scheduler], cwd=folder, stderr=subprocess.DEVNULL) as first,
        subprocess.Popen([*dask, *worker], cwd=folder, stderr=subprocess.DEVNULL) as second,
    ):
        try:
            yield file
        finally:
            second.kill()
            first.kill()


def test_models_run_on_a_dask_cluster(cluster: Cluster, folder: Path, dask_scheduler: str) -> None:
    wait_for(Path(dask_scheduler).exists, "Dask's scheduler")
    words = ("--dask", dask_scheduler, "model.py:total", "--", "farm", "call", "1,2")
    job = Launched(cluster, folder, "-n1", "farm.sh", *words)
    assert job.exit_code() == "0:0", job.output()
    assert "y = [3.]" in job.output()


@pytest.fixture
def front_door(cluster: Cluster, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A farm on the login node without workers; its run folder is `farm-run`."""
    serve = ["serve", "--workers", "0", "--host", "0.0.0.0", "--port", "0"]
    with cluster.start([str(FARM), *serve], cwd=folder) as farm:
        try:
            wait_for((folder / "farm-run" / "farm.json").exists, "the farm")
            yield farm
        finally:
            farm.terminate()
            farm.communicate()


def test_jobs_of_workers_join_a_farm_and_end_with_it(
    cluster: Cluster, folder: Path, front_door: subprocess.Popen[str]
) -> None:
    words = ("farm.sh", "--to", "farm-run")
    jobs = [
        Launched(cluster, folder, "-N2", "-n4", *words, "model.py:total"),
        Launched(cluster, folder, "-N1", "-n2", *words, "--mpi", "2", "solver.py"),
    ]

    def outputs() -> str:
        return "\n".join(job.output() for job in jobs)

    workers_of(cluster, folder / "farm-run", 5, outputs, STARTS_TWICE_S)
    front_door.terminate()
    assert [job.exit_code() for job in jobs] == ["0:0", "0:0"]


def test_a_cancelled_job_of_workers_drains_them(
    cluster: Cluster, folder: Path, front_door: subprocess.Popen[str]
) -> None:
    """Its workers finish the call that they run, and farm has nothing to repeat."""
    words = ("farm.sh", "--to", "farm-run", "model.py:total")
    job = Launched(cluster, folder, "-N1", "-n1", *words)
    run_folder = folder / "farm-run"
    workers_of(cluster, run_folder, 1)
    call = [str(FARM), "call", "--to", str(run_folder), "1,2", "--config", '{"sleep": 2}']
    with cluster.start(call, cwd=folder) as calling:
        try:
            wait_for(lambda: workers_of(cluster, run_folder, 1)[0]["in_flight"], "the call to run")
            cluster.run(["scancel", "--batch", "--signal=TERM", job.id])
            answer, _ = calling.communicate(timeout=scaled(30))
        finally:
            calling.kill()
    assert "y = [3.]" in answer
    job.ended()
    workers_of(cluster, run_folder, 0)
    events = cluster.run([str(FARM), "status", "--json", "--to", str(run_folder)])
    assert '"drained"' in events
    assert '"lost"' not in events
