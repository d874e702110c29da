"""Metrics for Prometheus at /metrics, under Triton's names.

So dashboards made for Triton work with a farm. Source: Triton's metrics; Prometheus' text format
0.0.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from farm.bodies.unpacking import Refused
from farm.dispatcher.backend import Backend
from farm.dispatcher.statistics import ModelStatistics
from farm.http.request import Answer, Handler, Request
from farm.protocols.kserve.request import VERSION

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

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
        text = "\n".join([*_lines(backend), ""])
        answer(200, text.encode(), (), CONTENT_TYPE)

    return handler


def _lines(backend: Backend) -> Iterator[str]:
    models, known = backend.models(), backend.statistics()
    labels = {name: f'model="{_escaped(name)}",version="{VERSION}"' for name in models}
    for metric, (help_text, value) in COUNTERS.items():
        yield from _head(metric, help_text, "counter")
        reason = ',reason="OTHER"' if metric.endswith("_failure") else ""
        for name in models:
            told = value(known.get(name, NOTHING))
            yield f"{metric}{{{labels[name]}{reason}}} {round(told)}"
    yield from _head(PENDING, "Requests that wait for a worker", "gauge")
    waiting = _waiting(backend.snapshot())
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
