"""`farm serve --otel`: the spans of real farms, as a collector gets them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import urllib3

import farm
from tests.support.coroutines import wait_until
from tests.support.dispatcher_farm import BEAM, LIMIT_S, Served, serving
from tests.support.span_collector import Received, SpanCollector, in_environment, span_collector

SPAN = "00f067aa0ba902b7"

MODEL = BEAM.replace(
    '        if "sleep"',
    """        while os.path.exists(config.get("hold", "")):
            time.sleep(0.01)
        if "sleep\"""",
)
"""Waits while a file exists."""


def parent(trace: str) -> str:
    """A header `traceparent`."""
    return f"00-{trace}-{SPAN}-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[SpanCollector]:
    with span_collector() as running, in_environment(running):
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("otel")
    (folder / "beam.py").write_text(MODEL)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path, collector: SpanCollector) -> Iterator[Served]:
    with serving(folder, "beam.py", "--otel", "--grpc-port", "0") as running:
        yield running


def ask(served: Served, config: dict[str, Any] | None = None, **headers: str) -> Any:
    return urllib3.request(
        "POST",
        f"{served.connection.url}/Evaluate",
        json={"name": "beam", "input": [[1, 2, 4], [8]], "config": config or {}},
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        timeout=LIMIT_S,
        retries=False,
    )


def in_order(request: Received, *inside: Received) -> None:
    """Assert that spans are within the request's, one after another."""
    assert {(span.trace, span.parent) for span in inside} == {(request.trace, request.id)}
    at = request.began
    for span in inside:
        assert at <= span.began <= span.ended
        at = span.ended
    assert at <= request.ended


def test_a_request_has_a_span_with_its_wait_and_its_run(
    served: Served, collector: SpanCollector
) -> None:
    trace = "a" * 32
    answered = ask(served, traceparent=parent(trace), tracestate="vendor=7", Farm_Client="anna")
    request, queue, run = collector.trace(trace, 3)
    assert collector.paths == {"/v1/traces"}
    in_order(request, queue, run)
    assert (request.parent, request.kind, request.state) == (SPAN, "SERVER", "vendor=7")
    assert (request.name, request.status) == ("POST /Evaluate", "")
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["http.request.method"] == "POST"
    assert request.attributes["http.route"] == request.attributes["url.path"] == "/Evaluate"
    assert request.attributes["farm.call.id"] == trace == answered.headers["x-request-id"]
    assert request.resource["service.name"] == "farm"
    assert request.resource["process.pid"] == served.process.pid
    assert (queue.name, run.name) == ("queue", "run")
    about = {"farm.model": "beam", "farm.operation": "evaluate"}
    assert queue.attributes == about
    run_time_s = run.attributes.pop("farm.run_time_s")
    assert 0 < run_time_s <= (run.ended - run.began) / 1e9
    assert run.attributes == {
        **about,
        "farm.worker": answered.headers["farm-worker"],
        "farm.attempt": 1,
        "farm.rows": 1,
        "farm.batch_rows": 1,
    }


def test_a_request_without_a_parent_begins_a_trace_that_names_its_call(
    served: Served, collector: SpanCollector
) -> None:
    made = ask(served).headers["x-request-id"]
    request, *inside = collector.trace(made, 3)
    in_order(request, *inside)
    assert (request.parent, request.attributes["farm.call.id"]) == ("", made)
    assert ask(served, X_Request_ID="a-1").headers["x-request-id"] == "a-1"
    (request,) = collector.wait(1, lambda span: span.attributes.get("farm.call.id") == "a-1")
    assert len(collector.trace(request.trace, 3)) == 3


def test_pages_have_no_spans_and_unknown_paths_no_name(
    served: Served, collector: SpanCollector
) -> None:
    url = served.connection.url
    headers, trace = {"traceparent": parent("b" * 32)}, "b" * 32
    for method, path, status in (("GET", "/metrics", 200), ("POST", "/no/such", 404)):
        answer = urllib3.request(method, url + path, headers=headers, timeout=LIMIT_S)
        assert answer.status == status
    (span,) = collector.trace(trace, 1)
    assert (span.name, span.status) == ("POST", "")
    assert "http.route" not in span.attributes


