"""What a supervisor passes to its processes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.provision.batch.allocation import labels
from farm.provision.local.group import Launch
from farm.provision.local.starter import WorkerSettings, arguments_of, environments_of

RUN = Path("/run/farm")


def settings(**more: Any) -> WorkerSettings:
    plain = WorkerSettings(["m.py"], 2, connect=RUN / "workers.json", logs=RUN / "logs")
    return replace(plain, **more)


def environment_of(settings: WorkerSettings, number: int, **more: Any) -> dict[str, str]:
    shared, own = environments_of(settings, number, **more)
    assert shared.keys().isdisjoint(own)
    return shared | own


def test_arguments_name_models_and_the_farm() -> None:
    words = arguments_of(settings(devices=("3", "5"), ends_at=math.inf), 3)
    assert words[:3] == ["m.py", "--connect", "/run/farm/workers.json"]
    assert words[3:] == ["--lost-after", "60.0", "--device", "5", "--ends-at", "inf"]


def test_a_process_shows_its_supervisor_and_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "NPROC"):
        monkeypatch.delenv(name, raising=False)
    log = RUN / "logs" / "worker-node1-7-1.log"
    environment = environment_of(
        settings(cpus=4, started_by="mark"), 1, log=log, supervisor="node1/7-a", restarts=2
    )
    assert environment["OMP_NUM_THREADS"] == environment["NPROC"] == "4"
    assert environment["FARM_REPLICA"] == "1"
    own = {name: value for name, value in environment.items() if name.startswith("FARM_")}
    assert labels(own) == {
        "started_by": "mark",
        "supervisor": "node1/7-a",
        "seats": "2",
        "restarts": "2",
        "log": "worker-node1-7-1.log",
    }


def test_a_log_outside_the_run_folder_is_not_named() -> None:
    elsewhere = settings(logs=Path("/scratch/logs"))
    log = Path("/scratch/logs/worker-node1-7-1.log")
    environment = environment_of(elsewhere, 1, log=log, supervisor="s", restarts=0)
    assert environment["FARM_WORKER_LOG"] == ""


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_CPUS_ON_NODE": "4",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_JOB_CPUS_PER_NODE": "4",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_MPI_TYPE": "pmix",
}
"""Facts about a job and a step, and a choice of the user."""

SIZES = """
    SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_SOCKET
    SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_GPUS_PER_SOCKET SLURM_GPU_BIND
    SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_CPUS_PER_GPU SLURM_TRES_PER_TASK
    SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_GRES SLURM_STEP_GRES
    SLURM_OVERCOMMIT
"""


def test_a_models_own_srun_takes_no_request_from_the_workers_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in [*STEP.items(), *((name, "1") for name in SIZES.split())]:
        monkeypatch.setenv(name, value)
    kept = environment_of(settings(), 0, log=RUN / "log", supervisor="s", restarts=0)
    assert {name: v for name, v in kept.items() if name.startswith(("SLURM_", "SRUN_"))} == STEP
    group = settings(launch=Launch(2, "srun -n {ranks}"))
    kept = environment_of(group, 0, log=RUN / "log", supervisor="s", restarts=0)
    assert kept["SLURM_GPUS_PER_TASK"] == "1"
