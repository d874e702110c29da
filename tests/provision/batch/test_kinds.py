"""A kind of workers: what follows from its settings."""

from __future__ import annotations

from typing import Any

import pytest

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
    assert WorkerKind(name="a", models=["m"], **values).processes_per_node == processes


def test_only_processes_without_mpi_start_on_each_node() -> None:
    assert WorkerKind(name="a", models=["m"], nodes=2).spreads
    assert not WorkerKind(name="a", models=["m"]).spreads
    assert not WorkerKind(name="a", models=["m"], nodes=2, ranks=4).spreads
