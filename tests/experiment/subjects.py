"""Experiments on models behind a real dispatcher, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farm.dispatcher.dispatcher import Dispatcher
from farm.experiment.ask.fitters import Fitters
from farm.experiment.host import Experiments
from farm.experiment.loop.evaluators import Around
from farm.experiment.session import Session
from farm.experiment.state.experiment import Experiment
from farm.model import Config, Inputs, Model
from farm.monitoring.monitor import watch
from farm.protocols.aepsych.codec import AepsychRequest
from farm.transports.threads import LocalTransport
from tests.support.coroutines import LIMIT_S

LEARNING = (
    "[learn]\ngenerator = OptimizeAcqfGenerator\nacqf = qLogNoisyExpectedImprovement\n"
    "model = GPRegressionModel\n"
)
"""A strategy with a model of numbers."""


class Bowl(Model):
    """A model of -(x - 0.3)^2 - (y - 0.7)^2 that raises for x beyond `edge`.

    gate: evaluations wait until it is set; held: it is not yet. seen: x of each evaluation, in the
    order of their starts.
    """

    name = "bowl"
    inputs = {"x": 1, "y": 1}
    outputs = {"height": 1}

    def __init__(self, edge: float = np.inf, *, held: bool = False) -> None:
        self.edge = edge
        self.gate = threading.Event()
        if not held:
            self.gate.set()
        self.seen: list[float] = []
        self.flaky: set[int] = set()

    def evaluate(self, inputs: Inputs, config: Config) -> float:
        x, y = float(inputs["x"][0]), float(inputs["y"][0])
        self.seen.append(x)
        self.gate.wait()
        if x > self.edge:
            raise ValueError(f"x is {x}, beyond the edge")
        if len(self.seen) - 1 in self.flaky:
            raise OSError("the disk is slow today")
        return -((x - 0.3) ** 2) - (y - 0.7) ** 2


def config_of(
    strategies: str = "[sobol]\ngenerator = SobolGenerator\nmin_asks = 8\n",
    farm: Mapping[str, object] | None = None,
    *,
    names: str = "sobol",
    outcome: str = "continuous",
) -> str:
    """Return a configuration over the unit square that evaluates the bowl."""
    options = {"model": "bowl", **(farm or {})}
    section = "\n".join(f"{key} = {value}" for key, value in options.items())
    return (
        f"[common]\nparnames = [x, y]\noutcome_types = [{outcome}]\nstrategy_names = [{names}]\n"
        "[x]\npar_type = continuous\nlower_bound = 0\nupper_bound = 1\n"
        "[y]\npar_type = continuous\nlower_bound = 0\nupper_bound = 1\n"
        f"{strategies}[farm]\n{section}\n"
    )


@contextlib.asynccontextmanager
async def dispatching(model: Model, workers: int) -> AsyncIterator[Around]:
    """Run a dispatcher with the model in `workers` threads."""
    transport = LocalTransport({model.name or "": model}, workers=workers)
    dispatcher = Dispatcher([transport])
    watch(dispatcher)
    dispatcher.start()
    try:
        await dispatcher.wait_for_workers(workers, timeout_s=LIMIT_S)
        yield Around(dispatcher)
    finally:
        await dispatcher.close(grace_s=5)


@contextlib.asynccontextmanager
async def hosting(
    journal: Path, kind: type[Experiments] = Experiments, *, fitters: Fitters | None = None
) -> AsyncIterator[Experiments]:
    """Run the experiments of a journal."""
    experiments = kind(journal, fitters=fitters)
    await experiments.start()
    try:
        yield experiments
    finally:
        await experiments.stop()


async def set_up(host: Experiments, config: str | Mapping[str, Any]) -> tuple[Session, Experiment]:
    """Return a new experiment, and the session whose current experiment it is."""
    session = host.session()
    key = "config_str" if isinstance(config, str) else "config_dict"
    answer = await asked(host, session, "setup", **{key: config})
    return session, host.experiments[int(answer["strat_id"])]


async def asked(
    host: Experiments, session: Session, type: str, **message: object
) -> Mapping[str, Any]:
    """Return the answer to a client's message."""
    request = AepsychRequest(type, message, {})
    return (await asyncio.wait_for(host.handle(session, request), LIMIT_S)).answer
