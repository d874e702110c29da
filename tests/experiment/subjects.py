"""Experiments on models of a real dispatcher, in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farm.dispatcher import Dispatcher
from farm.experiment.evaluators import Around
from farm.experiment.experiment import Experiment
from farm.experiment.host import Experiments
from farm.experiment.session import Session
from farm.model import Config, Inputs, Model
from farm.protocols.aepsych import Request
from farm.transports.local import LocalTransport


class Bowl(Model):
    """-(x - 0.3)^2 - (y - 0.7)^2, where x is below `edge`; beyond it the model raises.

    gate: an evaluation waits for it when it is not set. seen: x of each evaluation, as it began.
    """

    name = "bowl"
    inputs = {"x": 1, "y": 1}
    outputs = {"height": 1}

    def __init__(self, edge: float = np.inf) -> None:
        self.edge = edge
        self.gate = threading.Event()
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
    """A configuration over the unit square whose subject is the bowl."""
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
    """A dispatcher with the model in so many threads."""
    transport = LocalTransport({model.name or "": model}, workers=workers)
    dispatcher = Dispatcher([transport])
    dispatcher.start()
    try:
        await dispatcher.wait_for_workers(workers, timeout_s=10)
        yield Around(dispatcher)
    finally:
        await dispatcher.close(grace_s=5)


@contextlib.asynccontextmanager
async def hosting(journal: Path) -> AsyncIterator[Experiments]:
    """The experiments of a journal."""
    experiments = Experiments(journal)
    await experiments.start()
    try:
        yield experiments
    finally:
        await experiments.stop()


async def set_up(host: Experiments, config: str) -> tuple[Session, Experiment]:
    """A new experiment, and the session that it is the current one of."""
    session = host.session()
    answer = await asked(host, session, "setup", config_str=config)
    return session, host.experiments[int(answer["strat_id"])]


async def asked(
    host: Experiments, session: Session, type: str, **message: object
) -> Mapping[str, Any]:
    """The answer to a message of a client."""
    return (await host.handle(session, Request(type, message, {}))).answer
