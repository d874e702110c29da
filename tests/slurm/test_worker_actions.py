"""Workers in jobs of SLURM on other nodes: what they print, restart and drain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.elastic import FARM, TWO_NODES, Elastic
from tests.slurm.launched import FARM as PROGRAM
from tests.slurm.launched import Launched, host_of, write_files

LOUD = """
import time
import farm

@farm.model(inputs={"x": 1}, outputs={"y": 1})
def loud(x, config):
    print("solves for", x[0], flush=True)
    time.sleep(config.get("sleep", 0.0))
    return 2 * x
"""

Run = Callable[..., str]
"""Runs `farm WORDS` at a farm, and returns what it prints."""


def rows_of(run: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run("status", "--json"))["workers"]
    return rows


def act_on_workers(run: Run, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """See what two workers print, restart one in the middle of a call; return the new rows."""
    assert "y = [6.]" in run("call", "3", "--model", "loud")
    logs = {row["name"]: run("logs", row["name"]) for row in rows}
    assert sum("solves for 3.0" in text for text in logs.values()) == 1, logs
    assert all(row["name"] in run("logs") for row in rows)
    sick, other = rows
    assert f"{sick['name']} is killed and started again" in run("restart", sick["name"])

    def replaced() -> list[dict[str, Any]]:
        now = rows_of(run)
        names = {row["name"] for row in now}
        return now if len(now) == 2 and sick["name"] not in names else []

    now = wait_for(replaced, "another worker in its place")
    (new,) = [row for row in now if row["name"] != other["name"]]
    assert other["name"] in {row["name"] for row in now}
    assert (new["host"], new["job"], new["restarts"]) == (sick["host"], sick["job"], 1)
    lost = json.loads(run("failures", "--json"))["losses"]
    assert [(row["count"], row["worker"]) for row in lost] == [(1, sick["name"])]
    assert "restarted by the farm's owner" in lost[0]["text"]
    assert "farm starts a worker process" in run("logs", sick["name"])
    return now


@pytest.mark.timeout(240)
def test_in_jobs_of_an_elastic_farm(elastic: Elastic) -> None:
    """A worker that is drained ends its job; the farm submits another for the least number."""
    (elastic.folder / "double.py").write_text(LOUD)
    elastic.serve(TWO_NODES)
    rows = elastic.wait_for_workers(2)
    assert len({row["job"] for row in rows}) == 2

    def run(*words: str) -> str:
        return elastic.run(*FARM, *words, "--to", "run")

    drained, _ = act_on_workers(run, rows)
    run("drain", drained["name"])
    wait_for(lambda: drained["job"] not in elastic.jobs(), "the end of its job", 60)

    def others() -> bool:
        now = rows_of(run)
        return len(now) == 2 and drained["job"] not in {row["job"] for row in now}

    wait_for(others, "a worker in another job", 60)
    elastic.stop()
    assert elastic.jobs() == {}


@pytest.mark.timeout(240)
def test_in_a_job_of_the_launcher(cluster: Cluster, tmp_path: Path) -> None:
    """A worker that is drained leaves its place empty; the others go on."""
    write_files(tmp_path)
    (tmp_path / "loud.py").write_text(LOUD)
    job = Launched(cluster, tmp_path, "-N2", "-n2", "farm.sh", "loud.py")
    rows = job.workers(2)
    if cluster.has_host_names:
        assert len({host_of(row) for row in rows}) == 2

    def run(*words: str) -> str:
        return cluster.run([str(PROGRAM), *words, "--to", str(job.run_folder)], cwd=tmp_path)

    rows = act_on_workers(run, rows)
    (far,) = [row for row in rows if row["restarts"] == 1]
    run("drain", far["name"])
    wait_for(lambda: len(rows_of(run)) == 1, "its end")
    assert "y = [8.]" in run("call", "4")
    assert cluster.job(job.id)["JobState"] == "RUNNING"
    job.cancel()
