"""Several kinds of workers in one farm, MPI among them; several farms and users on one node."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest

from farm.provision.batch.allocation import seconds_of
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.elastic import (
    FARM,
    IN_JOBS_ONLY,
    ONE_KIND,
    TWO_KINDS,
    Elastic,
    elastic_on,
    python_of,
)
from tests.support.time_limits import scaled

BRIEF = """
[[workers]]
name = "brief"
models = ["quadruple.py"]
partition = "short"
min_jobs = 1
max_jobs = 1
"""


def test_three_models_have_partitions_of_their_own(elastic: Elastic) -> None:
    # Long enough that the first job is there when the last one comes, also on a busy machine.
    idle = f"idle_timeout_s = {scaled(8.0):.0f}"
    elastic.serve(TWO_KINDS.replace("idle_timeout_s = 3", idle) + BRIEF)
    rows = elastic.wait_for_workers(4)
    where = {(row["kind"], row["host"][:3], *row["models"]) for row in rows}
    assert where == {
        ("cheap", "cpu", "double"),
        ("fast", "gpu", "triple"),
        ("brief", "cpu", "quadruple"),
    }
    (fast,) = [row for row in rows if row["kind"] == "fast"]
    assert fast["device"]
    assert 200 < fast["ends_in_s"] <= 300
    jobs = elastic.run("squeue", "-h", "-o", "%i %P %C %L").splitlines()
    told = {job: rest for job, *rest in (line.split() for line in jobs)}
    kinds = {row["kind"]: told[row["job"]][0] for row in rows}
    assert kinds == {"cheap": "cpu", "fast": "gpu", "brief": "short"}
    _, cpus, left = told[fast["job"]]
    assert cpus == "2"
    left_s = seconds_of(left)
    assert left_s is not None
    assert abs(left_s - fast["ends_in_s"]) < 30
    # A full partition, with queued calls for it.
    wait_for(lambda: fast["job"] not in elastic.jobs(), "the job to be let go")
    other = elastic.run(
        *("sbatch", "--parsable", "-p", "gpu", "-N2", "--exclusive"),
        *("--output=/dev/null", "--wrap", "sleep 300"),
    ).strip()
    elastic.cluster.wait_for_job(other, "RUNNING")
    with elastic.calling("triple", 4, 0.1) as held:
        wait_for(lambda: "Resources" in elastic.run(*FARM, "status", "--to", "run"), "the reason")
        with (
            elastic.calling("double", 20, 0.1) as doubles,
            elastic.calling("quadruple", 10, 0.1) as quadruples,
        ):
            assert doubles() == [2.0 * n for n in range(20)]
            assert quadruples() == [4.0 * n for n in range(10)]
        (queue,) = [q for q in elastic.status()["queues"] if q["model"] == "triple"]
        assert queue["queued"] > 0
        elastic.run("scancel", other)
        assert held() == [3.0 * n for n in range(4)]
    elastic.stop()
    assert elastic.jobs() == {}


RANKS = """
import os, signal, socket
import farm

class ranks(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1, "hosts": 1}

    def evaluate(self, inputs, config):
        if config.get("kill") == self.comm.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        hosts = set(self.comm.allgather(socket.gethostname()))
        return self.comm.allreduce(inputs["x"]), len(hosts)
"""

MPI_KIND = """
[[workers]]
name = "pde"
models = ["ranks.py"]
ranks = 2
nodes = 2
max_jobs = 1
srun = ["--mpi=pmi2"]
"""


def test_mpi_ranks_of_a_job_are_one_worker(elastic: Elastic) -> None:
    (elastic.folder / "ranks.py").write_text(IN_JOBS_ONLY + RANKS)
    elastic.serve(MPI_KIND, "--retries", "1")
    (before,) = elastic.wait_for_workers(1)
    call = (*FARM, "call", "3", "--to", "run", "--json")
    said = elastic.run(*call)
    assert '"y":[6.0],"hosts":[2.0]' in said.replace(" ", ""), said
    with pytest.raises(subprocess.CalledProcessError) as caught:
        elastic.run(*call, "--config", '{"kill": 1}', timeout_s=100)
    assert "the call was lost 2 times" in caught.value.stderr
    assert '"y"' in elastic.run(*call)
    (after,) = elastic.wait_for_workers(1)
    assert after["name"] != before["name"]
    elastic.stop()
    assert elastic.jobs() == {}


def users() -> tuple[str, str]:
    """Return two users that can run farm; without such users, or without root, only us."""
    names = ("games", "daemon")
    return names if os.getuid() == 0 and all(map(python_of, names)) else ("", "")


def test_farms_of_two_users_share_a_node(cluster: Cluster) -> None:
    """Two farms of one user do, too: each has its own jobs, workers and ports."""
    plan = ONE_KIND.replace("max_jobs = 3", 'min_jobs = 1\nsbatch = ["--nodelist=cpu1"]')
    ann, bob = users()
    with contextlib.ExitStack() as stack:
        farms = [
            stack.enter_context(elastic_on(cluster, name, user=user))
            for name, user in (("ann", ann), ("bob", bob), ("bob-2", bob))
        ]
        for elastic in farms:
            elastic.serve(plan)
        rows = [elastic.wait_for_workers(1)[0] for elastic in farms]
        jobs = [row["job"] for row in rows]
        assert len({row["host"] for row in rows}) == 1
        assert len(set(jobs)) == 3
        owners = dict(
            line.split() for line in cluster.run(["squeue", "-h", "-o", "%i %u"]).splitlines()
        )
        if ann:
            assert [owners[job] for job in jobs] == [ann, bob, bob]
            with pytest.raises(subprocess.CalledProcessError) as caught:
                farms[1].run(*FARM, "status", "--to", "../ann/run")
            assert "ann/run/farm.json" in caught.value.stderr
        with contextlib.ExitStack() as calls:
            answers = [calls.enter_context(e.calling("double", 20, 0.1)) for e in farms]
            assert [a() for a in answers] == 3 * [[2.0 * n for n in range(20)]]
        for elastic, row in zip(farms, rows, strict=True):
            state = elastic.status()
            assert [job["id"] for job in state["cluster"]["jobs"]] == [row["job"]]
            (queue,) = [q for q in state["queues"] if q["operation"] == "evaluate"]
            assert queue["done"] == 20
        for gone in (0, 1):
            farms[gone].stop()
            left = cluster.run(["squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%i"]).split()
            assert sorted(left) == sorted(jobs[gone + 1 :])
        assert farms[2].wait_for_workers(1)[0]["name"] == rows[2]["name"]
        farms[2].stop()
        assert farms[2].jobs() == {}
