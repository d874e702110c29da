"""The nodes of a job, and its identity after a restart."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.systems.nodes import identified_by, processes_per_node, spreads


def kind(**values: Any) -> WorkerKind:
    return WorkerKind(name="small", models=["m.py"], **values)


@pytest.mark.parametrize(
    ("values", "processes"),
    [
        ({"workers": 4}, 4),
        ({"workers": 2, "gpus": 3}, 6),
        ({"ranks": 8, "workers": 2, "nodes": 4}, 4),
        ({"ranks": 5, "nodes": 2}, 3),
    ],
)
def test_processes_of_a_node(values: dict[str, Any], processes: int) -> None:
    assert processes_per_node(kind(**values)) == processes


def test_only_processes_without_mpi_start_on_each_node() -> None:
    assert spreads(kind(nodes=2))
    assert not spreads(kind())
    assert not spreads(kind(nodes=2, ranks=4))


def test_a_job_that_starts_again_has_its_id_and_another_restart(tmp_path: Path) -> None:
    date = tmp_path / "date"
    date.write_text("#!/bin/sh\nread -r now <now && echo $((now + 1)) >now && echo $now\n")
    date.chmod(0o755)
    (tmp_path / "now").write_text("100\n")
    lines = [*identified_by("PBS_JOBID"), "echo $FARM_JOB $FARM_JOB_RESTART"]

    def said() -> str:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PBS_JOBID": "7.server"}
        command = ["bash", "-c", "\n".join(lines)]
        return subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)

    assert [said(), said()] == ["7.server 100\n", "7.server 101\n"]
