"""Metrics for Prometheus at /metrics: farm's own, beside those of protocols.

farm's own are read from its snapshot. Their labels are bounded: models and operations, phases,
causes and kinds of errors, but no clients. Those of a protocol have names that its users know.
Source: https://prometheus.io/docs/practices/naming and its neighbours; Prometheus' text format
0.0.4; OpenMetrics 1.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from farm.bodies.unpacking import wrong_method
from farm.dispatcher.call_statistics import ModelStatistics
from farm.dispatcher.dispatcher import Dispatcher
from farm.http1.request import Answer, Handler, Request
from farm.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OPEN_METRICS = "application/openmetrics-text"
END = b"# EOF\n"
"""The last line of OpenMetrics."""

BATCH_ROWS = tuple(2**power for power in range(13))
"""Bounds of batch sizes, in rows."""

Snapshot = Mapping[str, Any]
Family = tuple[str, str, str, str, Iterable[tuple[Any, ...]]]
"""One of farm's own metrics: kind, name, text, names of the labels, values.

Each value comes after its labels; in a histogram it is buckets and the sum. Samples of a counter
are called `name` and `_total`.
"""

OF_QUEUE = "model operation"
BY = (
    "http: by HTTP clients' connections; messages: in farm's own messages of workers and native "
    "clients"
)

OF_WAITING = {
    "farm_queue_calls": ("Gauge", "queued", "Calls that wait for a worker"),
    "farm_queue_oldest_seconds": ("Gauge", "oldest_s", "Age of the oldest waiting call"),
    "farm_running_calls": ("Gauge", "in_flight", "Calls that workers have"),
    "farm_copies": ("Counter", "copies", "Copies of slow calls, sent to a second worker"),
}
"""Metrics of each row of `queues` in a snapshot: kind, key of the row, text."""

OF_TIMES = {
    "farm_run_seconds": ("run_times_s", "Time in the model, of a call, a batch or a row"),
    "farm_wait_seconds": ("waits_s", "Time from taking a call to the start of its run"),
    "farm_overhead_seconds": (
        "overheads_s",
        "Time from taking a call to its answer, less its run, if a worker was free",
    ),
}
"""Histograms of each row of `queues` in `counts`: key of the row, text."""


def metrics_handler(backend: Dispatcher, others: Sequence[Callable[..., Iterable[str]]]) -> Handler:
    """Return the handler that shows metrics, with others' lines, in the format that is accepted."""

    def handler(request: Request, answer: Answer) -> None:
        from prometheus_client.exposition import choose_encoder

        if request.method not in ("GET", "HEAD"):
            raise wrong_method("/metrics", request.method, "GET", "HEAD")
        snapshot, statistics = backend.snapshot(), backend.statistics()
        metrics = list(families(snapshot, statistics))
        accepted = request.headers.get(b"accept", b"").decode("latin-1")
        encode, content_type = choose_encoder(accepted)
        # Of a registry, an encoder asks only for the metrics that its collectors have.
        own = encode(SimpleNamespace(collect=lambda: metrics))
        is_open = content_type.startswith(OPEN_METRICS)
        # OpenMetrics has no counters without the end "_total".
        kind = "unknown" if is_open else "counter"
        lines = [line for of in others for line in of(snapshot["queues"], statistics, kind)]
        theirs = "".join(f"{line}\n" for line in lines).encode()
        body = own.removesuffix(END) + theirs + END if is_open else theirs + own
        answer(200, body, (), content_type.encode())

    return handler


def families(snapshot: Snapshot, statistics: Mapping[str, ModelStatistics]) -> Iterator[Metric]:
    """Yield the metrics of a farm whose dispatcher has this snapshot and these statistics.

    A part that the snapshot lacks, such as that of jobs, has no metrics.
    """
    from prometheus_client import ProcessCollector, core

    for kind, name, text, labels, values in _own(snapshot, statistics):
        family = getattr(core, f"{kind}MetricFamily")(name, text, labels=labels.split())
        for value in values:
            family.add_metric(*value)
        yield family
    yield from ProcessCollector(registry=None).collect()


