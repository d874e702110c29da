"""What failed and why, at a whole farm: a model that fails now and then, and workers that die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import farm
from farm.call import Call, Operation
from farm.cli import run
from farm.client import Client
from farm.errors import FarmError, ModelFailed, WorkerLost
from tests.support.dispatcher_farm import Served, serving

MODELS = """
import os, signal, tempfile
import farm

class Tenth(farm.Model):
    name = "tenth"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        x = inputs["x"][0]
        if x % 10 == 3:
            raise ArithmeticError(f"no root at {x} in {tempfile.gettempdir()}/tmp{int(x):08d}/mesh")
        return [x * x]

class Many(farm.Model):
    name = "many"
    max_batch = 8
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        raise ArithmeticError("no root")

class Deadly(farm.Model):
    name = "deadly"
    inputs = {"x": 1}
    outputs = {"y": 1}

    def evaluate(self, inputs, config):
        print("the last words of this worker", flush=True)
        if config["how"] == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
"""

POINTS = np.arange(1000.0)[:, None]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "models.py").write_text(MODELS)
    specs = [f"models.py:{name}" for name in ("Tenth", "Deadly")]
    with serving(tmp_path, *specs, "--workers", "2", "--retries", "1") as served:
        yield served


def connected(served: Served, way: str) -> Client:
    return farm.connect(served.folder if way == "native" else served.connection.url, client="me")


@pytest.mark.parametrize("way", ["native", "http"])
def test_each_point_that_fails_counts_once(served: Served, way: str) -> None:
    with connected(served, way) as client:
        model = client.model("tenth")
        outcomes = list(model.map(POINTS.tolist(), return_errors=True))
        failed = [outcome for outcome in outcomes if isinstance(outcome, FarmError)]
        assert len(failed) == 100
        (reason,) = client.failures()
        assert (reason.model, reason.kind, reason.operation) == ("tenth", "ModelFailed", "evaluate")
        assert (reason.count, reason.client) == (100, "me")
        assert reason.text.startswith("ArithmeticError: no root at ")
        assert reason.worker in {row["name"] for row in client.status()["workers"]}
        assert reason.inputs.startswith("x = [")
        assert float(reason.inputs.removeprefix("x = [").rstrip("]")) % 10 == 3
        assert "raise ArithmeticError(" in reason.detail


def test_a_long_call_is_one_failure_however_many_parts_fail(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    with (
        serving(tmp_path, "models.py:Many", "--workers", "2") as served,
        connected(served, "native") as client,
    ):
        with pytest.raises(ModelFailed):
            client.submit(Call("many", Operation.EVALUATE, (POINTS,), rows=len(POINTS))).result()
        assert [reason.count for reason in client.failures()] == [1]


def test_a_worker_that_dies_again_and_again_is_seen_with_its_end(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--to", str(served.folder)]
    with connected(served, "native") as client:
        model = client.model("deadly")
        for how in ("exit", "kill", "exit"):
            with pytest.raises(WorkerLost, match="lost 2 times"):
                model([[1.0]], config={"how": how})
        losses = {(loss.exit_code, loss.signal): loss for loss in client.losses()}
        by_exit, by_signal = losses[3, ""], losses[None, "SIGKILL"]
        assert len(losses) == 2
        assert (by_exit.count, by_exit.text) == (4, "exit code 3")
        assert (by_signal.count, by_signal.text) == (2, "signal SIGKILL")
        assert by_exit.hosts == {by_exit.host: 4}
        assert "the last words of this worker" in by_exit.detail
        failed = [(reason.model, reason.kind, reason.count) for reason in client.failures()]
        assert failed == [("deadly", "WorkerLost", 2), ("deadly", "WorkerLost", 1)]
    assert run(["failures", "--json", *target]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found["losses"]] == [by_exit.id, by_signal.id]
    assert run(["failures", by_exit.id, *target]) == 0
    assert "the last words of this worker" in capsys.readouterr().out
    assert run(["status", *target]) == 0
    assert "3 calls failed for 2 reasons, 6 workers lost for 2 reasons: see" in (
        capsys.readouterr().out
    )
