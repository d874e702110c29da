"""What a job needs on each node."""

from __future__ import annotations

from typing import Any

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.systems.nodes import one_node_without_ranks, processes_per_node
from farm.settings import SettingsError


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


def test_several_nodes_are_for_mpi() -> None:
    one_node_without_ranks(kind())
    one_node_without_ranks(kind(ranks=4, nodes=2))
    with pytest.raises(SettingsError, match="nodes is 2: expected 1, except for MPI"):
        one_node_without_ranks(kind(nodes=2))
