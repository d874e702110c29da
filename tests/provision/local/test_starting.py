"""What a supervisor passes to its processes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.provision.batch.allocation import labels
from farm.provision.local.starting import arguments_of, environment_of
from farm.provision.local.supervisor import WorkerSettings

RUN = Path("/run/farm")


def settings(**more: Any) -> WorkerSettings:
    plain = WorkerSettings(["m.py"], 2, connect=RUN / "workers.json", logs=RUN / "logs")
    return replace(plain, **more)


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
        "restarts": "2",
        "log": "worker-node1-7-1.log",
    }


def test_a_log_outside_the_run_folder_is_not_named() -> None:
    elsewhere = settings(logs=Path("/scratch/logs"))
    log = Path("/scratch/logs/worker-node1-7-1.log")
    environment = environment_of(elsewhere, 1, log=log, supervisor="s", restarts=0)
    assert environment["FARM_WORKER_LOG"] == ""
