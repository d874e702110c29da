"""The metrics of a farm by Prometheus' conventions, read from its snapshot.

Labels are bounded: models and operations, phases, causes and kinds of errors, but no clients.
Source: https://prometheus.io/docs/practices/naming and its neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from farm.dispatcher.statistics import ModelStatistics
from farm.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BATCH_ROWS = tuple(2**power for power in range(13))
"""Bounds of batch sizes, in rows."""

OF_QUEUE = ("model", "operation")

Rows = Iterable[tuple[Sequence[str], float]]
Snapshot = Mapping[str, Any]


def families(snapshot: Snapshot, statistics: Mapping[str, ModelStatistics]) -> Iterator[Metric]:
    """Yield the metrics of a farm whose dispatcher has this snapshot and these statistics.

    A part that the snapshot lacks, such as that of jobs, has no metrics.
    """
    from prometheus_client import ProcessCollector

    yield _gauge("farm_build_info", "Version of farm", ("version",), [((__version__,), 1)])
    yield from _of_workers(snapshot)
    yield from _of_queues(snapshot["queues"])
    if "counts" in snapshot:
        yield from _of_counts(snapshot["counts"])
    yield from _of_models(statistics)
    yield from _of_bytes(snapshot)
    if "cluster" in snapshot:
        yield from _of_jobs(snapshot["cluster"])
    if "progress" in snapshot:
        yield from _of_progress(snapshot["progress"])
    yield from ProcessCollector(registry=None).collect()


def _of_workers(snapshot: Snapshot) -> Iterator[Metric]:
    states = Counter({"idle": 0, "busy": 0, "full": 0, "shut": 0})
    slots = 0
    for row in snapshot["workers"]:
        slots += row["slots"]
        state = row["phase"].split()[0]  # "shut and full" is shut
        if state == "open":
            state = "busy" if row["in_flight"] else "idle"
        states[state] += 1
    yield _gauge(
        "farm_workers",
        "Workers by state; full: has not read what it was sent; shut: drains or cannot be reached",
        ("state",),
        [((state,), count) for state, count in states.items()],
    )
    yield _gauge("farm_slots", "Calls that all workers together run at once", (), [((), slots)])


def _of_queues(rows: Iterable[Snapshot]) -> Iterator[Metric]:
    rows = list(rows)

    def each(value: str) -> Rows:
        return [(_of(row), row[value] or 0) for row in rows]

    yield _gauge("farm_queue_calls", "Calls that wait for a worker", OF_QUEUE, each("queued"))
    yield _gauge(
        "farm_queue_oldest_seconds", "Age of the oldest waiting call", OF_QUEUE, each("oldest_s")
    )
    yield _gauge("farm_running_calls", "Calls that workers have", OF_QUEUE, each("in_flight"))
    yield _counter(
        "farm_copies", "Copies of slow calls, sent to a second worker", OF_QUEUE, each("copies")
    )


def _of_counts(counts: Snapshot) -> Iterator[Metric]:
    yield _counter("farm_worker_joins", "Workers that joined", (), [((), counts["joins"])])
    yield _counter(
        "farm_worker_drains", "Workers that left in order", (), [((), counts["drained"])]
    )
    yield _counter(
        "farm_worker_losses",
        "Workers that were lost, by cause",
        ("cause",),
        [((cause,), count) for cause, count in counts["losses"].items()],
    )
    rows = counts["queues"]
    yield _counter(
        "farm_calls",
        "Calls that ended, by outcome: done, or the error; a long call counts once for each part",
        (*OF_QUEUE, "outcome"),
        [((*_of(row), end), count) for row in rows for end, count in row["ends"].items()],
    )
    yield _counter(
        "farm_retries",
        "Times that calls, since ended, were sent again because a worker was lost",
        OF_QUEUE,
        [(_of(row), row["retries"]) for row in rows],
    )
    for name, key, text in (
        ("farm_run_seconds", "run_times_s", "Time in the model, of a call, a batch or a row"),
        ("farm_wait_seconds", "waits_s", "Time from taking a call to the start of its run"),
        (
            "farm_overhead_seconds",
            "overheads_s",
            "Time from taking a call to its answer, less its run, if a worker was free",
        ),
    ):
        buckets = (
            (_of(row), row[key]["bounds"], row[key]["counts"], row[key]["sum"]) for row in rows
        )
        yield _histogram(name, text, OF_QUEUE, buckets)


def _of_models(statistics: Mapping[str, ModelStatistics]) -> Iterator[Metric]:
    sizes = []
    for model, of in statistics.items():
        counts = [0.0] * (len(BATCH_ROWS) + 1)
        for rows, runs in list(of.by_batch.items()):
            place = next((i for i, bound in enumerate(BATCH_ROWS) if rows <= bound), -1)
            counts[place] += runs.count
        # Each call of a batch counts its share of the run; together they are whole.
        sizes.append(((model,), BATCH_ROWS, [round(count) for count in counts], of.rows))
    yield _histogram("farm_batch_rows", "Rows of one run of the model", ("model",), sizes)
    yield _counter(
        "farm_reused_rows",
        "Rows answered from the record, or from another call's run",
        ("model",),
        [((model,), of.reused) for model, of in statistics.items()],
    )


def _of_bytes(snapshot: Snapshot) -> Iterator[Metric]:
    for direction in ("received", "sent"):
        yield _counter(
            f"farm_{direction}_bytes",
            f"Bytes {direction}; http: by HTTP clients' connections; messages: in farm's own "
            "messages of workers and native clients",
            ("by",),
            [((by,), snapshot[by][direction]) for by in ("http", "messages") if by in snapshot],
        )


def _of_jobs(cluster: Snapshot) -> Iterator[Metric]:
    states = Counter({(kind["name"], "pending"): 0 for kind in cluster["kinds"]})
    for job in cluster["jobs"]:
        states[job["kind"], job["phase"]] += 1
    yield _gauge(
        "farm_jobs",
        "Jobs of the batch system, by kind of workers and phase",
        ("kind", "phase"),
        list(states.items()),
    )
    wanted = [((kind["name"],), kind["wanted"]) for kind in cluster["kinds"]]
    yield _gauge("farm_wanted_jobs", "Jobs that the demand calls for", ("kind",), wanted)
    answers = 0 if cluster["problem"] else 1
    yield _gauge(
        "farm_batch_system_up",
        "Whether the batch system answers",
        ("system",),
        [((cluster["system"],), answers)],
    )


def _of_progress(rows: Iterable[Snapshot]) -> Iterator[Metric]:
    points: Counter[tuple[str, str]] = Counter()
    ends: dict[tuple[str], float] = {}
    for row in rows:
        kind, done, failed, total = row["kind"], row["done"], row["failed"], row.get("total")
        points[kind, "done"] += done
        points[kind, "failed"] += failed
        points[kind, "left"] += max(0, total - done - failed) if total else 0
        ends[kind,] = max(ends.get((kind,), 0.0), row.get("ends_in_s") or 0.0)
    yield _gauge(
        "farm_progress_points",
        "Points of the sweeps, experiments and chains that run now",
        ("kind", "state"),
        list(points.items()),
    )
    yield _gauge(
        "farm_progress_left_seconds",
        "Time until the last of them is expected to end; 0 if it is not known",
        ("kind",),
        list(ends.items()),
    )


def _of(row: Snapshot) -> tuple[str, str]:
    return row["model"], row["operation"]


def _gauge(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    """Return a counter; its samples are called `name` and `_total`."""
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram(
    name: str,
    text: str,
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[str], Sequence[float], Sequence[int], float]],
) -> Metric:
    """Return a histogram. rows: labels, bounds, the count of each bucket alone, and the sum."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text, labels=labels)
    for values, bounds, counts, total in rows:
        named = [*(repr(float(bound)) for bound in bounds), "+Inf"]
        family.add_metric(values, list(zip(named, accumulate(counts), strict=True)), total)
    return family
