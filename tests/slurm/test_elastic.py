"""`farm serve --slurm` on a real cluster: jobs come, go, are refused, found again."""

from __future__ import annotations

import re
import shlex
import subprocess
import time

import pytest

from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.elastic import FARM, MODEL, ONE_KIND, TWO_KINDS, Elastic, elastic_on


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
    wait_for(lambda: elastic.status()["cluster"]["jobs"] == [], "word of that")
    (kind,) = elastic.status()["cluster"]["kinds"]
    assert (kind["wanted"], kind["pending"], kind["running"]) == (0, 0, 0)
    # Grow from no job to one again, for a model that is known.
    with elastic.calling("double", 1, 0.0) as answers:
        assert answers() == [0.0]
    with elastic.calling("double", 30, 0.5):
        elastic.wait_for_workers(3)
    assert "Traceback" not in elastic.stop()
    assert elastic.jobs() == {}


def test_a_refused_submission_is_shown_in_slurms_words_and_tried_ever_less(
    elastic: Elastic,
) -> None:
    plan = ONE_KIND.replace('"cpu"', '"nowhere"')
    billed = '[[workers]]\nname = "billed"\nmodels = ["triple.py"]\naccount = "closed"\n'
    has_accounts = elastic.cluster.refuses_an_account
    elastic.serve(plan + has_accounts * billed)
    wait_for(lambda: elastic.events("refused")[has_accounts:], "a refusal of each kind")
    said = {
        "small": "invalid partition specified: nowhere",
        "billed": "Invalid account or account/partition combination specified",
    }
    text = " ".join(elastic.run(*FARM, "status", "--to", "run").split())
    for event in elastic.events("refused")[: 1 + has_accounts]:
        kind, _, reason = event.partition(": ")
        assert said[kind] in reason
        assert said[kind] in text
        assert "next try in 5 s" in reason
    with pytest.raises(subprocess.CalledProcessError) as caught:
        elastic.run(*FARM, "call", "1", "--model", "double", "--to", "run", "--timeout", "2")
    assert "invalid partition" in caught.value.stderr, "it says what it waits for"

    def refused_again() -> list[str]:
        return [event for event in elastic.events("refused") if "small" in event][1:]

    again, *_ = wait_for(refused_again, "another try")
    assert "next try in 10 s" in again
    elastic.stop()


def test_the_first_call_submits_the_first_job_and_waits_for_it(elastic: Elastic) -> None:
    (elastic.folder / "double.py").write_text(MODEL.format(name="double", factor=2))
    elastic.serve(ONE_KIND)
    assert elastic.status()["models"] == ["double"]
    assert elastic.events("not described") == []
    assert elastic.jobs() == {}
    assert "y = [6.]" in elastic.run(*FARM, "call", "3", "--to", "run")
    assert len(elastic.jobs()) == 1
    elastic.stop()
    assert elastic.jobs() == {}


def test_a_job_whose_model_cannot_be_loaded_says_why(elastic: Elastic) -> None:
    (elastic.folder / "double.py").write_text("import no_such_module_here\n")
    elastic.serve(ONE_KIND)
    wait_for(lambda: elastic.events("failed"), "a failed job")
    event = elastic.events("failed")[0]
    assert "FAILED" in event
    assert "no_such_module_here" in event
    failed = re.search(r"job (\d+)", event)
    assert failed is not None
    assert failed[1] not in elastic.jobs()
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
    wait_for(lambda: "CANCELLED" in " ".join(elastic.events("ended")), "word of that")
    elastic.stop()


def test_a_requeued_job_joins_again(elastic: Elastic) -> None:
    elastic.serve(ONE_KIND.replace("max_jobs = 3", "min_jobs = 1\nmax_jobs = 1"))
    (before,) = elastic.wait_for_workers(1)
    with elastic.calling("double", 20, 0.3) as answers:
        wait_for(lambda: elastic.status()["done"] >= 3, "some answers")
        # The farm reports a requeued job only once a list has shown it running.
        wait_for(
            lambda: [row["state"] for row in elastic.status()["slurm"]["jobs"]] == ["RUNNING"],
            "the list",
        )
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
    """The call takes longer than the grace time of the job."""
    plan = ONE_KIND.replace('"cpu"', '"scavenge"').replace("max_jobs = 3", "max_jobs = 1")
    elastic.serve(plan + 'sbatch = ["--nodelist=cpu1"]\n', "--retries", "0")
    elastic.wait_for_workers(1)
    with elastic.calling("double", 1, 25.0) as answers:
        wait_for(
            lambda: any(q["in_flight"] for q in elastic.status()["queues"]), "a call that runs"
        )
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


