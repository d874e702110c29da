"""Metrics for Prometheus at /metrics: farm's own, beside those under Triton's names.

farm's own are read from its snapshot. Their labels are bounded: models and operations, phases,
causes and kinds of errors, but no clients. Dashboards made for Triton work with a farm, too; its
names break some of Prometheus' conventions, which farm's own follow.
Source: https://prometheus.io/docs/practices/naming and its neighbours; Prometheus' text format
0.0.4; OpenMetrics 1.0; Triton's metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from farm.bodies.unpacking import wrong_method
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.statistics import ModelStatistics
from farm.http.request import Answer, Handler, Request
from farm.protocols.kserve.versions import numbered
from farm.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OPEN_METRICS = "application/openmetrics-text"
END = b"# EOF\n"
"""The last line of OpenMetrics."""

BATCH_ROWS = tuple(2**power for power in range(13))
"""Bounds of batch sizes, in rows."""

Snapshot = Mapping[str, Any]
Values = Iterable[tuple[Any, ...]]
"""Labels and the value; of a histogram labels, buckets and the sum."""

OF_QUEUE = "model operation"
BY = (
    "http: by HTTP clients' connections; messages: in farm's own messages of workers and native "
    "clients"
)

FAMILIES = {
    "farm_build_info": ("Gauge", "version", "Version of farm"),
    "farm_workers": (
        "Gauge",
        "state",
        "Workers by state; full: has not read what it was sent; shut: drains or cannot be reached",
    ),
    "farm_slots": ("Gauge", "", "Calls that all workers together run at once"),
    "farm_queue_calls": ("Gauge", OF_QUEUE, "Calls that wait for a worker"),
    "farm_queue_oldest_seconds": ("Gauge", OF_QUEUE, "Age of the oldest waiting call"),
    "farm_running_calls": ("Gauge", OF_QUEUE, "Calls that workers have"),
    "farm_copies": ("Counter", OF_QUEUE, "Copies of slow calls, sent to a second worker"),
    "farm_worker_joins": ("Counter", "", "Workers that joined"),
    "farm_worker_drains": ("Counter", "", "Workers that left in order"),
    "farm_worker_losses": ("Counter", "cause", "Workers that were lost, by cause"),
    "farm_calls": (
        "Counter",
        f"{OF_QUEUE} outcome",
        "Calls that ended, by outcome: done, or the error; a long call counts once for each part",
    ),
    "farm_retries": (
        "Counter",
        OF_QUEUE,
        "Times that calls, since ended, were sent again because a worker was lost",
    ),
    "farm_run_seconds": ("Histogram", OF_QUEUE, "Time in the model, of a call, a batch or a row"),
    "farm_wait_seconds": ("Histogram", OF_QUEUE, "Time from taking a call to the start of its run"),
    "farm_overhead_seconds": (
        "Histogram",
        OF_QUEUE,
        "Time from taking a call to its answer, less its run, if a worker was free",
    ),
    "farm_batch_rows": ("Histogram", "model", "Rows of one run of the model"),
    "farm_reused_rows": (
        "Counter",
        "model",
        "Rows answered from the record, or from another call's run",
    ),
    "farm_received_bytes": ("Counter", "by", f"Bytes received; {BY}"),
    "farm_sent_bytes": ("Counter", "by", f"Bytes sent; {BY}"),
    "farm_jobs": ("Gauge", "kind phase", "Jobs of the batch system, by kind of workers and phase"),
    "farm_wanted_jobs": ("Gauge", "kind", "Jobs that the demand calls for"),
    "farm_batch_system_up": ("Gauge", "system", "Whether the batch system answers"),
    "farm_progress_points": (
        "Gauge",
        "kind state",
        "Points of the sweeps, experiments and chains that run now",
    ),
    "farm_progress_left_seconds": (
        "Gauge",
        "kind",
        "Time until the last of them is expected to end; 0 if it is not known",
    ),
}
"""farm's own metrics: kind, labels, text. Samples of a counter are called `name` and `_total`."""

