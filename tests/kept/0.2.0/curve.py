"""Two outputs of two inputs, with derivatives; points with x[0] > 0.9 fail."""

import time
from pathlib import Path
from typing import Any

import farm

HERE = Path(__file__).parent
SCALE = {"single": 1.0, "double": 2.0}


class Curve(farm.Model):
    name = "curve"
    inputs = {"x": 2}
    outputs = {"y": 2, "total": 1}

    def evaluate(self, inputs: Any, config: Any) -> Any:
        with open(HERE / "calls.log", "a") as log:
            log.write("called\n")
        if (HERE / "stalls").exists() and len((HERE / "calls.log").read_text().split()) > 5:
            time.sleep(3600)
        x = inputs["x"]
        if x[0] > 0.9:
            raise ValueError(f"x[0] is {x[0]:.3f}, expected at most 0.9")
        y = SCALE[config.get("kind", "single")] * x**2
        return y, y.sum()

    def gradient(self, out_wrt: int, in_wrt: int, inputs: Any, sens: Any, config: Any) -> Any:
        scale = SCALE[config.get("kind", "single")]
        return 2 * scale * inputs["x"] * (sens if out_wrt == 0 else sens[0])
