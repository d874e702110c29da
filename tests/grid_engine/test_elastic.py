"""`farm serve --cluster` on a real Grid Engine: jobs come, go, are refused, found again."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest

from tests.grid_engine.cluster import ONE_KIND, GridFarm
from tests.slurm.cluster import wait_for
from tests.slurm.elastic import FARM, front_door_of

TWO_JOBS = ONE_KIND.replace("max_jobs = 3", "min_jobs = 2\nmax_jobs = 2")


def test_jobs_come_with_demand_go_when_idle_and_none_is_left(farm: GridFarm) -> None:
    farm.serve(ONE_KIND)
    farm.wait_for_workers(1)
    with farm.calling("double", 40, 0.5) as answers:
        rows = farm.wait_for_workers(3)
        jobs = {row["job"] for row in rows}
        assert len(jobs) == 3
        assert {row["host"] for row in rows} <= {"node1", "node2", "node3"}
        assert answers() == [2.0 * n for n in range(40)]
    farm.wait_for_no_jobs()
    state = farm.status()
    assert state["failed"] == 0
    assert not [event for event in state["events"] if event["event"] == "lost"]
    wait_for(lambda: farm.status()["cluster"]["jobs"] == [], "word of that")
    # They were asked to leave and not killed: qdel leaves another account.
    for job in jobs:
        account = farm.grid.account(job)
        assert (account["failed"], account["exit_status"]) == ("0", "0")
    with farm.calling("double", 1, 0.0) as answers:  # from no job to one again
        assert answers() == [0.0]
    with farm.calling("double", 30, 0.5):
        farm.wait_for_workers(3)
    assert "Traceback" not in farm.stop()
    farm.wait_for_no_jobs()


def test_a_call_that_runs_when_its_job_is_released_is_finished(farm: GridFarm) -> None:
    """A farm that stops asks all jobs to end; the call takes longer than it would be given."""
    farm.serve(ONE_KIND)
    farm.wait_for_workers(1)
    with farm.calling("double", 1, 4.0) as answers:
        wait_for(lambda: any(w["in_flight"] for w in farm.status()["workers"]), "the call to run")
        farm.stop()
        assert answers() == [0.0]
    farm.wait_for_no_jobs()


def test_a_refused_submission_is_shown_in_grid_engines_words(farm: GridFarm) -> None:
    farm.serve(ONE_KIND.replace("main.q", "nowhere.q"))
    wait_for(lambda: farm.events("refused"), "a refusal")
    assert 'job requests unknown queue "nowhere.q"' in farm.events("refused")[0]
    assert "unknown queue" in farm.status_text()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        farm.run(*FARM, "call", "1", "--model", "double", "--to", "run", "--timeout", "2")
    assert "unknown queue" in caught.value.stderr
    farm.stop()


def test_a_job_in_error_says_why_and_ends_with_the_farm(farm: GridFarm) -> None:
    farm.serve(ONE_KIND.replace("max_jobs = 3", 'max_jobs = 1\noptions = ["-wd /nowhere"]'))
    wait_for(lambda: farm.events("waits"), "a job that waits for people")
    assert "Eqw (" in farm.events("waits")[0]
    assert "/nowhere" in farm.events("waits")[0]
    assert "Eqw" in farm.status_text()
    assert list(farm.jobs().values()) == ["Eqw"]
    farm.stop()
    farm.wait_for_no_jobs()


def test_a_job_that_no_queue_can_hold_says_what_the_scheduler_says(farm: GridFarm) -> None:
    farm.serve(ONE_KIND.replace("max_jobs = 3", "max_jobs = 1\ncpus = 99"))
    wait_for(lambda: "only offers" in farm.status_text(), "the reason")
    farm.stop()
    farm.wait_for_no_jobs()


def test_a_job_whose_model_cannot_be_loaded_says_why(farm: GridFarm) -> None:
    (farm.folder / "double.py").write_text("import no_such_module_here\n")
    farm.serve(ONE_KIND)
    wait_for(lambda: farm.events("failed"), "a failed job")
    event = farm.events("failed")[0]
    assert "exit status" in event
    assert "no_such_module_here" in event
    farm.stop()
    farm.wait_for_no_jobs()


def test_deleted_jobs_lose_nothing_and_are_replaced(farm: GridFarm) -> None:
    farm.serve(TWO_JOBS)
    farm.wait_for_workers(2)
    with farm.calling("double", 40, 0.3) as answers:
        wait_for(lambda: farm.status()["done"] >= 5, "some answers")
        first, second = sorted(farm.jobs())
        farm.run("qdel", first)
        wait_for(lambda: first not in farm.jobs(), f"the end of job {first}")
        assert answers() == [2.0 * n for n in range(40)]
    farm.wait_for_workers(2)
    assert first not in farm.jobs()
    state = farm.status()
    assert state["failed"] == 0
    # -notify warns the workers, which drain: no call was cut off.
    assert not [event for event in state["events"] if event["event"] == "lost"]
    assert second in farm.jobs()
    farm.stop()
    farm.wait_for_no_jobs()


def test_a_front_door_that_is_killed_finds_its_jobs_again(farm: GridFarm) -> None:
    farm.serve(TWO_JOBS, "--no-supervise")
    before = {row["job"] for row in farm.wait_for_workers(2)}
    farm.kill()
    assert set(farm.jobs()) == before
    farm.serve(TWO_JOBS, "--no-supervise")
    after = {row["job"] for row in farm.wait_for_workers(2)}
    assert after == before == set(farm.jobs())
    wait_for(lambda: len(farm.events("adopted")) == 2, "word of both jobs")
    with farm.calling("double", 4, 0.0) as answers:
        assert answers() == [2.0 * n for n in range(4)]
    farm.stop()
    farm.wait_for_no_jobs()


def test_a_front_door_that_is_killed_comes_back_by_itself(farm: GridFarm) -> None:
    farm.serve(TWO_JOBS)
    before = {row["name"] for row in farm.wait_for_workers(2)}
    with farm.calling("double", 40, 0.3) as answers:
        wait_for(lambda: farm.status()["done"] >= 5, "some answers")
        killed = front_door_of(farm.folder / "run")
        os.kill(killed, signal.SIGKILL)
        assert answers() == [2.0 * n for n in range(40)]
    wait_for(lambda: front_door_of(farm.folder / "run") != killed, "the next front door")
    assert {row["name"] for row in farm.wait_for_workers(2)} == before
    farm.stop()
    farm.wait_for_no_jobs()


def test_jobs_of_a_killed_front_door_are_let_go_by_the_next_one(farm: GridFarm) -> None:
    """Also one that was in the queue, whose end no account tells."""
    waits = '\n[[workers]]\nname = "held"\nmodels = ["triple.py"]\nmin_jobs = 1\noptions = ["-h"]\n'
    farm.serve(TWO_JOBS + waits, "--no-supervise")
    farm.wait_for_workers(2)
    wait_for(lambda: len(farm.jobs()) == 3, "three jobs")
    assert "hqw" in farm.jobs().values()
    farm.kill()
    farm.serve(ONE_KIND)
    farm.stop()
    farm.wait_for_no_jobs()


def test_a_job_ends_at_its_limit_and_no_call_is_cut_off(farm: GridFarm) -> None:
    limit = 'min_jobs = 1\nmax_jobs = 1\ntime = "0:20"\nwarn_s = 5'
    farm.serve(ONE_KIND.replace("max_jobs = 3", limit))
    (first,) = farm.wait_for_workers(1)
    assert 0 < first["ends_in_s"] <= 20
    assert re.search(r"h_rt=20\b", farm.run("qstat", "-j", first["job"]))
    with farm.calling("double", 18, 1.0) as answers:
        assert answers() == [2.0 * n for n in range(18)]
    assert not farm.events("lost")
    account = farm.grid.account(first["job"])
    assert (account["failed"], account["exit_status"]) == ("0", "0")
    farm.stop()
    farm.wait_for_no_jobs()
