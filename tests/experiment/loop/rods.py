"""A model, sweeps of it, and configurations of experiments with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import farm
from farm.call import ModelInfo
from farm.experiment.config.definition import Config
from farm.experiment.config.evaluated_model import BoundModel, read_evaluated_model
from farm.experiment.config.reader import read_config
from farm.model import Inputs, Model
from farm.sweep.run.evaluator import Threads

PARAMETERS = {
    "a": "par_type = continuous\nlower_bound = 0\nupper_bound = 1",
    "b": "par_type = continuous\nlower_bound = 0\nupper_bound = 1",
    "mesh": "par_type = integer\nlower_bound = 1\nupper_bound = 4",
    "kind": "par_type = categorical\nchoices = [steel, brass]",
    "load": "par_type = fixed\nvalue = 2",
}


class Rod(Model):
    """Stress and weight of a rod; it fails for x[0] > 0.9, and has no weight for x[1] > 0.9."""

    name = "rod"
    inputs = {"x": 2, "load": 1}
    outputs = {"stress": 2, "weight": 1}

    def evaluate(self, inputs: Inputs, config: farm.Config) -> Any:
        x, load = inputs["x"], float(inputs["load"][0])
        if x[0] > 0.9:
            raise ValueError("the rod breaks")
        weight = np.nan if x[1] > 0.9 else x[0] + 10 * x[1] + 100 * float(config.get("mesh", 1))
        return [x * load, [weight]]


class Older(Rod):
    """The rod with other names and sizes."""

    inputs = {"x": 3, "load": 1}


def described(model: Model | None = None) -> ModelInfo:
    """Return the description of a model, as a farm gives it."""
    threads = Threads({"rod": model or Rod()}, workers=1)
    try:
        return threads.describe("rod")
    finally:
        threads.close()


def swept(
    path: Path, design: str = "sobol:16", /, model: Model | None = None, **given: Any
) -> Path:
    """Sweep a rod: entries of x from 0 to 1, load 2, unless `given` says otherwise."""
    options: dict[str, Any] = {"fix": {"load": 2}, "seed": 1, "probe": False, **given}
    parameters = options.pop("parameters", {"x[0]": (0, 1), "x[1]": (0, 1)})
    farm.sweep(
        model or Rod(), parameters, design=design, out=path, show=False, stream=False, **options
    ).wait()
    return path


def experiment(*names: str, outcomes: str = "cost", farm: str = "", strategies: str = "") -> str:
    """Return a configuration; parameters a and b are the entries of x. farm: further options."""
    names = names or ("a", "b", "load")
    many = outcomes.split(", ")
    entries = "".join(f"input.x[{i}] = {name}\n" for i, name in enumerate("ab") if name in names)
    cost = "outcome.cost = -weight\n" if "cost" in many and "outcome.cost" not in farm else ""
    return (
        f"[common]\nparnames = [{', '.join(names)}]\noutcome_names = [{outcomes}]\n"
        f"outcome_types = [{', '.join('binary' if o == 'broke' else 'continuous' for o in many)}]\n"
        "strategy_names = [spread]\n"
        + "".join(f"[{name}]\n{PARAMETERS[name]}\n" for name in names)
        + (strategies or "[spread]\ngenerator = SobolGenerator\nmin_asks = 4\n")
        + f"[farm]\nmodel = rod\n{entries}{cost}{farm}"
    )


def understood(text: str, info: ModelInfo | None = None) -> tuple[Config, BoundModel]:
    """Return a configuration, and its model as a farm describes it."""
    config = read_config(text)
    return config, read_evaluated_model(config).bound(info or described())
