"""The parts that watch a farm are connected to it."""

from __future__ import annotations

from typing import Any

import farm
from farm.model import Config, Inputs
from tests.support.front_door import front_door, until


class Twice(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return 2 * inputs["x"]


def test_a_farm_counts_what_its_workers_do() -> None:
    with front_door({"twice": Twice()}, workers=2) as door:
        question = {"name": "twice", "input": [[1]], "config": {}}
        assert door.ask("POST", "/Evaluate", question).status == 200
        until(lambda: door.snapshot()["counts"]["queues"], "the call is counted")
        counts = door.snapshot()["counts"]
    assert counts["joins"] == 2
    assert [row["ends"] for row in counts["queues"]] == [{"done": 1}]
