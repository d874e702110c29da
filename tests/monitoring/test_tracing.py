"""Spans of OpenTelemetry: what configures them, their parents, and a collector that is away."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from farm.errors import ModelFailed, Unavailable
from farm.monitoring.tracing import COMPLAIN_EVERY_S, start_tracing
from tests.support.span_collector import SpanCollector, span_collector, tracing_to

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
"""The example of W3C Trace Context, section 3.2.4."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    with span_collector() as running:
        yield running


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "TRUE")]
)
def test_the_environment_turns_it_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert start_tracing() is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"),
    ],
)
def test_what_farm_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Unavailable, match=f"{name} is '{value}'; expected {expected}"):
        start_tracing()


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python does where a package is not installed.
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(Unavailable, match=r'pip install "modelfarm\[otel\]"') as refused:
        start_tracing()
    assert "\n" not in refused.value.message


def test_the_parent_is_that_of_the_header(collector: SpanCollector) -> None:
    with tracing_to(collector) as tracing:
        headers = {b"traceparent": PARENT.encode(), b"tracestate": b"vendor=7"}
        span = tracing.request("POST", headers, {"k": 1})
        child = tracing.span("run", 1, {}, tracing.within(span.parent.decode()))
        child.end(2)
        span.end({"more": "x"}, name="POST /x", failed="500")
    child_sent, sent = collector.spans
    assert (sent.trace, sent.parent, sent.state) == (TRACE, SPAN, "vendor=7")
    assert (sent.name, sent.status) == ("POST /x", "ERROR")
    assert sent.attributes == {"k": 1, "more": "x", "error.type": "500"}
    assert span.parent == f"00-{TRACE}-{sent.id}-01".encode()
    assert (child_sent.trace, child_sent.parent) == (TRACE, sent.id)
    assert (child_sent.began, child_sent.ended, child_sent.kind) == (1, 2, "INTERNAL")


def test_a_malformed_parent_begins_a_trace(collector: SpanCollector) -> None:
    with tracing_to(collector) as tracing:
        for header in (b"00-1-2-3", b"ff" + PARENT.encode()[2:], b"\xff"):
            tracing.request("POST", {b"traceparent": header}, {}).end({})
    assert [span.parent for span in collector.spans] == ["", "", ""]
    assert len({span.trace for span in collector.spans} - {TRACE}) == 3


def test_requests_that_their_caller_does_not_sample_are_not_sent(
    collector: SpanCollector,
) -> None:
    with tracing_to(collector) as tracing:
        headers = {b"traceparent": PARENT.replace("-01", "-00").encode()}
        span = tracing.request("POST", headers, {})
        assert span.parent.endswith(b"-00")
        tracing.span("run", 1, {}, tracing.within(span.parent.decode())).end(2)
        span.end({})
    assert collector.spans == []


def test_a_failure_has_its_text_and_traceback(collector: SpanCollector) -> None:
    with tracing_to(collector) as tracing:
        span = tracing.span("evaluate beam", 1, {})
        tracing.fail(span, ModelFailed("ValueError: no", detail="Traceback ..."), 5)
        span.end(6)
    (sent,) = collector.spans
    assert (sent.parent, sent.kind, sent.began, sent.ended) == ("", "SERVER", 1, 6)
    assert (sent.status, sent.text) == ("ERROR", "ValueError: no")
    assert sent.attributes == {"error.type": "ModelFailed"}
    exception = {
        "exception.type": "ModelFailed",
        "exception.message": "ValueError: no",
        "exception.stacktrace": "Traceback ...",
    }
    assert sent.events == [("exception", exception)]


def test_names_in_the_environment_win(
    collector: SpanCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracing_to(collector) as tracing:
        tracing.span("x", 1, {}).end(2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=beams,team=blue")
    named = start_tracing()
    assert named is not None
    named.span("x", 1, {}).end(2)
    named.close()
    ours, theirs = (span.resource for span in collector.spans)
    assert (ours["service.name"], ours["process.pid"]) == ("farm", os.getpid())
    assert (theirs["service.name"], theirs["team"]) == ("beams", "blue")
    assert theirs["host.name"] == socket.gethostname()


def test_warnings_of_opentelemetry_are_one_line_a_minute(
    collector: SpanCollector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = logging.getLogger("opentelemetry.sdk.trace")
    clock = [1000.0]
    monkeypatch.setattr("farm.monitoring.tracing.monotonic", lambda: clock[0])
    with tracing_to(collector):
        for _ in range(3):
            try:
                raise OSError("refused")
            except OSError:
                theirs.exception("cannot\nsend to %s", "there")
        clock[0] += COMPLAIN_EVERY_S
        theirs.warning("again")
    theirs.warning("afterwards")
    assert [(record.name, record.exc_info) for record in caplog.records] == [
        ("farm.monitoring.tracing", None),
        ("farm.monitoring.tracing", None),
        ("opentelemetry.sdk.trace", None),
    ]
    first, second = (record.getMessage() for record in caplog.records[:2])
    assert "cannot send to there" in first
    assert "again" in second
