"""The probe: one evaluation that counts, and mistakes told before a sweep begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

import farm
from farm.sweep.errors import SweepError
from farm.sweep.journal import Status
from farm.sweep.plan import Plan
from farm.sweep.probe import probe
from farm.sweep.run import Rules, Run, Stop
from farm.sweep.store import Store
from farm.sweep.threads import Threads
from tests.sweep.samples import plan_of


class Counting(farm.Model):
    inputs = {"k": 1}
    outputs = {"y": 2}
    calls = 0

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> np.ndarray:
        self.calls += 1
        if config.get("bad"):
            raise ValueError("no such mesh")
        return np.repeat(inputs["k"], config.get("size", 2))

    def describe(self, config: farm.Config) -> tuple[dict[str, int], dict[str, int]]:
        return {"k": 1}, {"y": config.get("size", 2)}


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
def threads(model: Counting) -> Iterator[Threads]:
    made = Threads({"m": model})
    yield made
    made.close()


def plan(threads: Threads, design: str = "grid:5", **config: object) -> Plan:
    return plan_of(design, {"k": "0:1"}, info=threads.describe("m"), config=config)


def test_its_outcome_is_as_good_as_any_other(
    tmp_path: Path, threads: Threads, model: Counting
) -> None:
    made = plan(threads)
    first = probe(made, threads)
    assert first.point == made.order()[0]
    store = Store.create(tmp_path / "s.h5", made)
    assert first.put(store).status is Status.DONE
    Run(store, threads, rules=Rules(), stop=Stop()).go()
    assert model.calls == 5
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["out_0"][:, 1].tolist() == made.theta[:, 0].tolist()
        assert file["worker"][:].tolist() == [0] * 5
        assert np.all(file["t_total"][:] > 0)


def test_a_model_that_raises_is_told_with_its_traceback(threads: Threads) -> None:
    with pytest.raises(SweepError, match=r"failed: ModelFailed.*no such mesh.*--no-probe") as told:
        probe(plan(threads, bad=True), threads)
    assert "Traceback" in told.value.detail


def test_outputs_of_other_sizes_are_told(threads: Threads) -> None:
    with pytest.raises(SweepError, match="has 3 entries, the sweep's file has 2"):
        probe(plan(threads, size=3), threads)
