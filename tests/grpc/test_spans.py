"""The span of a gRPC call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from farm.grpc.messages import STATUSES
from farm.grpc.spans import OWN_FAULT, GrpcSpan
from tests.support.span_collector import SpanCollector, span_collector, tracing_to

PATH = "/inference.GRPCInferenceService/ModelInfer"
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    with span_collector() as running:
        yield running


def test_it_has_what_the_conventions_ask_for(collector: SpanCollector) -> None:
    headers = {b"traceparent": PARENT, b"te": b"trailers"}
    with tracing_to(collector) as tracing:
        span = GrpcSpan(tracing, PATH, headers, "10.0.0.1")
        passed_on = span.parent_of(headers)
        span.end("OK", "a-1")
    (sent,) = collector.spans
    assert sent.name == "inference.GRPCInferenceService/ModelInfer"
    assert sent.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "inference.GRPCInferenceService/ModelInfer",
        "rpc.response.status_code": "OK",
        "client.address": "10.0.0.1",
        "farm.call.id": "a-1",
    }
    assert headers[b"traceparent"] == PARENT
    ours = f"00-{sent.trace}-{sent.id}-01".encode()
    assert passed_on == {b"traceparent": ours, b"te": b"trailers"}


def test_only_the_servers_own_faults_are_errors(collector: SpanCollector) -> None:
    assert set(STATUSES) >= OWN_FAULT
    with tracing_to(collector) as tracing:
        for status in ("INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE", "INTERNAL"):
            GrpcSpan(tracing, PATH, {}, "").end(status, "")
    marks = [(span.status, span.attributes.get("error.type")) for span in collector.spans]
    assert marks == [("", None), ("", None), ("ERROR", "UNAVAILABLE"), ("ERROR", "INTERNAL")]