COUNTERS: dict[str, tuple[str, Callable[[ModelStatistics], float]]] = {
    "nv_inference_request_success": ("Requests that succeeded", lambda m: m.success.count),
    "nv_inference_request_failure": ("Requests that failed", lambda m: m.fail.count),
    "nv_inference_count": ("Rows evaluated", lambda m: m.rows),
    "nv_inference_exec_count": ("Runs of the model, each for a batch", lambda m: m.executions),
    "nv_inference_request_duration_us": (
        "Microseconds from taking requests to their answers",
        lambda m: m.success.seconds * 1e6,
    ),
    "nv_inference_queue_duration_us": (
        "Microseconds that requests waited",
        lambda m: m.queue.seconds * 1e6,
    ),
    "nv_inference_compute_input_duration_us": ("Counted as compute_infer", lambda m: 0),
    "nv_inference_compute_infer_duration_us": (
        "Microseconds in the model",
        lambda m: m.compute.seconds * 1e6,
    ),
    "nv_inference_compute_output_duration_us": ("Counted as compute_infer", lambda m: 0),
    "nv_cache_num_hits_per_model": (
        "Rows answered from the record, or from another call's run",
        lambda m: m.reused,
    ),
    "nv_cache_num_misses_per_model": (
        "Rows that the record could have answered, but did not know",
        lambda m: m.missed,
    ),
}
PENDING = "nv_inference_pending_request_count"

NOTHING = ModelStatistics()


def metrics_handler(backend: Dispatcher) -> Handler:
    """Return the handler that shows the metrics of `backend`."""

    def handler(request: Request, answer: Answer) -> None:
        if request.method not in ("GET", "HEAD"):
            raise wrong_method("/metrics", request.method, "GET", "HEAD")
        accepted = request.headers.get(b"accept", b"").decode("latin-1")
        body, content_type = _exposition(backend, accepted)
        answer(200, body, (), content_type.encode())

    return handler


def _exposition(backend: Dispatcher, accepted: str) -> tuple[bytes, str]:
    """Return all metrics and their content type, in the format that an Accept header asks for."""
    from prometheus_client.exposition import choose_encoder

    snapshot, statistics = backend.snapshot(), backend.statistics()
    metrics = list(families(snapshot, statistics))
    encode, content_type = choose_encoder(accepted)
    # Of a registry, an encoder asks only for the metrics that its collectors have.
    own = encode(SimpleNamespace(collect=lambda: metrics))
    is_open = content_type.startswith(OPEN_METRICS)
    # OpenMetrics has no counters without the end "_total", which Triton's do not have.
    kind = "unknown" if is_open else "counter"
    lines = _triton(backend.models(), snapshot["queues"], statistics, kind)
    triton = "".join(f"{line}\n" for line in lines).encode()
    return own.removesuffix(END) + triton + END if is_open else triton + own, content_type


def _triton(
    models: Collection[str],
    queues: Iterable[Snapshot],
    statistics: Mapping[str, ModelStatistics],
    counter: str,
) -> Iterator[str]:
    """Yield the lines of the metrics under Triton's names. counter: the type of counters."""
    labels = {}
    for served_as in models:
        name, version, _ = numbered(served_as, models)
        name = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        labels[served_as] = f'model="{name}",version="{version}"'
    waiting: Counter[str] = Counter()
    for queue in queues:
        waiting[queue["model"]] += queue["queued"]

    rows: list[tuple[str, str, str, Mapping[str, int]]] = [
        (name, text, counter, {m: round(value(statistics.get(m, NOTHING))) for m in labels})
        for name, (text, value) in COUNTERS.items()
    ]
    rows.append((PENDING, "Requests that wait for a worker", "gauge", waiting))
    for name, text, kind, values in rows:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        reason = ',reason="OTHER"' if name.endswith("_failure") else ""
        for model, of in labels.items():
            yield f"{name}{{{of}{reason}}} {values[model]}"


def families(snapshot: Snapshot, statistics: Mapping[str, ModelStatistics]) -> Iterator[Metric]:
    """Yield the metrics of a farm whose dispatcher has this snapshot and these statistics.

    A part that the snapshot lacks, such as that of jobs, has no metrics.
    """
    from prometheus_client import ProcessCollector, core

    for name, values in _own(snapshot, statistics):
        kind, labels, text = FAMILIES[name]
        family = getattr(core, f"{kind}MetricFamily")(name, text, labels=labels.split())
        for value in values:
            family.add_metric(*value)
        yield family
    yield from ProcessCollector(registry=None).collect()


