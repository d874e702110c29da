"""`farm serve --slurm` on a real cluster: jobs come, go, are refused, lost, found again."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from farm.provision.allocation import seconds_of
from tests.slurm.cluster import LIMIT_S, Cluster, wait_for

FARM = [sys.executable, "-m", "farm"]

MODEL = """
import time
import farm

class {name}(farm.Model):
    name = "{name}"
    inputs = {{"x": 1}}
    outputs = {{"y": 1}}

    def evaluate(self, inputs, config):
        time.sleep(config.get("sleep", 0.0))
        return {factor} * inputs["x"]
"""

CALLS = """
import sys
import farm

name, count, sleep = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with farm.connect("run") as client:
    model = client.model(name)
    futures = [model.submit([float(n)], config={"sleep": sleep}) for n in range(count)]
    print([float(future.result()[0]) for future in futures])
"""
"""Many calls at once in a process of their own, which outlives a front door."""

ONE_KIND = """
backlog_s = 2
grow_after_s = 0.5
idle_timeout_s = 3

[[workers]]
name = "small"
models = ["double.py"]
partition = "cpu"
max_jobs = 3
"""


class Elastic:
    """A folder with models and a farm that may run there, as a user has them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        folder.mkdir()
        (folder / "double.py").write_text(MODEL.format(name="double", factor=2))
        (folder / "triple.py").write_text(MODEL.format(name="triple", factor=3))
        (folder / "calls.py").write_text(CALLS)
        self.process: subprocess.Popen[str] | None = None

    def serve(self, plan: str, *arguments: str) -> None:
        (self.folder / "farm.toml").write_text(plan)
        options = ["--slurm", "farm.toml", "--dir", "run", "--port", "0", *arguments]
        self.process = self.cluster.start([*FARM, "serve", *options], cwd=self.folder)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("farm serves"), self.process.communicate(timeout=LIMIT_S)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)

    def stop(self) -> str:
        """Stop the farm as Ctrl-C does; what it wrote to stderr."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, errors
        self.process = None
        return errors

    def run(self, *command: str, timeout_s: float = LIMIT_S) -> str:
        return self.cluster.run(list(command), cwd=self.folder, timeout_s=timeout_s)

    def status(self) -> dict[str, Any]:
        state: dict[str, Any] = orjson.loads(self.run(*FARM, "status", "--json", "--to", "run"))
        return state

    def jobs(self) -> dict[str, str]:
        """Live jobs and their states."""
        lines = self.run("squeue", "-h", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def events(self, kind: str) -> list[str]:
        return [
            f"{event['worker']}: {event['text']}"
            for event in self.status()["events"]
            if event["event"] == kind
        ]

    def wait_for_no_jobs(self) -> None:
        wait_for(lambda: not self.jobs(), "the jobs to be let go")

    def wait_for_workers(self, count: int) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = self.status()["workers"]
            return rows if len(rows) == count else []

        return wait_for(found, f"{count} workers")

    @contextlib.contextmanager
    def calling(self, name: str, count: int, sleep_s: float) -> Iterator[Callable[[], list[float]]]:
        """Calls under way; the value waits for their answers."""
        command = [sys.executable, "calls.py", name, str(count), str(sleep_s)]
        process = self.cluster.start(command, cwd=self.folder)

        def answers() -> list[float]:
            out, errors = process.communicate(timeout=4 * LIMIT_S)
            assert process.returncode == 0, errors
            return [float(word) for word in out.strip("[]\n").split(",")]

        try:
            yield answers
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextlib.contextmanager
def elastic_on(cluster: Cluster, name: str) -> Iterator[Elastic]:
    farm = Elastic(cluster, cluster.folder / name)
    try:
        yield farm
    finally:
        if farm.process is not None:
            farm.kill()


@pytest.fixture
def elastic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Elastic]:
    with elastic_on(cluster, request.node.name) as farm:
        yield farm


def test_jobs_come_with_demand_go_when_idle_and_none_is_left(elastic: Elastic) -> None:
    elastic.serve(ONE_KIND)
    elastic.wait_for_workers(1)
    with elastic.calling("double", 40, 0.5) as answers:
        rows = elastic.wait_for_workers(3)
        assert len({row["job"] for row in rows}) == 3
        assert {row["kind"] for row in rows} == {"small"}
        assert answers() == [2.0 * n for n in range(40)]
    elastic.wait_for_no_jobs()
    state = elastic.status()
    assert state["failed"] == 0
    assert not [event for event in state["events"] if event["event"] == "lost"]
    wait_for(lambda: elastic.status()["slurm"]["jobs"] == [], "word of that")
    (kind,) = elastic.status()["slurm"]["kinds"]
    assert (kind["wanted"], kind["pending"], kind["running"]) == (0, 0, 0)
    # And from none to one again, for a model that is known.
    with elastic.calling("double", 1, 0.0) as answers:
        assert answers() == [0.0]
    with elastic.calling("double", 30, 0.5):
        elastic.wait_for_workers(3)
    assert "Traceback" not in elastic.stop()
    assert elastic.jobs() == {}


def test_a_refused_submission_is_shown_in_slurms_words_and_tried_ever_less(
    elastic: Elastic,
) -> None:
    elastic.serve(ONE_KIND.replace('"cpu"', '"nowhere"'))
    wait_for(lambda: elastic.events("refused"), "a refusal")
    (event,) = elastic.events("refused")
    assert "invalid partition specified: nowhere" in event
    assert "next try in 5 s" in event
    text = elastic.run(*FARM, "status", "--to", "run")
    assert "invalid partition specified: nowhere" in " ".join(text.split())
    with pytest.raises(subprocess.CalledProcessError) as caught:
        elastic.run(*FARM, "call", "1", "--model", "double", "--to", "run")
    assert "invalid partition" in caught.value.stderr
    wait_for(lambda: len(elastic.events("refused")) == 2, "another try")
    assert "next try in 10 s" in elastic.events("refused")[1]
    elastic.stop()


def test_a_job_whose_model_cannot_be_loaded_says_why(elastic: Elastic) -> None:
    (elastic.folder / "double.py").write_text("import no_such_module_here\n")
    elastic.serve(ONE_KIND)
    wait_for(lambda: elastic.events("failed"), "a failed job")
    event = elastic.events("failed")[0]
    assert "FAILED" in event
    assert "no_such_module_here" in event
    assert len(elastic.jobs()) == 0
    elastic.stop()


def test_cancelled_jobs_lose_nothing_and_are_replaced(elastic: Elastic) -> None:
    elastic.serve(ONE_KIND.replace("max_jobs = 3", "min_jobs = 2\nmax_jobs = 2"))
    elastic.wait_for_workers(2)
    with elastic.calling("double", 40, 0.3) as answers:
        wait_for(lambda: elastic.status()["done"] >= 5, "some answers")
        first, second = sorted(elastic.jobs())
        elastic.run("scancel", first)
        wait_for(lambda: first not in elastic.jobs(), f"the end of job {first}")
        elastic.run("scancel", "--signal=KILL", "--full", second)
        assert answers() == [2.0 * n for n in range(40)]
    elastic.wait_for_workers(2)
    assert not {first, second} & set(elastic.jobs())
    assert elastic.status()["failed"] == 0
    assert any("CANCELLED" in event for event in elastic.events("ended"))
    elastic.stop()


def test_a_requeued_job_joins_again(elastic: Elastic) -> None:
    elastic.serve(ONE_KIND.replace("max_jobs = 3", "min_jobs = 1\nmax_jobs = 1"))
    (before,) = elastic.wait_for_workers(1)
    with elastic.calling("double", 20, 0.3) as answers:
        wait_for(lambda: elastic.status()["done"] >= 3, "some answers")
        elastic.run("scontrol", "requeue", before["job"])
        wait_for(lambda: elastic.events("requeued"), "word of that")
        assert answers() == [2.0 * n for n in range(20)]
    (after,) = elastic.wait_for_workers(1)
    assert after["job"] == before["job"]
    assert after["name"] != before["name"]
    assert elastic.events("failed") == []
    elastic.stop()
    assert elastic.jobs() == {}


@pytest.mark.timeout(180)
def test_a_pre_empted_job_loses_nothing(elastic: Elastic) -> None:
    """Its call is longer than the grace it gets."""
    plan = ONE_KIND.replace('"cpu"', '"scavenge"').replace("max_jobs = 3", "max_jobs = 1")
    elastic.serve(plan + 'sbatch = ["--nodelist=cpu1"]\n', "--retries", "0")
    elastic.wait_for_workers(1)
    with elastic.calling("double", 1, 25.0) as answers:
        wait_for(lambda: elastic.status()["queues"][0]["in_flight"], "a call that runs")
        other = elastic.run(
            *("sbatch", "--parsable", "--partition=cpu", "--nodelist=cpu1", "--exclusive"),
            *("--output=/dev/null", "--wrap", "sleep 1"),
        ).strip()
        elastic.cluster.wait_for_job(other, "COMPLETED", limit_s=60)
        assert answers() == [0.0]
    assert elastic.status()["failed"] == 0
    elastic.stop()


def test_while_a_partition_is_down_the_reason_is_shown(elastic: Elastic) -> None:
    elastic.run("scontrol", "update", "PartitionName=cpu", "State=DOWN")
    try:
        elastic.serve(ONE_KIND)
        wait_for(lambda: elastic.events("waits"), "the reason")
        assert "PartitionDown" in elastic.events("waits")[0]
        assert "PartitionDown" in elastic.run(*FARM, "status", "--to", "run")
        assert len(elastic.jobs()) == 1
    finally:
        elastic.run("scontrol", "update", "PartitionName=cpu", "State=UP")
    elastic.wait_for_workers(1)
    elastic.stop()
    assert elastic.jobs() == {}


TWO_KINDS = """
backlog_s = 2
grow_after_s = 0.5

