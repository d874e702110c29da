"""The metrics that are read from a snapshot: names, labels, values, and that labels are bounded."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.statistics import Duration, ModelStatistics
from farm.monitoring.counters import Counters
from farm.server.metrics import families

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
