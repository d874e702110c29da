"""A collector of spans on loopback: takes OTLP over HTTP, as an OpenTelemetry collector does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from farm.monitoring.tracing import Tracing, start_tracing
from tests.support.time_limits import scaled

LIMIT_S = scaled(20.0)

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "20"}
"""Environment in which spans are sent soon after they end."""


class Received(NamedTuple):
    """A span as the collector got it.

    parent: "" for the first of a trace; status: "" or "ERROR".
    """

    name: str
    trace: str
    id: str
    parent: str
    kind: str
    began: int
    ended: int
    attributes: dict[str, Any]
    status: str
    text: str
    events: list[tuple[str, dict[str, Any]]]
    resource: dict[str, Any]
    state: str


class SpanCollector:
    """The spans received so far, in order; `url` is the value of OTEL_EXPORTER_OTLP_ENDPOINT."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Received] = []
        self.come = threading.Condition()
        self.paths: set[str] = set()

    def take(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = []
        for of_resource in request.resource_spans:
            resource = _values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                found += [_received(span, resource) for span in of_scope.spans]
        with self.come:
            self.paths.add(path)
            self.spans += found
            self.come.notify_all()

    def wait(self, count: int, wanted: Callable[[Received], bool]) -> list[Received]:
        """Return the wanted spans, once there are `count`, in the order of their begins."""
        limit = time.monotonic() + LIMIT_S
        with self.come:
            while len(found := [span for span in self.spans if wanted(span)]) < count:
                left = limit - time.monotonic()
                assert left > 0, f"{len(found)} of {count} spans came: {found}"
                self.come.wait(left)
        # A parent may begin with its first child, and ends last.
        return sorted(found, key=lambda span: (span.began, -span.ended))

    def trace(self, trace: str, count: int) -> list[Received]:
        """Return the spans of a trace, once there are `count`."""
        return self.wait(count, lambda span: span.trace == trace)


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        "ERROR" if span.status.code == span.status.STATUS_CODE_ERROR else "",
        span.status.message,
        [(event.name, _values(event.attributes)) for event in span.events],
        resource,
        span.trace_state,
    )


@contextmanager
def span_collector() -> Iterator[SpanCollector]:
    """Run a collector for the length of the block."""

    class Take(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Take) as server:
        server.daemon_threads = True
        collector = SpanCollector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def in_environment(collector: SpanCollector) -> Iterator[None]:
    """Name the collector, and no other, in the environment for the length of the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            patch.delenv(name)
        for name, value in {**SOON, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}.items():
            patch.setenv(name, value)
        yield


@contextmanager
def tracing_to(collector: SpanCollector) -> Iterator[Tracing]:
    """Make spans in this process for the length of the block; at its end, all have been sent."""
    with in_environment(collector):
        tracing = start_tracing()
        assert tracing is not None
        try:
            yield tracing
        finally:
            tracing.close()