def test_the_expected_start_of_a_job_is_shown(elastic: Elastic) -> None:
    begin = time.time() + 7200
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin))
    elastic.serve(f'{ONE_KIND}min_jobs = 1\nsbatch = ["--begin={when}"]\n')

    def starts() -> list[float]:
        jobs = elastic.status()["slurm"]["jobs"]
        return [job["starts_at"] for job in jobs if job["starts_at"] is not None]

    (starts_at,) = wait_for(starts, "the expected start")
    assert abs(starts_at - begin) < 60
    with pytest.raises(subprocess.CalledProcessError) as caught:
        elastic.run(*FARM, "call", "1", "--model", "double", "--to", "run")
    expected = time.strftime("%Y-%m-%d %H:%M", time.localtime(starts_at))
    assert f"PENDING BeginTime, expected to start {expected}" in caught.value.stderr
    elastic.stop()
    assert elastic.jobs() == {}


def test_a_front_door_that_is_killed_finds_its_jobs_again(elastic: Elastic) -> None:
    plan = ONE_KIND.replace("max_jobs = 3", "min_jobs = 2\nmax_jobs = 2")
    elastic.serve(plan, "--no-supervise")
    before = {row["name"] for row in elastic.wait_for_workers(2)}
    jobs = elastic.jobs()
    with elastic.calling("double", 40, 0.3) as answers:
        wait_for(lambda: elastic.status()["done"] >= 5, "some answers")
        elastic.kill()
        assert elastic.jobs() == jobs
        elastic.serve(plan, "--no-supervise")
        after = {row["name"] for row in elastic.wait_for_workers(2)}
        assert answers() == [2.0 * n for n in range(40)]
    assert after == before, "the same processes, which have their models loaded"
    assert elastic.jobs() == jobs
    wait_for(lambda: len(elastic.events("adopted")) == 2, "word of both jobs")
    assert elastic.events("submitted") == []
    elastic.stop()
    assert elastic.jobs() == {}


def test_while_slurm_is_away_jobs_are_not_taken_for_gone(elastic: Elastic) -> None:
    """The job that serves remains. The farm may submit others, and cancel those it needs no more.

    A submission may last until SLURM is back: `sbatch` waits for it.
    """
    plan = ONE_KIND.replace("idle_timeout_s = 3", "idle_timeout_s = 600")
    elastic.serve(plan.replace("max_jobs = 3", "min_jobs = 1"))
    (before,) = elastic.wait_for_workers(1)
    elastic.cluster.node("stop", "login")
    try:
        with elastic.calling("double", 60, 0.3) as answers:
            wait_for(lambda: elastic.events("no word from SLURM"), "squeue to fail", 60)
            assert answers() == [2.0 * n for n in range(60)]
    finally:
        elastic.cluster.node("start", "login")
    wait_for(lambda: not elastic.status()["cluster"]["problem"], "squeue to answer", 60)
    state = elastic.status()
    assert before["job"] in {job["id"] for job in state["cluster"]["jobs"]}
    assert before["name"] in {row["name"] for row in state["workers"]}
    of_it = {e["event"] for e in state["events"] if e["worker"] == f"job {before['job']}"}
    assert of_it <= {"submitted", "adopted", "started"}
    elastic.stop()
    assert elastic.jobs() == {}


@pytest.mark.timeout(240)
def test_calls_that_do_not_fit_wait_for_a_new_job(elastic: Elastic) -> None:
    """Jobs last one minute, and each call takes a large part of that."""
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
    scripts = re.split(r"^(?=#!)", out, flags=re.MULTILINE)[1:]
    assert len(scripts) == 2
    for script in scripts:
        (elastic.folder / "job.sh").write_text(script)
        elastic.run("sbatch", "--test-only", "job.sh")
    dry_run = shlex.join([*FARM, "serve", "--slurm", "farm.toml", "--dry-run"])
    elastic.run("bash", "-c", f"{dry_run} | sbatch --test-only")
    assert elastic.jobs() == {}
