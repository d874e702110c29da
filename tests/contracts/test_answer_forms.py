"""Every HTTP answer has the form of its path's owner, whatever part of the server sends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPResponse
from socket import SHUT_WR
from typing import Any

import pytest

import farm
from farm.http1.connection import HttpConnection
from farm.http1.connections import OPEN
from farm.http1.reader import LONGEST_HEAD, LONGEST_LINE, MOST_HEADERS
from farm.protocols.umbridge.endpoint import PATHS, UmBridgeEndpoint
from farm.settings import Settings
from tests.support.bare_server import rest_of
from tests.support.front_door import Door, front_door, until

ASKED = (
    *("POST /Evaluate", "POST /InputSizes", "GET /Info"),
    *("POST /v2/models/forward/infer", "POST /v2/models/forward/generate_stream"),
    *("POST /v1/models/forward:predict", "POST /graphpipe/forward", "POST /", "GET /"),
    *("GET /metrics", "GET /farm/status", "POST /farm/models/forward/evaluate"),
)
"""Requests to each protocol, and to what a farm offers besides."""

HOST = "HTTP/1.1\r\nHost: a\r\n"
BODY = f"{HOST}Content-Length: 10\r\n"

REFUSED = [
    (400, f"%s {HOST}Host: b\r\n\r\n"),
    (400, f"%s {HOST}A: b\n\n"),
    (400, f"%s {HOST}Transfer-Encoding: chunked\r\n\r\nno size\r\n"),
    (403, f"%s {HOST}Origin: http://elsewhere\r\n\r\n"),
    (405, f"DELETE {{path}} {HOST}\r\n"),
    (408, f"%s {HOST}"),
    (408, f"%s {BODY}\r\nabc"),
    (413, f"%s {HOST}Content-Length: 99999999\r\n\r\n"),
    (414, f"%s?{'x' * LONGEST_LINE}"),
    (415, f"%s {BODY}Content-Encoding: zip\r\n\r\n0123456789"),
    (417, f"%s {BODY}Expect: tea\r\n\r\n"),
    (431, f"%s {HOST}" + "A: b\r\n" * (MOST_HEADERS + 1) + "\r\n"),
    (431, f"%s {HOST}Transfer-Encoding: chunked\r\n\r\n0\r\n" + "A: b\r\n" * 9999),
    (501, f"BREW {{path}} {HOST}\r\n"),
    (503, f"%s {BODY}\r\nabc"),
    (505, "%s HTTP/2.0\r\n\r\n"),
]
"""The status of each refusal, and a request that gets it, or the part that arrives."""

MARK = "X-Umbridge"


@farm.model(inputs={"x": 1}, outputs={"y": 1})
def forward(x: Any) -> Any:
    if x[0] < 0:
        raise ValueError("no mesh")
    return x


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    """A farm where every answer of UM-Bridge has one more header, by a change in one place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UmBridgeEndpoint, "headers", ((MARK.encode(), b"1"),))
        settings = Settings(port=0, max_body_bytes=10**6)
        with front_door({"forward": forward}, settings=settings) as opened:
            yield opened


def exchanged(door: Door, data: str, status: int = 200) -> tuple[HTTPResponse, bytes]:
    """Send a request; for 408, let its time limit pass, and for 503, stop the server."""

    async def act() -> bool:
        """Return whether the request had arrived."""
        for one in list(door.server.connections or ()):
            assert isinstance(one, HttpConnection)
            exchange = one._exchange
            arrived = one.unread == len(data) if exchange is None else exchange.size == 3
            if one.phase is not OPEN or not arrived:
                continue
            if status == 503:
                one.give_up()
            for now in (1e9, 2e9):
                one.look(now)
            return True
        return False

    with door.connect() as connection:
        connection.sendall(data.encode())
        if status in (408, 503):
            until(lambda: door.wait(act()), "it has arrived")
        response = HTTPResponse(connection)
        response.begin()
        return response, response.read()


def check_form(method: str, path: str, response: HTTPResponse, body: bytes) -> None:
    """Check body and headers of a refusal at a path."""
    content_type = response.headers["content-type"]
    if path.startswith("/graphpipe") or (method, path) == ("POST", "/"):
        assert content_type == "text/plain; charset=utf-8"
        assert not body.startswith(b"{")
    else:
        assert content_type == "application/json"
        error = json.loads(body)["error"]
        assert isinstance(error, str) if path[:3] in ("/v1", "/v2") else error["type"]
    assert response.headers.get_all(MARK) == (["1"] if path in PATHS else None)
    retry = ["1"] if response.status == 503 else None
    assert response.headers.get_all("retry-after") == retry
    assert response.status in (403, 405, 413, 415) or response.headers["connection"] == "close"


@pytest.mark.parametrize(("status", "data"), REFUSED)
def test_a_refusal_has_the_form_of_its_path(door: Door, status: int, data: str) -> None:
    for asked in ASKED:
        method, path = asked.split()
        if "{path}" in data:
            if path == "/":
                continue  # its owner depends on the method
            method = data.split()[0]
        response, body = exchanged(door, data.replace("%s", asked).replace("{path}", path), status)
        assert (asked, response.status) == (asked, status)
        check_form(method, path, response, body)


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, "\x16\x03\x01\x02\x00\x01"),
        (400, "GET\r\n\r\n"),
        (400, "* * *\r\n\r\n"),
        (400, "GET http:// HTTP/1.1\r\nHost: a\r\n\r\n"),
        (405, "CONNECT farm:80 HTTP/1.1\r\nHost: a\r\n\r\n"),
        (408, "GET"),
        (414, "x" * LONGEST_HEAD),
    ],
)
def test_a_refusal_without_a_path_has_a_plain_form(door: Door, status: int, data: str) -> None:
    response, body = exchanged(door, data, status)
    assert response.status == status
    check_form("", "", response, body)
    assert response.headers["connection"] == "close"


def test_a_refused_head_has_no_body(door: Door) -> None:
    with door.connect() as connection:
        connection.sendall(f"HEAD /Info {HOST}Host: b\r\n\r\n".encode())
        connection.shutdown(SHUT_WR)
        received = rest_of(connection)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"\r\n\r\n")


def test_every_umbridge_answer_has_its_headers(door: Door) -> None:
    """Also answers that are no refusals by the connection."""
    statuses = []
    for path, body in {
        "/ModelInfo": '{"name": "forward"}',
        "/OutputSizes": '{"name": "forward"}',
        "/Evaluate": '{"name": "forward", "input": [[1]]}',
        "/Evaluate ": '{"name": "forward", "input": [[-1]]}',
        "/ApplyJacobian": '{"name": "none"}',
    }.items():
        head = f"POST {path.strip()} {HOST}Content-Length: {len(body)}\r\n\r\n"
        response, _ = exchanged(door, head + body)
        assert response.headers.get_all(MARK) == ["1"]
        statuses.append(response.status)
    assert statuses == [200, 200, 200, 500, 400]
    assert exchanged(door, f"GET /Info {HOST}\r\n")[0].headers.get_all(MARK) == ["1"]
    assert MARK not in exchanged(door, f"GET /farm/status {HOST}\r\n")[0].headers
