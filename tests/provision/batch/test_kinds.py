"""A kind of workers: what follows from its settings."""

from __future__ import annotations

from farm.provision.batch.kinds import WorkerKind


def test_jobs_are_warned_before_their_end_but_not_long_in_short_ones() -> None:
    assert WorkerKind(name="a", models=["m"]).warning_s == 60
    assert WorkerKind(name="a", models=["m"], time="1:00:00").warning_s == 60
    assert WorkerKind(name="a", models=["m"], time="1").warning_s == 10
    assert WorkerKind(name="a", models=["m"], time="60", warn_s=300).warning_s == 300


def test_workers_of_a_job_are_counted_over_nodes_and_gpus_but_groups_once() -> None:
    assert WorkerKind(name="a", models=["m"], nodes=3, workers=2, gpus=4).workers_per_job == 24
    assert WorkerKind(name="a", models=["m"], nodes=3, workers=4).workers_per_job == 12
    assert WorkerKind(name="a", models=["m"], nodes=3, workers=4, ranks=6).workers_per_job == 4
