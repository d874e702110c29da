"""Job lines that SLURM runs again: requeued, moved from a dead node, submitted twice."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from farm.experiment.state.events import SetUp, Told
from farm.experiment.state.journal import read_journal
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.launched import FARM, Launched, write_files

POINTS = 120
MODEL = """
import time
import farm

@farm.model(inputs={"x": 2}, outputs={"y": 1})
def total(x):
    time.sleep(0.2)
    return x.sum()
"""
SWEEP = f"--param x=0:1 --design random:{POINTS} --seed 1 -o s.h5".split()
CONFIG = """[common]
parnames = [a, b]
outcome_types = [continuous]
strategy_names = [sobol]
lb = [0, 0]
ub = [1, 1]
[sobol]
generator = SobolGenerator
min_asks = 60
[farm]
model = total
input.x[0] = a
input.x[1] = b
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "tune.ini").write_text(CONFIG)
    return tmp_path


def job_of(cluster: Cluster, folder: Path, how: str) -> Launched:
    """Submit a sweep: over the launcher's farm on two nodes, or by `farm sweep` alone."""
    if how == "launcher":
        command = ("model.py", "--", str(FARM), "sweep", *SWEEP)
        return Launched(cluster, folder, "-pscavenge", "-wcpu[1-2]", "-n4", "farm.sh", *command)
    line = shlex.join([str(FARM), "sweep", "model.py", "-n", "2", *SWEEP])
    words = ("--requeue", "--open-mode=append", "-n1", "--wrap", f"exec {line}")
    return Launched(cluster, folder, *words)


def wait_for_points(folder: Path, size: int = 6000) -> None:
    journal = folder / "s.h5.journal"
    wait_for(lambda: journal.exists() and journal.stat().st_size > size, "the first points", 60)


def start_now(job: Launched) -> None:
    """Spare a requeued job the two minutes that SLURM waits for its nodes.

    Only once the nodes are cleared: otherwise SLURM takes the end of the first run for that of the
    next. And not in the second in which a node cleared the job: slurmd compares that time with the
    new credential's in whole seconds, and refuses one that is not later ("credential revoked").
    """
    cluster = job.cluster

    def is_requeued() -> bool:
        shown = cluster.job(job.id)
        return shown["Restarts"] != "0" and shown["JobState"] == "PENDING"

    wait_for(is_requeued, f"job {job.id} to be requeued", 90)
    cluster.run(["scontrol", "update", f"JobId={job.id}", "StartTime=now+2"])


def check_sweep(folder: Path, job: Launched) -> int:
    """Check that each row is there once; return the number of points that were there before."""
    with h5py.File(folder / "s.h5") as file:
        assert file["status"][:].tolist() == [1] * POINTS
        assert file["attempts"][:].tolist() == [1] * POINTS
        assert np.allclose(file["out_0"][:, 0], file["theta"][:].sum(axis=1), rtol=1e-15)
    assert not (folder / "s.h5.journal").exists()
    found = re.search(rf"s\.h5 has this sweep: (\d+) of {POINTS} points", job.output())
    assert found is not None, job.output()
    return int(found[1])


def requeue(job: Launched) -> None:
    """Requeue a job as its user; it is held for a moment."""
    job.cluster.run(["scontrol", "requeuehold", job.id])
    job.cluster.wait_for_job(job.id, "PENDING")
    job.cluster.run(["scontrol", "release", job.id])


def pre_empt(job: Launched) -> None:
    """Start a job of higher priority on a node of this job, in partition scavenge.

    SLURM asks the job's steps to end, and requeues it after a grace time if it is still there.
    """
    node = job.cluster.job(job.id)["BatchHost"]
    words = ("-p", "cpu", "-w", node, "--exclusive", "--wrap", "true")
    job.cluster.wait_for_job(job.cluster.sbatch(*words), "COMPLETED", limit_s=60)


@pytest.mark.parametrize(("how", "away"), [("launcher", pre_empt), ("alone", requeue)])
@pytest.mark.timeout(240)
def test_a_requeued_sweep_continues(
    cluster: Cluster, folder: Path, how: str, away: Callable[[Launched], None]
) -> None:
    job = job_of(cluster, folder, how)
    wait_for_points(folder)
    away(job)
    start_now(job)
    record = job.ended(limit_s=120)
    assert (record["ExitCode"], record["Restarts"]) == ("0:0", "1"), str(record) + job.output()
    assert 0 < check_sweep(folder, job) < POINTS


@pytest.mark.timeout(240)
def test_a_sweep_moves_from_a_dead_node_to_another(cluster: Cluster, folder: Path) -> None:
    job = job_of(cluster, folder, "alone")
    wait_for_points(folder)
    first = cluster.job(job.id)["BatchHost"]
    cluster.node("crash", first)
    start_now(job)
    record = job.ended(limit_s=120)
    assert (record["ExitCode"], record["Restarts"]) == ("0:0", "1"), job.output()
    assert record["BatchHost"] != first
    assert 0 < check_sweep(folder, job) < POINTS


@pytest.mark.timeout(240)
def test_a_second_job_is_refused_and_a_third_finds_it_done(cluster: Cluster, folder: Path) -> None:
    job = job_of(cluster, folder, "alone")
    wait_for_points(folder, 0)
    second = job_of(cluster, folder, "alone")
    assert second.exit_code() == "2:0"
    assert "s.h5.lock is held by process" in second.output()
    assert job.exit_code() == "0:0", job.output()
    third = job_of(cluster, folder, "launcher")
    assert third.exit_code() == "0:0"
    assert "s.h5 is complete, 0 points failed" in third.output()


@pytest.mark.timeout(240)
def test_a_requeued_experiment_continues(cluster: Cluster, folder: Path) -> None:
    """With --new, too, the job begins one experiment only."""
    journal = folder / "tune.db"
    line = ("model.py", "--", str(FARM), "experiment", "run", "tune.ini", "--new", "--json")
    job = Launched(cluster, folder, "--requeue", "-N2", "-n4", "farm.sh", *line)

    def told() -> list[int]:
        events = list(read_journal(journal)) if journal.exists() else []
        return [id for e in events if isinstance(e, Told) for id in e.ids if id is not None]

    wait_for(lambda: len(told()) > 10, "the first outcomes", 60)
    cluster.run(["scontrol", "requeue", job.id])
    start_now(job)
    record = job.ended(limit_s=120)
    assert (record["ExitCode"], record["Restarts"]) == ("0:0", "1"), job.output()
    assert sorted(told()) == list(range(len(told())))
    assert sum(isinstance(event, SetUp) for event in read_journal(journal)) == 1
    found = re.search(r"^\{.*\}$", job.output(), re.M)
    assert found is not None, job.output()
    assert 0 < json.loads(found[0])["told"] < len(told())