def _own(
    snapshot: Snapshot, statistics: Mapping[str, ModelStatistics]
) -> Iterator[tuple[str, Values]]:
    """Yield the names of farm's own metrics, with their values."""
    yield "farm_build_info", [((__version__,), 1)]
    workers = snapshot["workers"]
    states = Counter({"idle": 0, "busy": 0, "full": 0, "shut": 0})
    for row in workers:
        state = row["phase"].split()[0]  # "shut and full" is shut
        if state == "open":
            state = "busy" if row["in_flight"] else "idle"
        states[state] += 1
    yield "farm_workers", [((state,), count) for state, count in states.items()]
    yield "farm_slots", [((), sum(row["slots"] for row in workers))]
    queues = [(_of(row), row) for row in snapshot["queues"]]
    yield "farm_queue_calls", [(of, row["queued"]) for of, row in queues]
    yield "farm_queue_oldest_seconds", [(of, row["oldest_s"] or 0) for of, row in queues]
    yield "farm_running_calls", [(of, row["in_flight"]) for of, row in queues]
    yield "farm_copies", [(of, row["copies"]) for of, row in queues]
    if "counts" in snapshot:
        yield from _of_counts(snapshot["counts"])
    yield "farm_batch_rows", [((model,), *_batches(of)) for model, of in statistics.items()]
    yield "farm_reused_rows", [((model,), of.reused) for model, of in statistics.items()]
    traffic = [(by, snapshot[by]) for by in ("http", "messages") if by in snapshot]
    for direction in ("received", "sent"):
        yield f"farm_{direction}_bytes", [((by,), each[direction]) for by, each in traffic]
    if "cluster" in snapshot:
        yield from _of_jobs(snapshot["cluster"])
    if "progress" in snapshot:
        yield from _of_progress(snapshot["progress"])


def _of_counts(counts: Snapshot) -> Iterator[tuple[str, Values]]:
    yield "farm_worker_joins", [((), counts["joins"])]
    yield "farm_worker_drains", [((), counts["drained"])]
    yield "farm_worker_losses", [((cause,), count) for cause, count in counts["losses"].items()]
    queues = [(_of(row), row) for row in counts["queues"]]
    ends = ((of, row["ends"].items()) for of, row in queues)
    yield "farm_calls", [((*of, end), count) for of, each in ends for end, count in each]
    yield "farm_retries", [(of, row["retries"]) for of, row in queues]
    for name, key in (
        ("farm_run_seconds", "run_times_s"),
        ("farm_wait_seconds", "waits_s"),
        ("farm_overhead_seconds", "overheads_s"),
    ):
        times = [(of, row[key]) for of, row in queues]
        yield name, [(of, _buckets(t["bounds"], t["counts"]), t["sum"]) for of, t in times]


def _batches(of: ModelStatistics) -> tuple[list[tuple[str, int]], int]:
    """Return the buckets and the sum of the rows of each run of a model."""
    counts = [0.0] * (len(BATCH_ROWS) + 1)
    for rows, runs in list(of.by_batch.items()):
        counts[bisect_left(BATCH_ROWS, rows)] += runs.count
    # Each call of a batch counts its share of the run; together they are whole.
    return _buckets(BATCH_ROWS, map(round, counts)), of.rows


def _of_jobs(cluster: Snapshot) -> Iterator[tuple[str, Values]]:
    states = Counter({(kind["name"], "pending"): 0 for kind in cluster["kinds"]})
    for job in cluster["jobs"]:
        states[job["kind"], job["phase"]] += 1
    yield "farm_jobs", states.items()
    yield "farm_wanted_jobs", [((kind["name"],), kind["wanted"]) for kind in cluster["kinds"]]
    yield "farm_batch_system_up", [((cluster["system"],), 0 if cluster["problem"] else 1)]


def _of_progress(rows: Iterable[Snapshot]) -> Iterator[tuple[str, Values]]:
    points: Counter[tuple[str, str]] = Counter()
    ends: dict[tuple[str], float] = {}
    for row in rows:
        kind, done, failed, total = row["kind"], row["done"], row["failed"], row.get("total")
        points[kind, "done"] += done
        points[kind, "failed"] += failed
        points[kind, "left"] += max(0, total - done - failed) if total else 0
        ends[kind,] = max(ends.get((kind,), 0.0), row.get("ends_in_s") or 0.0)
    yield "farm_progress_points", points.items()
    yield "farm_progress_left_seconds", ends.items()


def _of(row: Snapshot) -> tuple[str, str]:
    return row["model"], row["operation"]


def _buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, int]]:
    """Return the buckets of a histogram from the count of each alone."""
    named = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(named, accumulate(counts), strict=True))
