"""Spans of OpenTelemetry: what configures them, their parents, and a collector that is away."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from farm.call import NO_HINTS, Call, Hints, Operation
from farm.errors import DeadlineExceeded, FarmError, ModelFailed, Unavailable, WorkerLost
from farm.model import Config, Inputs
from farm.monitoring.tracing import COMPLAIN_EVERY_S, start_tracing, steps_of
from farm.scheduler.state import Task
from tests.monitoring.test_news import Root
from tests.support.front_door import Door, front_door
from tests.support.scheduler_recorder import Recorder, copied, sent
from tests.support.span_collector import Received, SpanCollector, span_collector, tracing_to

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


# The steps of tasks and the spans of calls


Told = list[tuple[str, float, float, str]]


class Batched(Root):
    max_batch = 2

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        return inputs["x"] ** 0.5


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def told(recorder: Recorder, task: Task, error: FarmError | None = None) -> Told:
    """The steps of a task that ends now: name, begin and end since its submission, worker."""
    zero = task.submitted_at
    return [
        (
            step.name,
            step.began - zero,
            step.ended - zero,
            "" if step.attempt is None else step.attempt.worker.id,
        )
        for step in steps_of(task, error, recorder.now)
    ]


def test_each_wait_and_each_run_is_a_step(recorder: Recorder) -> None:
    recorder.join("w1")
    recorder.resize("w1", 0)
    task = recorder.submit()
    recorder.after(3.0).resize("w1", 1)
    recorder.expect(sent("w1", task))
    recorder.after(4.0).leave("w1", "signal 9")
    recorder.expect()
    recorder.after(1.0).join("w2")
    recorder.expect(sent("w2", task))
    found = recorder.task(task)
    recorder.after(2.0).finish("w2", task)
    assert told(recorder, found) == [
        ("queue", 0, 3, ""),
        ("run", 3, 7, "w1"),
        ("queue", 7, 8, ""),
        ("run", 8, 10, "w2"),
    ]


def test_a_worker_that_returns_a_task_did_not_run_it(recorder: Recorder) -> None:
    recorder.join("w1")
    task = recorder.submit()
    recorder.expect(sent("w1", task))
    recorder.after(1.0).hand_back("w1", task)
    recorder.expect(sent("w1", task))
    found = recorder.task(task)
    recorder.after(2.0).finish("w1", task)
    assert told(recorder, found) == [("queue", 0, 1, ""), ("run", 1, 3, "w1")]


def test_the_copy_of_a_slow_call_runs_beside_it(recorder: Recorder) -> None:
    task = copied(recorder)
    found = recorder.task(task)
    recorder.finish("w2", task)
    assert told(recorder, found) == [
        ("queue", 0, 0, ""),
        ("run", 0, 4, "w1"),
        ("run", 3, 4, "w2"),
    ]


def test_a_call_that_waits_until_its_deadline_has_no_run(recorder: Recorder) -> None:
    recorder.join("w1")
    recorder.resize("w1", 0)
    found = recorder.task(recorder.submit(deadline=5.0))
    recorder.now = 5.0
    assert told(recorder, found, DeadlineExceeded("late")) == [("queue", 0, 5, "")]


def test_a_call_that_waits_again_until_its_deadline_ends_with_that_wait(
    recorder: Recorder,
) -> None:
    recorder.join("w1")
    task = recorder.submit(deadline=5.0)
    recorder.expect(sent("w1", task))
    found = recorder.task(task)
    recorder.after(2.0).leave("w1", "signal 9")
    recorder.expect()
    recorder.now = 5.0
    assert told(recorder, found, DeadlineExceeded("late")) == [
        ("queue", 0, 0, ""),
        ("run", 0, 2, "w1"),
        ("queue", 2, 5, ""),
    ]


def test_a_call_that_is_lost_for_good_ends_with_its_last_run() -> None:
    recorder = Recorder(retries=0)
    recorder.join("w1")
    task = recorder.submit()
    recorder.expect(sent("w1", task))
    found = recorder.task(task)
    recorder.after(2.0).leave("w1", "signal 9")
    recorder.now += 0.5  # the answer is a little later
    assert told(recorder, found, WorkerLost("lost")) == [
        ("queue", 0, 0, ""),
        ("run", 0, 2, "w1"),
    ]


def submit(door: Door, model: str, x: list[float], *, hints: Hints = NO_HINTS) -> None:
    inputs = np.array(x).reshape(-1, 1)
    call = Call(model, Operation.EVALUATE, (inputs,), rows=len(x))
    door.wait(door.dispatcher.submit(call, hints))


def of_traces(spans: list[Received]) -> list[list[Received]]:
    """The spans by trace, the whole call first, in the order in which the calls ended."""
    traces: dict[str, list[Received]] = {}
    for span in spans:
        traces.setdefault(span.trace, []).insert(0, span)
    return list(traces.values())


def test_a_call_without_a_request_has_a_span_of_its_own(collector: SpanCollector) -> None:
    hints = Hints("anna", call_id="a-1")
    with tracing_to(collector) as tracing, front_door({"root": Root()}, tracing=tracing) as door:
        submit(door, "root", [4.0], hints=hints)
        with pytest.raises(ModelFailed):
            submit(door, "root", [-4.0], hints=hints)
    done, failed = of_traces(collector.spans)
    for whole, run, queue in (done, failed):
        assert (whole.name, whole.kind, whole.parent) == ("evaluate root", "SERVER", "")
        assert (run.name, queue.name) == ("run", "queue")
        assert run.parent == queue.parent == whole.id
        assert whole.attributes["farm.client"] == "anna"
        assert whole.attributes["farm.call.id"] == "a-1"
    assert [span.status for span in done] == ["", "", ""]
    assert [span.status for span in failed] == ["ERROR", "ERROR", ""]
    assert failed[0].text == failed[1].text == "ValueError: negative"
    assert [len(span.events) for span in failed] == [0, 1, 0]


def test_each_part_of_a_long_request_has_its_run(collector: SpanCollector) -> None:
    tensor = {"name": "x", "shape": [4, 1], "datatype": "FP64", "data": [1, 4, 9, 16]}
    models = {"batched": Batched()}
    with tracing_to(collector) as tracing, front_door(models, tracing=tracing) as door:
        path = "/v2/models/batched/infer"
        assert door.ask("POST", path, {"inputs": [tensor]}).status == 200
    (spans,) = of_traces(collector.spans)
    request, *inside = spans
    assert request.name == f"POST {path}"
    assert {span.parent for span in inside} == {request.id}
    runs = [span for span in inside if span.name == "run"]
    assert [run.attributes["farm.rows"] for run in runs] == [2, 2]
    assert [run.attributes["farm.batch_rows"] for run in runs] == [2, 2]
