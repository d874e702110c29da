"""The probe: its points are part of the sweep, and mistakes are reported before it starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import h5py
import numpy as np
import pytest

import farm
from farm.call import NO_HINTS, Call, Hints, Result
from farm.errors import Unavailable
from farm.sweep.design.plan import Plan
from farm.sweep.errors import SweepError
from farm.sweep.file.store import Store
from farm.sweep.run.in_flight import probe
from farm.sweep.run.run import Rules, Run, Stop
from farm.sweep.run.threads import Threads
from tests.sweep.samples import plan_of


class Counting(farm.Model):
    inputs = {"k": 1}
    outputs = {"y": 2}
    calls = 0
    fails = 0
    gate: threading.Event | None = None

    def describe(self, config: farm.Config) -> tuple[dict[str, int], dict[str, int]]:
        return {"k": 1}, {"y": config.get("size", 2)}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> np.ndarray:
        self.calls += 1
        if self.gate is not None:
            self.gate.wait(20)
        if self.calls <= self.fails:
            raise ValueError("no such mesh")
        return np.repeat(inputs["k"], config.get("size", 2))


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
def threads(model: Counting) -> Iterator[Threads]:
    made = Threads({"m": model}, workers=2)
    yield made
    made.close()


def plan(threads: Threads, design: str = "grid:8", **config: object) -> Plan:
    return plan_of(design, {"k": "0:1"}, info=threads.describe("m"), config=config)


def test_its_point_is_part_of_the_sweep(tmp_path: Path, threads: Threads, model: Counting) -> None:
    made = plan(threads)
    started = probe(made, threads)
    assert list(started.points) == made.mixed()[:1].tolist()
    store = Store.create(tmp_path / "s.h5", made)
    Run(store, started, rules=Rules(), stop=Stop()).go()
    assert model.calls == 8
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["out_0"][:, 1].tolist() == made.theta[:, 0].tolist()
        assert file["attempts"][:].tolist() == [1] * 8


def test_a_point_may_fail_in_its_own_right(
    tmp_path: Path, threads: Threads, model: Counting
) -> None:
    model.fails = 2
    made = plan(threads)
    started = probe(made, threads)
    assert list(started.points) == made.mixed()[:3].tolist()
    store = Store.create(tmp_path / "s.h5", made)
    progress = Run(store, started, rules=Rules(), stop=Stop()).go()
    assert (progress.done, progress.failed, model.calls) == (6, 2, 8)


def test_a_model_that_fails_three_times_is_told_with_its_traceback(
    threads: Threads, model: Counting
) -> None:
    model.fails = 3
    message = r"first 3 points failed.*ModelFailed.*no such mesh.*probe=False"
    with pytest.raises(SweepError, match=message) as told:
        probe(plan(threads), threads)
    assert "Traceback" in told.value.detail


def test_fewer_points_than_tries(threads: Threads, model: Counting) -> None:
    model.fails = 3
    with pytest.raises(SweepError, match="first 1 points"):
        probe(plan(threads, "grid:1"), threads)


def test_outputs_of_other_sizes_are_told(threads: Threads) -> None:
    with pytest.raises(SweepError, match="has 3 entries, the sweep's file has 2"):
        probe(plan(threads, size=3), threads)


def test_a_slow_model_keeps_nobody_waiting(
    tmp_path: Path, threads: Threads, model: Counting
) -> None:
    model.gate = threading.Event()
    made = plan(threads)
    started = probe(made, threads, patience_s=0.1)
    (sent,) = started.points.values()
    assert sent.answers == [None]
    model.gate.set()
    store = Store.create(tmp_path / "s.h5", made)
    assert Run(store, started, rules=Rules(), stop=Stop()).go().done == 8
    assert model.calls == 8


def test_a_farm_that_is_gone_is_no_fault_of_the_model(threads: Threads) -> None:
    class Gone(Threads):
        def submit(self, call: Call, hints: Hints = NO_HINTS) -> Future[Result]:
            future: Future[Result] = Future()
            future.set_exception(Unavailable("gone"))
            return future

    gone = Gone({"m": Counting()})
    with pytest.raises(Unavailable):
        probe(plan(threads), gone)
    gone.close()
