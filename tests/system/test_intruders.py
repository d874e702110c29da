"""Other users of this machine and web pages in the owner's browser, at every door that is open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPResponse
from io import BytesIO
from typing import Any, cast

import pytest

import farm
from tests.front_door import Door, front_door
from tests.strangers import connect_as_stranger, stranger, wait_for_disowned

runs: list[float] = []


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def recorded(x: Any) -> Any:
    """Remembers that it was run."""
    runs.append(float(x[0]))
    return x


@pytest.fixture
def door() -> Iterator[Door]:
    """A front door with a token, as every farm has one."""
    runs.clear()
    with front_door({"recorded": recorded}, token="t0ken") as made:
        yield made


def evaluate(*headers: str) -> bytes:
    """An UM-Bridge request as a web page may send it without asking the server first."""
    body = b'{"name": "recorded", "input": [[7]]}'
    lines = ["POST /Evaluate HTTP/1.1", "Host: localhost:4242", "Content-Type: text/plain"]
    lines += [f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


UNLOAD = b"POST /v2/repository/models/recorded/unload HTTP/1.1\r\nHost: localhost\r\n"
UNLOAD += b"Content-Length: 0\r\n\r\n"


def status(answer: bytes) -> int:
    """Of an HTTP answer."""

    class Bytes:
        def makefile(self, mode: str) -> BytesIO:
            return BytesIO(answer)

    response = HTTPResponse(cast(Any, Bytes()))
    response.begin()
    return response.status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://localhost:8888", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example", "Authorization": "Bearer t0ken"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/models/recorded/unload"),
        ("POST", "/v2/models/recorded/infer"),
        ("POST", "/v2/models/recorded/generate_stream"),
        ("POST", "/Evaluate"),
        ("POST", "/graphpipe/recorded"),
        ("POST", "/"),
        ("POST", "/farm/models/recorded/evaluate"),
        ("GET", "/farm/status"),
        ("GET", "/metrics"),
        ("GET", "/"),
    ],
)
def test_a_web_page_runs_and_unloads_nothing(
    door: Door, method: str, path: str, headers: dict[str, str]
) -> None:
    body = b'{"name": "recorded", "input": [[7]], "x": [7]}' if method == "POST" else None
    sent = {"Content-Type": "text/plain", **headers}
    answer = door.ask(method, path, body, sent)
    assert answer.status == 403, answer.data
    assert runs == []
    assert door.ask("GET", "/v2/models/recorded/ready").status == 200
    assert door.ask("POST", "/Evaluate", {"name": "recorded", "input": [[1]]}).status == 200


@pytest.mark.root
def test_another_user_needs_the_token_over_http(door: Door) -> None:
    for headers, expected, ran in (
        ([], 401, []),
        (["Authorization: Bearer wrong"], 401, []),
        (["Authorization: Bearer t0ken"], 200, [7.0]),
    ):
        with connect_as_stranger(*door.address) as other:
            other.send(evaluate(*headers))
            assert status(other.read()) == expected
        assert runs == ran


@pytest.mark.root
def test_another_user_who_sends_and_closes_runs_nothing(door: Door) -> None:
    """The kernel says uid 0 of a closed socket, and that is who runs this farm."""
    closed = threading.Event()
    door.loop.call_soon_threadsafe(closed.wait)  # it is accepted when it is gone already
    with stranger() as other:
        for _ in range(20):
            other.connect(door.address)
            other.send(UNLOAD)
            other.close()
    wait_for_disowned(door.address[1], 20)
    closed.set()
    assert door.ask("POST", "/Evaluate", {"name": "recorded", "input": [[1]]}).status == 200
    assert door.ask("GET", "/v2/models/recorded/ready").status == 200
