"""Server-sent events over real connections: one per answer, errors before and among them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import farm
from farm.dispatcher import dispatcher as dispatching
from farm.model import Config, Inputs
from tests.protocols.models import double, posted
from tests.support.front_door import WAIT_S, Door, front_door, until


class Count(farm.Model):
    """Streams 1, 2, ... n, and fails where the config specifies it."""

    inputs = {"n": 1}
    outputs = {"y": 1, "sizes": 2}

    def __init__(self) -> None:
        self.closed = threading.Event()

    def stream(self, inputs: Inputs, config: Config) -> Iterator[Any]:
        try:
            for i in range(int(inputs["n"][0])):
                if i == config.get("fail"):
                    raise ValueError(f"no more than {i}")
                yield [[float(i)], [i, np.inf]]
                if config.get("wait"):
                    threading.Event().wait(0.01)
        finally:
            self.closed.set()


COUNT = Count()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with front_door({"count": COUNT, "double": double}) as opened:
        yield opened


def events(data: bytes) -> list[Any]:
    *parts, rest = data.split(b"\n\n")
    assert rest == b""
    assert all(part.startswith(b"data: ") for part in parts)
    return [json.loads(part.removeprefix(b"data: ")) for part in parts]


def streamed(door: Door, model: str, body: Any, verb: str = "generate_stream") -> list[Any]:
    response = door.ask("POST", f"/v2/models/{model}/{verb}", body)
    assert response.status == 200, response.data
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(response.data)


def test_an_event_for_each_answer(door: Door) -> None:
    told = streamed(door, "count", {"n": 3, "id": "é"})
    assert [event["y"] for event in told] == [0.0, 1.0, 2.0]
    assert told[2] == {
        "model_name": "count",
        "model_version": "1",
        "id": "é",
        "y": 2.0,
        "sizes": [2.0, np.inf],
    }
    assert streamed(door, "count", {"n": 0}) == []
    assert [event["y"] for event in streamed(door, "double", {"x": [1, 2]})] == [[2.0, 4.0]]


def test_whole_answers_as_events(door: Door) -> None:
    n = {"name": "n", "shape": [1], "datatype": "FP64", "data": [2]}
    asked = {"inputs": [n], "outputs": [{"name": "y"}], "parameters": {"binary_data_output": True}}
    told = streamed(door, "count", asked, "infer_stream")
    assert [event["outputs"] for event in told] == [
        [{"name": "y", "datatype": "FP64", "shape": [1], "data": [float(i)]}] for i in range(2)
    ]


def test_what_goes_wrong_among_the_answers_is_the_last_event(door: Door) -> None:
    told = streamed(door, "count", {"n": 3, "farm_config": '{"fail": 2}'})
    assert [event.get("y") for event in told] == [0.0, 1.0, None]
    assert "no more than 2" in told[2]["error"]
    assert list(told[2]) == ["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        (
            "POST",
            "count/generate_stream",
            {"n": 3, "farm_config": '{"fail": 0}'},
            500,
            "more than 0",
        ),
        ("POST", "count/generate_stream", {}, 400, "input 'n' is missing"),
        ("POST", "count/generate_stream", {"n": 1, "priority": "1"}, 400, "parameter priority"),
        ("POST", "count/generate_stream", b"{", 400, "the body is not JSON"),
        ("POST", "nope/generate_stream", {"n": 3}, 404, "no model 'nope'"),
        ("POST", "count/versions/2/infer_stream", {"n": 3}, 404, "no version '2'"),
        ("GET", "count/generate_stream", None, 405, "is asked with POST, not GET"),
        ("POST", "count/infer", {"inputs": []}, 501, "several answers to one request"),
        ("POST", "count/generate", {"n": 3}, 400, "ask it by generate_stream"),
    ],
)
def test_what_goes_wrong_before_has_a_status(
    door: Door, method: str, path: str, body: Any, status: int, text: str
) -> None:
    response = door.ask(method, f"/v2/models/{path}", body)
    assert (response.status, response.headers["content-type"]) == (status, "application/json")
    told = response.json()
    assert list(told) == ["error"]
    assert text in told["error"]


def test_a_client_that_reads_too_slowly_hears_no_more(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "MOST_WAITING_BYTES", 100_000)
    COUNT.closed.clear()
    body = json.dumps({"n": 10**6}).encode()
    with posted(door, "/v2/models/count/generate_stream", body) as connection:
        assert COUNT.closed.wait(WAIT_S)  # without a byte being read
        got = b""
        while b"0\r\n\r\n" not in got[-7:]:
            got += connection.recv(1 << 20)
    assert b"the model answers faster than the client reads" in got[-300:]


def test_a_client_that_leaves_ends_its_stream(door: Door) -> None:
    COUNT.closed.clear()
    body = json.dumps({"n": 10**6, "farm_config": '{"wait": true}'}).encode()
    with posted(door, "/v2/models/count/generate_stream", body) as connection:
        got = b""
        while b'"y":1.0' not in got:
            got += connection.recv(4096)
    until(lambda: all(q["in_flight"] == 0 for q in door.snapshot()["queues"]), "it is over")
    assert COUNT.closed.wait(WAIT_S)
