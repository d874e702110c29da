"""What a job needs on each node."""

from __future__ import annotations

from typing import Any

import pytest

from farm.provision.batch.kinds import WorkerKind
from farm.provision.batch.systems.nodes import processes_per_node


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
