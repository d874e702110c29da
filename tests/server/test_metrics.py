"""Metrics in the form that Prometheus reads."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_plain

import farm
from farm.model import Config, Inputs
from tests.support.front_door import WAIT_S, Door, front_door, until

LINE = re.compile(r'(nv_\w+)\{model="((?:[^"\\\n]|\\.)*)",version="1"(,reason="OTHER")?\} (\d+)')


class Gate(farm.Model):
    inputs = {"x": 1}
    outputs = {"y": 1}
    max_batch = 4

    def __init__(self) -> None:
        self.open = threading.Event()
        self.runs = 0

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.runs += 1
        self.open.wait(WAIT_S)
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return inputs["x"]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def door(gate: Gate) -> Iterator[Door]:
    with front_door({"gate": gate, 'odd "name"\\': gate}) as opened:
        yield opened


def metrics(door: Door) -> dict[tuple[str, str], int]:
    """Return the values by metric and model, after checking the format of every line."""
    response = door.ask("GET", "/metrics")
    assert response.status == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = response.data.decode()
    assert text.endswith("\n")
    values, typed = {}, set()
    for line in text.splitlines():
        if "nv_" not in line:  # farm's own metrics
            continue
        if line.startswith("#"):
            _, what, metric, *_ = line.split(" ")
            assert what in ("HELP", "TYPE")
            typed.add(metric)
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        assert match[1] in typed
        assert (match[3] is not None) == match[1].endswith("_failure")
        values[match[1].removeprefix("nv_inference_"), match[2]] = int(match[4])
    return values


def infer(door: Door, values: list[float]) -> int:
    tensor = {"name": "x", "shape": [len(values), 1], "datatype": "FP64", "data": values}
    return door.ask("POST", "/v2/models/gate/infer", {"inputs": [tensor]}).status


def test_counts_and_times(door: Door, gate: Gate) -> None:
    before = metrics(door)
    assert len(before) == 24
    assert set(before.values()) == {0}
    assert ("count", r"odd \"name\"\\") in before
    gate.open.set()
    assert infer(door, [1, 2, 3]) == 200
    assert infer(door, [-1]) == 500
    after = metrics(door)
    told = {metric: value for (metric, model), value in after.items() if model == "gate"}
    assert (told["request_success"], told["request_failure"]) == (1, 1)
    assert (told["count"], told["exec_count"]) == (3, 1)
    assert told["request_duration_us"] >= told["compute_infer_duration_us"] > 0
    assert (told["compute_input_duration_us"], told["pending_request_count"]) == (0, 0)


def test_what_waits(door: Door, gate: Gate) -> None:
    threads = [threading.Thread(target=infer, args=(door, [1.0] * 4)) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: metrics(door)["pending_request_count", "gate"] > 0, "some wait")
    gate.open.set()
    for thread in threads:
        thread.join()
    assert metrics(door)["pending_request_count", "gate"] == 0


def test_other_methods_are_refused(door: Door) -> None:
    response = door.ask("POST", "/metrics", {})
    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD")


OPEN = "application/openmetrics-text"
PROMETHEUS_3 = (
    f"{OPEN};version=1.0.0;escaping=allow-utf-8;q=0.6,{OPEN};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What Prometheus 3 asks for."""


def exposition(door: Door, accept: str = "") -> str:
    response = door.ask("GET", "/metrics", headers={"Accept": accept})
    assert response.status == 200
    assert response.headers["content-type"].startswith(OPEN if OPEN in accept else "text/plain")
    return response.data.decode()


@pytest.mark.parametrize("accept", ["", "text/html,*/*", OPEN, PROMETHEUS_3])
def test_prometheus_own_parser_reads_every_format(door: Door, gate: Gate, accept: str) -> None:
    gate.open.set()
    assert infer(door, [1, 2, 3]) == 200
    read, end = (read_open, "") if OPEN in accept else (read_plain, "_total")
    values = {
        (sample.name, sample.labels.get("model")): sample.value
        for family in read(exposition(door, accept))
        for sample in family.samples
    }
    # The reader of the plain format adds the end that it expects of counters.
    assert values[f"nv_inference_count{end}", "gate"] == 3
    assert values["farm_calls_total", "gate"] == 1
    assert values["farm_run_seconds_count", "gate"] == 1
    assert values["farm_received_bytes_total", None] > 0
    assert values["process_cpu_seconds_total", None] > 0
    assert (f"nv_inference_count{end}", 'odd "name"\\') in values


def test_promtool_has_no_complaint(door: Door, gate: Gate) -> None:
    """Triton's names are left out: they break its conventions."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool (apt install prometheus)")
    gate.open.set()
    assert infer(door, [1, 2, 3]) == 200
    assert infer(door, [-1]) == 500
    lines = exposition(door).splitlines(keepends=True)
    own = "".join(line for line in lines if "nv_" not in line)
    assert "farm_workers" in own
    command = [program, "check", "metrics"]
    done = subprocess.run(command, input=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_clients_are_no_labels(door: Door, gate: Gate) -> None:
    gate.open.set()
    question = {"name": "gate", "input": [[1]], "config": {}}
    headers = {"Farm-Client": "anna", "Farm-Chain": "chain-7"}
    assert door.ask("POST", "/Evaluate", question, headers).status == 200
    assert "anna" not in exposition(door)
    assert "chain-7" not in exposition(door)
