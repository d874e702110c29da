"""A sweep in a separate process, which tests start with `write` and kill; and what it left."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np

import farm
from farm.call import Array
from farm.sweep.design.plan import Plan
from farm.sweep.design.points import parse_design
from farm.sweep.design.prepare import SweepRequest, make_plan
from farm.sweep.file.journal import Row, read_journal
from farm.sweep.file.store import Store
from farm.sweep.run.evaluator import FutureLine, Threads
from farm.sweep.run.in_flight import PointsInFlight
from farm.sweep.run.run import Rules, Run, Stop
from farm.sweep.space.parameters import Uniform

POINTS = 8000
SIZE = 50


def outputs_of(theta: Array) -> Array:
    """Return the model's outputs for a row of parameters: values that no other row has."""
    numbers: Array = theta[0] + np.arange(SIZE) * theta[1]
    return numbers


def fails(theta: Array) -> bool:
    """Whether the model fails at a row, as it does for a tenth of the points."""
    return bool(theta[0] > 0.9)


class Logged(farm.Model):
    """Logs each evaluation before it starts, so that a repeated one is noticed."""

    inputs = {"x": 2}
    outputs = {"y": SIZE}

    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Array:
        os.write(self._log, inputs["x"].tobytes())
        if fails(inputs["x"]):
            raise ValueError("x is too large")
        return outputs_of(inputs["x"])


class Together:
    """Takes many calls together, for the threads."""

    def __init__(self, threads: Threads) -> None:
        self.describe, self.submit = threads.describe, threads.submit
        line = FutureLine(threads)
        self.send, self.cancel = line.send, line.cancel

    @property
    def line(self) -> Together:
        return self


def evaluations(log: Path) -> Array:
    """Return the parameters of all evaluations in a log, shape (evaluations, 2)."""
    content = log.read_bytes() if log.exists() else b""
    whole = len(content) // 16 * 16
    rows: Array = np.frombuffer(content[:whole]).reshape(-1, 2)
    return rows


def outcomes(journal: Path) -> set[bytes]:
    """Return the parameters of all points with an outcome in a journal; empty if it is missing."""
    found: set[bytes] = set()
    theta: Array = np.empty((0, 2))
    with contextlib.suppress(FileNotFoundError):
        for record in read_journal(journal):
            if isinstance(record.content, Row):
                found.add(theta[record.content.point].tobytes())
            elif hasattr(record.content, "theta"):
                theta = record.content.theta
    return found


def plan(model: Logged, *, design: str, gzip: bool) -> Plan:
    """Return the sweep's plan, which has the same points every time."""
    threads = Threads({"logged": model})
    request = SweepRequest(parse_design(design), 7, {"x": Uniform(0, 1)}, gzip=gzip)
    made = make_plan(request, lambda config: threads.describe("logged"))
    threads.close()
    return made


def write(path: Path, log: Path, design: str, gzip: bool, together: bool = False) -> None:
    """Start the sweep, or resume it. together: submit many points at once."""
    model = Logged(log)
    threads = Threads({"logged": model}, workers=2)
    if path.exists() or path.with_name(path.name + ".journal").exists():
        store = Store.resume(path)
    else:
        store = Store.create(path, plan(model, design=design, gzip=gzip))
    sent = PointsInFlight(Together(threads) if together else threads, store.plan)
    Run(store, sent, rules=Rules(), stop=Stop()).go()
    threads.close()