[[workers]]
name = "cheap"
models = ["double.py"]
partition = "cpu"
workers = 2
max_jobs = 2

[[workers]]
name = "fast"
models = ["triple.py"]
partition = "gpu"
cpus = 2
gpus = 1
max_jobs = 1
time = "5:00"
"""


def test_models_with_different_resources_share_a_farm(elastic: Elastic) -> None:
    elastic.serve(TWO_KINDS)
    rows = elastic.wait_for_workers(3)
    where = {(row["kind"], row["host"], *row["models"]) for row in rows}
    assert {(kind, host[:3], model) for kind, host, model in where} == {
        ("cheap", "cpu", "double"),
        ("fast", "gpu", "triple"),
    }
    (fast,) = [row for row in rows if row["kind"] == "fast"]
    assert fast["device"]
    assert 200 < fast["ends_in_s"] <= 300
    cpus = elastic.run("squeue", "-h", "-j", fast["job"], "-o", "%C %L").split()
    assert cpus[0] == "2"
    left_s = seconds_of(cpus[1])
    assert left_s is not None
    assert abs(left_s - fast["ends_in_s"]) < 30
    # What is slow for one does not hold up the other.
    with elastic.calling("triple", 20, 1.0) as slow, elastic.calling("double", 20, 0.1) as quick:
        began = time.monotonic()
        assert quick() == [2.0 * n for n in range(20)]
        assert time.monotonic() - began < 15
        assert slow() == [3.0 * n for n in range(20)]
    elastic.stop()
    assert elastic.jobs() == {}


def test_a_front_door_that_is_killed_finds_its_jobs_again(elastic: Elastic) -> None:
    plan = ONE_KIND.replace("max_jobs = 3", "min_jobs = 2\nmax_jobs = 2")
    elastic.serve(plan)
    before = {row["name"] for row in elastic.wait_for_workers(2)}
    jobs = elastic.jobs()
    with elastic.calling("double", 40, 0.3) as answers:
        wait_for(lambda: elastic.status()["done"] >= 5, "some answers")
        elastic.kill()
        assert elastic.jobs() == jobs
        elastic.serve(plan)
        after = {row["name"] for row in elastic.wait_for_workers(2)}
        assert answers() == [2.0 * n for n in range(40)]
    assert after == before, "the same processes, which have their models loaded"
    assert elastic.jobs() == jobs
    assert len(elastic.events("adopted")) == 2
    assert elastic.events("submitted") == []
    elastic.stop()
    assert elastic.jobs() == {}


def test_while_slurm_is_away_jobs_are_not_taken_for_gone(elastic: Elastic) -> None:
    elastic.serve(ONE_KIND.replace("max_jobs = 3", "min_jobs = 1"))
    elastic.wait_for_workers(1)
    elastic.cluster.node("stop", "login")
    try:
        with elastic.calling("double", 60, 0.3) as answers:
            wait_for(lambda: elastic.events("no word from SLURM"), "squeue to fail", 60)
            assert answers() == [2.0 * n for n in range(60)]
    finally:
        elastic.cluster.node("start", "login")
    assert len(elastic.status()["slurm"]["jobs"]) >= 1
    assert not elastic.events("ended")
    wait_for(lambda: not elastic.status()["slurm"]["problem"], "squeue to answer", 60)
    elastic.stop()
    assert elastic.jobs() == {}


@pytest.mark.timeout(240)
def test_calls_that_do_not_fit_wait_for_a_new_job(elastic: Elastic) -> None:
    """In jobs of one minute, of which each call needs a good part."""
    plan = ONE_KIND.replace("max_jobs = 3", 'max_jobs = 1\ntime = "1"')
    elastic.serve(plan)
    elastic.wait_for_workers(1)
    first = set(elastic.jobs())
    with elastic.calling("double", 4, 15.0) as answers:
        assert answers() == [0.0, 2.0, 4.0, 6.0]
    assert set(elastic.jobs()).isdisjoint(first)
    state = elastic.status()
    assert not [event for event in state["events"] if event["event"] == "lost"]
    elastic.stop()


def test_nodes_with_networks_of_their_own_reach_the_front_door(netns_cluster: Cluster) -> None:
    with elastic_on(netns_cluster, "netns") as elastic:
        elastic.serve(ONE_KIND)
        (row,) = elastic.wait_for_workers(1)
        assert row["host"].startswith("cpu")
        with elastic.calling("double", 3, 0.0) as answers:
            assert answers() == [0.0, 2.0, 4.0]
        elastic.stop()
        assert elastic.jobs() == {}


def test_a_dry_run_prints_scripts_that_sbatch_takes(elastic: Elastic) -> None:
    (elastic.folder / "farm.toml").write_text(TWO_KINDS)
    out = elastic.run(*FARM, "serve", "--slurm", "farm.toml", "--dry-run")
    scripts = re.split(r"^### .*\n", out, flags=re.MULTILINE)[1:]
    assert len(scripts) == 2
    for script in scripts:
        (elastic.folder / "job.sh").write_text(script)
        elastic.run("sbatch", "--test-only", "job.sh")
    assert elastic.jobs() == {}
