"""The model of the samples: fast, fails at large loads, waits if told to."""

import time
from typing import Any

import farm


class Beam(farm.Model):
    inputs = {"E": 2, "load": 1}
    outputs = {"bent": 2}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> list[Any]:
        time.sleep(config.get("sleep", 0.0))
        if inputs["load"][0] > 0.9:
            raise ValueError("the load is too large")
        return [inputs["load"][0] / inputs["E"]]
