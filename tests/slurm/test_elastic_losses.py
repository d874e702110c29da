"""`farm serve --slurm` when nodes, cables and the front door's machine fail."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.elastic import FARM, IN_JOBS_ONLY, ONE_KIND, TWO_NODES, Elastic, elastic_on
from tests.support.time_limits import scaled

STUCK = """
import time
from pathlib import Path
import farm

class stuck(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        try:
            Path(f"began-{inputs['x'][0]:g}").touch(exist_ok=False)
        except FileExistsError:
            return 2 * inputs["x"]
        time.sleep(config["sleep"])
        return 0 * inputs["x"] - 1
"""
"""A model whose first call with each x runs long and answers wrong; later ones are quick."""


def is_alive(row: dict[str, Any]) -> bool:
    """Whether a worker's process runs; hosts of the cluster share this machine's pids."""
    try:
        os.kill(row["pid"], 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(180)
def test_a_node_that_crashes_loses_nothing_and_is_replaced(elastic: Elastic) -> None:
    """SLURM needs half a minute to notice it here, and longer on a real cluster."""
    elastic.serve(TWO_NODES)
    lost, kept = elastic.wait_for_workers(2)
    assert lost["host"] != kept["host"]
    with elastic.calling("double", 60, 0.3) as answers:
        wait_for(lambda: elastic.status()["done"] >= 5, "some answers")
        elastic.cluster.node("crash", lost["host"])
        wait_for(lambda: elastic.events("lost"), "word of the loss")

        def text() -> str:
            return elastic.run(*FARM, "status", "--to", "run")

        assert f"lost {lost['name']}: its connection was lost" in text()
        # The autoscaler notices it at its next step, which may come after an sbatch.
        wait_for(lambda: re.search(r"small +deserted +RUNNING", text()), "the job's new phase")
        assert answers() == [2.0 * n for n in range(60)]

    def replaced() -> bool:
        hosts = {row["host"] for row in elastic.status()["workers"]}
        return len(hosts) == 2 and lost["host"] not in hosts

    wait_for(replaced, "another job", 60)
    state = elastic.status()
    assert state["failed"] == 0
    assert [e["text"] for e in state["events"] if e["event"] == "lost"] == [
        "its connection was lost"
    ]
    elastic.stop()
    assert elastic.jobs() == {}


@pytest.mark.timeout(240)
def test_a_cut_cable_leaves_an_old_copy_that_ends_itself(netns_cluster: Cluster) -> None:
    """SLURM restarts the job elsewhere while its first copy lives; both have the same id."""
    with elastic_on(netns_cluster, "cut") as elastic:
        (elastic.folder / "stuck.py").write_text(IN_JOBS_ONLY + STUCK)
        plan = ONE_KIND.replace("max_jobs = 3", "workers = 2\nmax_jobs = 1")
        elastic.serve(plan.replace("double", "stuck"))
        old = elastic.wait_for_workers(2)
        with elastic.calling("stuck", 2, 300.0) as answers:
            began = [elastic.folder / f"began-{n}" for n in range(2)]
            wait_for(lambda: all(path.exists() for path in began), "both calls to run")
            netns_cluster.node("cut", old[0]["host"])
            assert answers() == [0.0, 2.0]
        new = elastic.wait_for_workers(2)
        assert {row["job"] for row in new} == {old[0]["job"]}
        assert old[0]["host"] not in {row["host"] for row in new}
        assert all(is_alive(row) for row in old)
        wait_for(lambda: not any(is_alive(row) for row in old), "the old copy's end", 90)
        netns_cluster.node("plug", old[0]["host"])
        for verb in ("stop", "start"):  # slurmd; by itself, SLURM would notice a minute later
            netns_cluster.node(verb, old[0]["host"])

        def hosts() -> set[str]:
            return {row["host"] for row in elastic.status()["workers"]}

        wait_for(lambda: old[0]["host"] not in hosts(), "the rest of the old copy to leave")
        (queue,) = [q for q in elastic.status()["queues"] if q["operation"] == "evaluate"]
        assert (queue["done"], queue["failed"]) == (2, 0)
        elastic.stop()
        assert elastic.jobs() == {}


@pytest.mark.timeout(240)
def test_workers_find_a_front_door_on_another_machine(netns_cluster: Cluster) -> None:
    with elastic_on(netns_cluster, "moved") as elastic:
        elastic.serve(TWO_NODES, "--no-supervise")
        before = {row["job"] for row in elastic.wait_for_workers(2)}
        wait_for(lambda: len(elastic.events("started")) == 2, "the farm to know them")
        elastic.kill()
        elastic.host = "gpu1"
        elastic.serve(TWO_NODES, "--no-supervise")
        wait_for(lambda: len(elastic.events("adopted")) == 2, "the jobs to be found")
        with elastic.calling("double", 20, 0.1) as answers:
            assert answers() == [2.0 * n for n in range(20)]
        assert {row["job"] for row in elastic.wait_for_workers(2)} == before
        assert elastic.events("submitted") == []
        elastic.stop()
        assert elastic.jobs() == {}


@pytest.mark.timeout(240)
def test_a_call_too_long_for_any_job_fails_with_the_limit(elastic: Elastic) -> None:
    """A job that ended with it would be followed by others like it, for as many tries."""
    elastic.serve(ONE_KIND.replace("max_jobs = 3", 'max_jobs = 1\ntime = "1"'))
    call = [*FARM, "call", "--to", "run", "--model", "double", "1", "--config", '{"sleep": 300}']
    with elastic.start(*call) as calling:
        try:
            _, errors = calling.communicate(timeout=scaled(150))
        finally:
            calling.kill()
    assert re.search(
        r"the call needs more than [\d.]+ s: .* its job, which leaves a worker", errors
    )
    assert "raise the limit (`time` in the file of --cluster, --time of sbatch)" in errors
    assert len(elastic.events("submitted")) == 1
    (queue,) = [q for q in elastic.status()["queues"] if q["operation"] == "evaluate"]
    assert (queue["done"], queue["failed"], queue["queued"]) == (0, 1, 0)
    elastic.stop()
