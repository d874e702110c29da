"""Metrics for Prometheus at /metrics: farm's own, beside those under Triton's names.

So dashboards made for Triton work with a farm. Its names break some of Prometheus' conventions,
which farm's own follow. Source: Triton's metrics; Prometheus' text format 0.0.4; OpenMetrics 1.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from farm.bodies.unpacking import Refused
from farm.dispatcher.backend import Backend
from farm.dispatcher.statistics import ModelStatistics
from farm.http.request import Answer, Handler, Request
from farm.protocols.kserve.versions import numbered
from farm.server.families import families

if TYPE_CHECKING:
    from prometheus_client.core import Metric

OPEN_METRICS = "application/openmetrics-text"
END = b"# EOF\n"
"""The last line of OpenMetrics."""

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


def metrics_handler(backend: Backend) -> Handler:
    """Return the handler that shows the metrics of `backend`."""

    def handler(request: Request, answer: Answer) -> None:
        if request.method not in ("GET", "HEAD"):
            allow = ((b"allow", b"GET, HEAD"),)
            message = f"/metrics is asked with GET, not {request.method}"
            raise Refused(405, "MethodNotAllowed", message, headers=allow)
        accepted = request.headers.get(b"accept", b"").decode("latin-1")
        body, content_type = _exposition(backend, accepted)
        answer(200, body, (), content_type.encode())

    return handler


def _exposition(backend: Backend, accepted: str) -> tuple[bytes, str]:
    """Return all metrics and their content type, in the format that an Accept header asks for."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    snapshot = backend.snapshot()
    registry = CollectorRegistry()
    registry.register(_Collected(list(families(snapshot, backend.statistics()))))
    encode, content_type = choose_encoder(accepted)
    is_open = content_type.startswith(OPEN_METRICS)
    # OpenMetrics has no counters without the end "_total", which Triton's do not have.
    triton = "\n".join([*_triton(backend, snapshot, "unknown" if is_open else "counter"), ""])
    own = encode(registry)
    if is_open:
        return own.removesuffix(END) + triton.encode() + END, content_type
    return triton.encode() + own, content_type


class _Collected:
    """Metrics that have been read, as the collector that a registry asks for them."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._metrics


def _triton(backend: Backend, snapshot: dict[str, Any], counter: str) -> Iterator[str]:
    """Yield the lines of the metrics under Triton's names. counter: the type of counters."""
    models, known = backend.models(), backend.statistics()
    labels = {}
    for served_as in models:
        name, version, _ = numbered(served_as, models)
        labels[served_as] = f'model="{_escaped(name)}",version="{version}"'
    for metric, (help_text, value) in COUNTERS.items():
        yield from _head(metric, help_text, counter)
        reason = ',reason="OTHER"' if metric.endswith("_failure") else ""
        for name in models:
            told = value(known.get(name, NOTHING))
            yield f"{metric}{{{labels[name]}{reason}}} {round(told)}"
    yield from _head(PENDING, "Requests that wait for a worker", "gauge")
    waiting = _waiting(snapshot)
    for name in models:
        yield f"{PENDING}{{{labels[name]}}} {waiting[name]}"


def _head(metric: str, help_text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {metric} {help_text}"
    yield f"# TYPE {metric} {kind}"


def _waiting(snapshot: dict[str, Any]) -> Counter[str]:
    waiting: Counter[str] = Counter()
    for queue in snapshot["queues"]:
        waiting[queue["model"]] += queue["queued"]
    return waiting


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
