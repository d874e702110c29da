"""The span of an HTTP request, made by a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import farm
from farm.model import Config, Inputs
from tests.support.front_door import Door, front_door
from tests.support.span_collector import SpanCollector, span_collector, tracing_to

QUESTION = {"name": "gate", "input": [[4]], "config": {}}


class Gate(farm.Model):
    """Waits until it is opened."""

    inputs = {"x": 1}
    outputs = {"y": 1}

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def evaluate(self, inputs: Inputs, config: Config) -> Any:
        self.begun.set()
        assert self.opened.wait(20)
        if inputs["x"] < 0:
            raise ValueError("negative")
        return inputs["x"]


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    with span_collector() as running:
        yield running


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def door(collector: SpanCollector, gate: Gate) -> Iterator[Door]:
    with tracing_to(collector) as tracing, front_door({"gate": gate}, tracing=tracing) as opened:
        yield opened
        gate.opened.set()


def test_it_has_what_the_conventions_ask_for(
    door: Door, gate: Gate, collector: SpanCollector
) -> None:
    gate.opened.set()
    headers = {"User-Agent": "probe/1", "X-Request-ID": "a-1"}
    assert door.ask("POST", "/Evaluate?why=so", QUESTION, headers).status == 200
    (request,) = collector.wait(1, lambda span: span.kind == "SERVER")
    assert request.name == "POST /Evaluate"
    assert request.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/Evaluate",
        "url.path": "/Evaluate",
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "client.address": "127.0.0.1",
        "user_agent.original": "probe/1",
        "farm.call.id": "a-1",
    }


def test_requests_with_one_head_are_traces_of_their_own(
    door: Door, gate: Gate, collector: SpanCollector
) -> None:
    gate.opened.set()
    for _ in range(3):
        assert door.ask("POST", "/Evaluate", QUESTION).status == 200
    requests = collector.wait(3, lambda span: span.kind == "SERVER")
    assert len({span.trace for span in requests}) == 3


@pytest.mark.parametrize(
    ("body", "status", "mark", "kind"),
    [
        (b"{", 400, "", None),
        ({**QUESTION, "input": [[-4]]}, 500, "ERROR", "500"),
    ],
)
def test_only_the_servers_own_faults_are_errors(
    door: Door, gate: Gate, collector: SpanCollector, body: Any, status: int, mark: str, kind: Any
) -> None:
    gate.opened.set()
    assert door.ask("POST", "/Evaluate", body).status == status
    (request,) = collector.wait(1, lambda span: span.kind == "SERVER")
    assert request.attributes["http.response.status_code"] == status
    assert (request.status, request.attributes.get("error.type")) == (mark, kind)


def test_a_client_that_leaves_is_an_error(door: Door, gate: Gate, collector: SpanCollector) -> None:
    body = b'{"name": "gate", "input": [[4]], "config": {}}'
    with door.connect() as client:
        client.sendall(
            b"POST /Evaluate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        client.sendall(body)
        assert gate.begun.wait(20)
    (request,) = collector.wait(1, lambda span: span.kind == "SERVER")
    assert "http.response.status_code" not in request.attributes
    assert (request.status, request.attributes["error.type"]) == ("ERROR", "client left")


def test_an_answer_in_parts_has_its_status(
    door: Door, gate: Gate, collector: SpanCollector
) -> None:
    gate.opened.set()
    assert door.ask("POST", "/no/such", b"").status == 404
    assert door.ask("GET", "/", None).status == 200
    (request,) = collector.wait(1, lambda span: span.kind == "SERVER")
    assert (request.name, request.attributes["http.response.status_code"]) == ("POST", 404)