def _own(snapshot: Snapshot, statistics: Mapping[str, ModelStatistics]) -> Iterator[Family]:
    """Yield farm's own metrics, with their values."""
    yield "Gauge", "farm_build_info", "Version of farm", "version", [((__version__,), 1)]
    workers = snapshot["workers"]
    states = Counter({"idle": 0, "busy": 0, "full": 0, "shut": 0})
    for row in workers:
        state = row["phase"].split()[0]  # "shut and full" is shut
        if state == "open":
            state = "busy" if row["in_flight"] else "idle"
        states[state] += 1
    text = (
        "Workers by state; full: has not read what it was sent; shut: drains or cannot be reached"
    )
    yield "Gauge", "farm_workers", text, "state", [((s,), count) for s, count in states.items()]
    slots = sum(row["slots"] for row in workers)
    yield "Gauge", "farm_slots", "Calls that all workers together run at once", "", [((), slots)]
    for name, (kind, key, text) in OF_WAITING.items():
        values = [(_of(row), row[key] or 0) for row in snapshot["queues"]]
        yield kind, name, text, OF_QUEUE, values
    if "counts" in snapshot:
        yield from _of_counts(snapshot["counts"])
    batches = [((model,), *_batches(of)) for model, of in statistics.items()]
    yield "Histogram", "farm_batch_rows", "Rows of one run of the model", "model", batches
    reused = [((model,), of.reused) for model, of in statistics.items()]
    text = "Rows answered from the record, or from another call's run"
    yield "Counter", "farm_reused_rows", text, "model", reused
    traffic = [(by, snapshot[by]) for by in ("http", "messages") if by in snapshot]
    for direction in ("received", "sent"):
        moved = [((by,), each[direction]) for by, each in traffic]
        yield "Counter", f"farm_{direction}_bytes", f"Bytes {direction}; {BY}", "by", moved
    if "cluster" in snapshot:
        yield from _of_jobs(snapshot["cluster"])
    if "progress" in snapshot:
        yield from _of_progress(snapshot["progress"])


def _of_counts(counts: Snapshot) -> Iterator[Family]:
    yield "Counter", "farm_worker_joins", "Workers that joined", "", [((), counts["joins"])]
    drains = [((), counts["drained"])]
    yield "Counter", "farm_worker_drains", "Workers that left in order", "", drains
    losses = [((cause,), count) for cause, count in counts["losses"].items()]
    yield "Counter", "farm_worker_losses", "Workers that were lost, by cause", "cause", losses
    queues = [(_of(row), row) for row in counts["queues"]]
    ends = [((*of, end), n) for of, row in queues for end, n in row["ends"].items()]
    text = "Calls that ended, by outcome: done, or the error; a long call counts once for each part"
    yield "Counter", "farm_calls", text, f"{OF_QUEUE} outcome", ends
    text = "Times that calls, since ended, were sent again because a worker was lost"
    yield "Counter", "farm_retries", text, OF_QUEUE, [(of, row["retries"]) for of, row in queues]
    for name, (key, text) in OF_TIMES.items():
        times = [(of, row[key]) for of, row in queues]
        values = [(of, _buckets(t["bounds"], t["counts"]), t["sum"]) for of, t in times]
        yield "Histogram", name, text, OF_QUEUE, values


def _batches(of: ModelStatistics) -> tuple[list[tuple[str, int]], int]:
    """Return the buckets and the sum of the rows of each run of a model."""
    counts = [0.0] * (len(BATCH_ROWS) + 1)
    for rows, runs in list(of.by_batch.items()):
        counts[bisect_left(BATCH_ROWS, rows)] += runs.count
    # Each call of a batch counts its share of the run; together they are whole.
    return _buckets(BATCH_ROWS, map(round, counts)), of.rows


def _of_jobs(cluster: Snapshot) -> Iterator[Family]:
    kinds = cluster["kinds"]
    jobs = Counter({(kind["name"], "pending"): 0 for kind in kinds})
    jobs.update((job["kind"], job["phase"]) for job in cluster["jobs"])
    text = "Jobs of the batch system, by kind of workers and phase"
    yield "Gauge", "farm_jobs", text, "kind phase", jobs.items()
    wanted = [((kind["name"],), kind["wanted"]) for kind in kinds]
    yield "Gauge", "farm_wanted_jobs", "Jobs that the demand calls for", "kind", wanted
    up = [((cluster["system"],), 0 if cluster["problem"] else 1)]
    yield "Gauge", "farm_batch_system_up", "Whether the batch system answers", "system", up


def _of_progress(rows: Iterable[Snapshot]) -> Iterator[Family]:
    points: Counter[tuple[str, str]] = Counter()
    ends: dict[tuple[str], float] = {}
    for row in rows:
        kind, done, failed, total = row["kind"], row["done"], row["failed"], row.get("total")
        points[kind, "done"] += done
        points[kind, "failed"] += failed
        points[kind, "left"] += max(0, total - done - failed) if total else 0
        ends[kind,] = max(ends.get((kind,), 0.0), row.get("ends_in_s") or 0.0)
    text = "Points of the sweeps, experiments and chains that run now"
    yield "Gauge", "farm_progress_points", text, "kind state", points.items()
    text = "Time until the last of them is expected to end; 0 if it is not known"
    yield "Gauge", "farm_progress_left_seconds", text, "kind", ends.items()


def _of(row: Snapshot) -> tuple[str, str]:
    return row["model"], row["operation"]


def _buckets(bounds: Iterable[float], counts: Iterable[int]) -> list[tuple[str, int]]:
    """Return the buckets of a histogram from the count of each alone."""
    named = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(named, accumulate(counts), strict=True))
