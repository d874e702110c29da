"""Metrics in the form that Prometheus reads: names, labels, values, bounded labels."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as read_plain

import farm
from farm.dispatcher.call_statistics import Duration, ModelStatistics
from farm.dispatcher.dispatcher import Dispatcher
from farm.model import Config, Inputs
from farm.monitoring.counters import Counters
from farm.server.metrics import families
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


WORKER = {"slots": 2, "phase": "open", "in_flight": 0}
QUEUE = {
    "model": "beam",
    "operation": "gradient",
    "queued": 7,
    "oldest_s": 3.5,
    "in_flight": 2,
    "copies": 1,
}
NOTHING: dict[str, Any] = {"workers": [], "queues": []}

Labels = frozenset[tuple[str, str]]


class Read:
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def samples(
    snapshot: dict[str, Any], statistics: dict[str, ModelStatistics] | None = None
) -> dict[str, dict[Labels, float]]:
    """Return the values by name and labels, as Prometheus' own parser reads them."""
    registry = CollectorRegistry()
    registry.register(Read(list(families(NOTHING | snapshot, statistics or {}))))
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def by(**labels: str) -> Labels:
    return frozenset(labels.items())


def test_workers_by_state() -> None:
    rows = [
        WORKER,
        WORKER | {"in_flight": 1},
        WORKER | {"in_flight": 2},
        WORKER | {"phase": "full", "in_flight": 2},
        WORKER | {"phase": "shut"},
        WORKER | {"phase": "shut and full"},
    ]
    found = samples({"workers": rows})
    assert found["farm_workers"] == {
        by(state="idle"): 1,
        by(state="busy"): 2,
        by(state="full"): 1,
        by(state="shut"): 2,
    }
    assert found["farm_slots"] == {by(): 12}


def test_queues_by_model_and_operation() -> None:
    empty = QUEUE | {"operation": "evaluate", "queued": 0, "oldest_s": None}
    found = samples({"queues": [QUEUE, empty]})
    of, other = by(model="beam", operation="gradient"), by(model="beam", operation="evaluate")
    assert found["farm_queue_calls"] == {of: 7, other: 0}
    assert found["farm_queue_oldest_seconds"] == {of: 3.5, other: 0}
    assert found["farm_running_calls"][of] == 2
    assert found["farm_copies_total"][of] == 1


def test_causes_of_losses_are_there_before_the_first_loss() -> None:
    found = samples({"counts": Counters(Dispatcher([])).snapshot()})
    assert found["farm_worker_losses_total"] == {
        by(cause=cause): 0 for cause in ("unknown", "crash", "time limit", "reclaimed")
    }
    assert found["farm_worker_joins_total"] == {by(): 0}


def test_buckets_are_cumulative() -> None:
    histogram = {"bounds": [0.1, 1.0], "counts": [2, 0, 3], "sum": 40.5}
    row = {
        "model": "m",
        "operation": "evaluate",
        "ends": {"done": 5, "ModelFailed": 2},
        "retries": 4,
        "run_times_s": histogram,
        "waits_s": histogram,
        "overheads_s": histogram,
    }
    found = samples({"counts": Counters(Dispatcher([])).snapshot() | {"queues": [row]}})
    of = {"model": "m", "operation": "evaluate"}
    for name in ("farm_run_seconds", "farm_wait_seconds", "farm_overhead_seconds"):
        assert found[f"{name}_bucket"] == {
            by(**of, le="0.1"): 2,
            by(**of, le="1.0"): 2,
            by(**of, le="+Inf"): 5,
        }
        assert (found[f"{name}_count"], found[f"{name}_sum"]) == ({by(**of): 5}, {by(**of): 40.5})
    assert found["farm_calls_total"][by(**of, outcome="ModelFailed")] == 2
    assert found["farm_retries_total"] == {by(**of): 4}


def test_batches_are_whole_runs() -> None:
    thirds = Duration()
    for _ in range(3):
        thirds.add(0.1, 1 / 3)
    statistics = ModelStatistics(rows=9005, by_batch={3: thirds, 9000: Duration(1, 5.0)}, reused=8)
    found = samples({}, {"m": statistics})
    buckets = found["farm_batch_rows_bucket"]
    assert buckets[by(model="m", le="2.0")] == 0
    assert buckets[by(model="m", le="4.0")] == buckets[by(model="m", le="4096.0")] == 1
    assert buckets[by(model="m", le="+Inf")] == 2
    assert found["farm_batch_rows_sum"] == {by(model="m"): 9005}
    assert found["farm_reused_rows_total"] == {by(model="m"): 8}


def test_bytes_of_those_that_are_counted() -> None:
    found = samples({"http": {"received": 10, "sent": 20}})
    assert found["farm_received_bytes_total"] == {by(by="http"): 10}
    assert found["farm_sent_bytes_total"] == {by(by="http"): 20}


def test_jobs_of_the_batch_system() -> None:
    kinds = [{"name": "cpu", "wanted": 3}, {"name": "gpu", "wanted": 0}]
    jobs = [
        {"kind": "cpu", "phase": "pending"},
        {"kind": "cpu", "phase": "serving"},
        {"kind": "cpu", "phase": "serving"},
    ]
    cluster = {"system": "SLURM", "problem": "", "kinds": kinds, "jobs": jobs}
    found = samples({"cluster": cluster})
    assert found["farm_jobs"] == {
        by(kind="cpu", phase="pending"): 1,
        by(kind="cpu", phase="serving"): 2,
        by(kind="gpu", phase="pending"): 0,
    }
    assert found["farm_wanted_jobs"][by(kind="cpu")] == 3
    assert found["farm_batch_system_up"] == {by(system="SLURM"): 1}
    down = samples({"cluster": cluster | {"problem": "squeue: no answer"}})
    assert down["farm_batch_system_up"] == {by(system="SLURM"): 0}


def test_progress_has_labels_of_kinds_only() -> None:
    row = {"kind": "sweep", "client": "x", "done": 5, "failed": 1, "total": 10, "ends_in_s": 60.0}
    rows = [row | {"name": f"s{number}"} for number in range(1000)]
    rows += [row | {"kind": "chain", "name": "c", "total": None, "ends_in_s": None}]
    found = samples({"progress": rows})
    assert found["farm_progress_points"] == {
        by(kind="sweep", state="done"): 5000,
        by(kind="sweep", state="failed"): 1000,
        by(kind="sweep", state="left"): 4000,
        by(kind="chain", state="done"): 5,
        by(kind="chain", state="failed"): 1,
        by(kind="chain", state="left"): 0,
    }
    assert found["farm_progress_left_seconds"][by(kind="sweep")] == 60


def test_the_process_and_the_version() -> None:
    found = samples({})
    assert found["process_resident_memory_bytes"][by()] > 1e6
    assert len(found["farm_build_info"]) == 1
