"""A farm on a real Grid Engine loses nodes, daemons and the master: no call is lost."""

from __future__ import annotations

from tests.grid_engine.cluster import ONE_KIND, GridFarm
from tests.slurm.cluster import wait_for

TWO_JOBS = ONE_KIND.replace("max_jobs = 3", "min_jobs = 2\nmax_jobs = 2\ncpus = 3")
"""Two jobs on two nodes, as three slots of a node leave no room for another job of three."""


def test_the_job_of_a_crashed_node_starts_again_elsewhere(farm: GridFarm) -> None:
    farm.serve(TWO_JOBS)
    first, second = farm.wait_for_workers(2)
    assert first["host"] != second["host"]
    with farm.calling("double", 40, 0.3) as answers:
        wait_for(lambda: farm.status()["done"] >= 5, "some answers")
        farm.grid.node("crash", first["host"])
        assert answers() == [2.0 * n for n in range(40)]

    def again() -> bool:
        rows = farm.status()["workers"]
        return any(row["job"] == first["job"] and row["host"] != first["host"] for row in rows)

    wait_for(again, "the same job on another node")
    assert farm.status()["failed"] == 0
    assert set(farm.jobs()) == {first["job"], second["job"]}
    farm.grid.node("start", first["host"])
    farm.stop()
    farm.wait_for_no_jobs()


def test_jobs_go_on_without_the_daemon_of_their_node_and_without_the_master(
    farm: GridFarm,
) -> None:
    farm.serve(TWO_JOBS)
    rows = farm.wait_for_workers(2)
    # On a busy machine a daemon may take so long to start that its node counts as lost.
    with farm.grid.jobs_stay():
        farm.grid.node("stop", "login")
        with farm.calling("double", 30, 0.2) as answers:
            wait_for(lambda: farm.status()["cluster"]["problem"], "no word from Grid Engine")
            assert answers() == [2.0 * n for n in range(30)]
        assert "qmaster" in farm.status()["cluster"]["problem"]
        farm.grid.node("stop", rows[0]["host"])
        farm.grid.node("start", "login")
        farm.grid.node("start", rows[0]["host"])
        wait_for(lambda: not farm.status()["cluster"]["problem"], "word from Grid Engine")
        names = {row["name"] for row in rows}
        assert {row["name"] for row in farm.wait_for_workers(2)} == names
    assert not farm.events("ended")
    farm.stop()
    # An sge_execd that was restarted notices the ends of jobs that it did not start after a minute.
    assert set(farm.jobs().values()) <= {"dr"}
