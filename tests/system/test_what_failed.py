"""What failed and why, at a whole farm: a model that fails now and then, and workers that die."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import farm
from farm.call import Call, Operation
from farm.cli import run
from farm.client import Client, FailedCalls
from farm.errors import FarmError, ModelFailed, WorkerLost
from tests.support.dispatcher_farm import Served, farm_of

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


served = farm_of(MODELS, "Tenth", "Many", "Deadly", options="--retries 1", workers=2)


def failures_of(client: Client, model: str) -> list[FailedCalls]:
    return [reason for reason in client.failures() if reason.model == model]


def test_each_point_that_fails_counts_once(served: Served) -> None:
    for count, target in ((100, served.folder), (200, served.connection.url)):
        with farm.connect(target, client="me") as client:
            model = client.model("tenth")
            outcomes = list(model.map(POINTS.tolist(), return_errors=True))
            assert sum(isinstance(outcome, FarmError) for outcome in outcomes) == 100
            (reason,) = failures_of(client, "tenth")
            workers = {row["name"] for row in client.status()["workers"]}
        assert (reason.kind, reason.operation) == ("ModelFailed", "evaluate")
        assert (reason.count, reason.client) == (count, "me")
        assert reason.text.startswith("ArithmeticError: no root at ")
        assert reason.worker in workers
        assert reason.inputs.startswith("x = [")
        assert float(reason.inputs.removeprefix("x = [").rstrip("]")) % 10 == 3
        assert "raise ArithmeticError(" in reason.detail


def test_a_long_call_is_one_failure_however_many_parts_fail(served: Served) -> None:
    with farm.connect(served.folder) as client:
        with pytest.raises(ModelFailed):
            client.submit(Call("many", Operation.EVALUATE, (POINTS,), rows=len(POINTS))).result()
        assert [reason.count for reason in failures_of(client, "many")] == [1]


def test_a_worker_that_dies_again_and_again_is_seen_with_its_end(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--to", str(served.folder)]
    with farm.connect(served.folder) as client:
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
        failed = [(reason.kind, reason.count) for reason in failures_of(client, "deadly")]
        assert failed == [("WorkerLost", 2), ("WorkerLost", 1)]
    assert run(["failures", "--json", *target]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found["losses"]] == [by_exit.id, by_signal.id]
    assert run(["failures", by_exit.id, *target]) == 0
    assert "the last words of this worker" in capsys.readouterr().out
    assert run(["status", *target]) == 0
    assert re.search(
        r"\d+ calls failed for \d reasons, 6 workers lost for 2 reasons: see",
        capsys.readouterr().out,
    )