def test_a_call_whose_worker_is_killed_has_a_run_for_each_attempt(
    served: Served, collector: SpanCollector, tmp_path: Path
) -> None:
    begun, hold = tmp_path / "begun", tmp_path / "hold"
    hold.touch()
    config = {"begun": str(begun), "hold": str(hold)}
    with farm.connect(served.folder, client="bob") as client:
        (first,) = client.status()["workers"]
        answer = client.model("beam").submit({"E": [1, 2, 4], "load": [8]}, config=config)
        wait_until(begun.exists)
        os.kill(first["pid"], signal.SIGKILL)
        hold.unlink()
        assert list(answer.result(LIMIT_S)) == [8, 4, 2]
        (second,) = client.status()["workers"]

    def is_call(span: Received) -> bool:
        return span.name == "evaluate beam" and span.attributes.get("farm.client") == "bob"

    (call,) = collector.wait(1, is_call)
    call, *inside = collector.trace(call.trace, 5)
    in_order(call, *inside)
    assert (call.parent, call.kind, call.status) == ("", "SERVER", "")
    assert [span.name for span in inside] == ["queue", "run", "queue", "run"]
    lost, done = inside[1], inside[3]
    assert (lost.attributes["farm.worker"], lost.attributes["farm.attempt"]) == (first["name"], 1)
    assert (lost.status, lost.attributes["error.type"]) == ("ERROR", "WorkerLost")
    assert lost.text == f"worker {first['name']} was lost: signal SIGKILL"
    assert (done.attributes["farm.worker"], done.attributes["farm.attempt"]) == (second["name"], 2)
    assert done.status == ""


def test_a_call_over_grpc(served: Served, collector: SpanCollector) -> None:
    trace = "d" * 32
    with grpc.insecure_channel(served.connection.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as failed:
            infer(b"", metadata=[("x-request-id", "a-2")], timeout=LIMIT_S)
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        named = [("traceparent", parent(trace))]
        assert health(b"", metadata=named, timeout=LIMIT_S) == b"\x08\x01"
    with triton.InferenceServerClient(served.connection.grpc) as client:
        inputs = []
        for name, values in (("E", [1.0, 2.0, 4.0]), ("load", [8.0])):
            inputs.append(triton.InferInput(name, [len(values)], "FP64"))
            inputs[-1].set_data_from_numpy(np.array(values))
        client.infer("beam", inputs, headers={"traceparent": parent(trace)})
    (refused,) = collector.wait(1, lambda span: span.attributes.get("farm.call.id") == "a-2")
    assert refused.attributes["rpc.response.status_code"] == failed.value.code().name
    assert refused.status == ""
    request, queue, run = collector.trace(trace, 3)
    in_order(request, queue, run)
    assert (request.parent, request.kind) == (SPAN, "SERVER")
    assert request.name == "inference.GRPCInferenceService/ModelInfer"
    assert request.attributes["rpc.system.name"] == "grpc"
    assert request.attributes["rpc.response.status_code"] == "OK"


def test_the_last_spans_are_sent_when_the_farm_ends(
    folder: Path, collector: SpanCollector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "beams")
    (tmp_path / "beam.py").write_text(MODEL)
    trace = "e" * 32
    with serving(tmp_path, "beam.py", "--otel") as served:
        ask(served, traceparent=parent(trace))
        status, _, errors = served.stop()
    assert (status, errors) == (0, "farm stops; Ctrl-C again to hurry\n")
    spans = collector.trace(trace, 3)
    assert {span.resource["service.name"] for span in spans} == {"beams"}


@pytest.mark.slow
@pytest.mark.parametrize("accepts", [False, True])
def test_a_collector_that_is_away_holds_nothing_up_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    """accepts: it takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if not accepts:
            listener.close()
        (tmp_path / "beam.py").write_text(MODEL)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        with serving(tmp_path, "beam.py", "--otel") as served:
            for _ in range(5):
                assert ask(served).status == 200
            status, _, errors = served.stop()
    assert status == 0
    lines = [line for line in errors.splitlines() if "farm.monitoring.tracing" in line]
    # By itself OpenTelemetry would wait for half a minute, and try every span.
    assert "the last spans were not sent" in lines[-1]
    assert len(lines) <= 2
    assert len(errors.splitlines()) == 1 + len(lines)


@pytest.mark.slow
def test_without_the_option_opentelemetry_is_not_loaded(tmp_path: Path) -> None:
    program = """
import sys
import farm
from farm.cli.front_door import run
from farm.server.farm import Farm
from farm.server.in_process import running
from farm.settings import Settings

class Twice(farm.Model):
    inputs, outputs = {"x": 1}, {"y": 1}

    def evaluate(self, inputs, config):
        return 2 * inputs["x"]

with running(Farm([], Settings(port=0), objects={"twice": Twice()})):
    with farm.connect("farm-run") as client:
        client.model("twice").evaluate([1.0])
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
