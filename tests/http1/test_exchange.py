"""Whole requests and answers over a bare connection, with doors made for the purpose."""

from __future__ import annotations

import json
import mmap
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from farm.bodies.body import HEAVY_BYTES, QUICK_BYTES, HeldBody
from farm.bodies.unpacking import Headers, Refused
from farm.http1 import exchange
from farm.http1.call_ids import Naming, call_ids
from farm.http1.request import Answer, Handler, Request
from tests.http1.test_connection import LAST, Later, body_of, chunked
from tests.protocols.models import Gate
from tests.support import bare_server
from tests.support.bare_server import LIMIT, Server, post, rest_of
from tests.support.coroutines import LoopTurns
from tests.support.front_door import WAIT_S, Door, front_door, until
from tests.support.span_collector import SpanCollector, span_collector, tracing_to


def echo(request: Request, answer: Answer) -> None:
    body = request.method.encode() + b" " + body_of(request)
    answer(200, body, ((b"x-path", request.path.encode()),))


def mistake(request: Request, answer: Answer) -> None:
    raise ZeroDivisionError("secret")


def refuse(request: Request, answer: Answer) -> None:
    raise Refused(405, "MethodNotAllowed", "not so", headers=((b"allow", b"POST"),))


def serving(**doors: Handler) -> AbstractContextManager[Server]:
    return bare_server.serving({f"/{name}": door for name, door in doors.items()})


def test_an_answer_has_its_length_its_type_and_its_headers() -> None:
    with serving(echo=echo) as server:
        assert server.ask(post("/echo", b"abc", LAST)) == (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n"
            b"x-path: /echo\r\nconnection: close\r\n\r\nPOST abc"
        )


@pytest.mark.parametrize("path", ["/echo", "//echo", "/%65cho", "/echo?x=1", "http://farm/echo"])
def test_a_path_may_be_written_in_many_ways(path: str) -> None:
    with serving(echo=echo) as server:
        assert b"x-path: /echo\r\n" in server.ask(post(path, b"", LAST))


def test_other_paths_are_the_application_s_on_the_same_connection() -> None:
    with serving(echo=echo) as server:
        received = server.ask(
            post("/echo", b"1"), post("/other"), post("/echo", b"2"), post("/last", b"", LAST)
        )
        bodies = [part.rpartition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 OK")]
        assert bodies == [b"", b"POST 1", b"/other", b"POST 2", b"/last"]


def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    later = Later()
    with serving(later=later, echo=echo) as server, server.connect() as connection:
        asked = (post("/later", b"1"), post("/echo", b"2"), post("/later", b"3"))
        connection.sendall(b"".join(asked) + post("/x", b"", LAST))
        for body in (b"1", b"3"):
            until(lambda: later.open, "the door is asked")
            request, answer = later.open.pop()
            assert request.body == body  # the next one waits for its turn
            server.call(answer, 200, b"answer " + body)
        received = rest_of(connection)
        positions = [received.index(b) for b in (b"answer 1", b"POST 2", b"answer 3", b"/x")]
        assert positions == sorted(positions)


def test_requests_with_equal_heads_are_requests_of_their_own() -> None:
    ids: list[bytes] = []

    def note(request: Request, answer: Answer) -> None:
        ids.append(request.headers[b"x-request-id"])
        answer(200, body_of(request))

    with bare_server.serving({"/note": note}, naming=Naming(call_ids())) as server:
        for body in (b"1", b"2"):  # on two connections, two each
            received = server.ask(post("/note", body) + post("/note", body, LAST))
            assert received.count(b"\r\n\r\n" + body) == 2
    assert len(set(ids)) == 4, "each gets an id, and no other sees it"


def test_a_head_is_asked_for_without_its_body() -> None:
    with serving(echo=echo) as server:
        received = server.ask(b"HEAD /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"content-length: 5\r\n" in received
        assert received.endswith(b"\r\n\r\n")


def test_http_1_0_ends_the_connection() -> None:
    with serving(echo=echo) as server:
        received = server.ask(b"POST /echo HTTP/1.0\r\nContent-Length: 1\r\n\r\nz")
        assert received.endswith(b"connection: close\r\n\r\nPOST z")


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_long_is_refused_and_passed_over(announced: bool) -> None:
    body = b"x" * (LIMIT + 1)
    too_long = post("/echo", body)
    if not announced:
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        too_long = chunked("/echo") + chunk
    with serving(echo=echo) as server:
        received = server.ask(too_long, post("/echo", b"next", LAST))
        assert received.startswith(b"HTTP/1.1 413 ")
        assert b"longer than 1000 bytes" in received
        assert received.endswith(b"POST next")
        assert server.ask(post("/echo", body[1:], LAST)).endswith(b"POST " + body[1:])


def test_a_long_body_sent_ahead_is_left_in_the_network() -> None:
    later, size = Later(), 50_000_000
    with serving(later=later, echo=echo) as server, server.connect() as connection:
        head = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size
        connection.sendall(post("/later", b"1") + head)
        until(lambda: later.open, "the door is asked")
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.sendall(bytes(size))
        connection.settimeout(WAIT_S)
        server.call(later.open[0][1], 200, b"first")
        received = b""
        while b"longer than 1000 bytes" not in received:
            received += connection.recv(10**5)
        assert received.index(b"first") < received.index(b"HTTP/1.1 413 ")


def test_mistakes_and_refusals_are_told_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(mistake=mistake, refuse=refuse, echo=echo) as server:
        received = server.ask(post("/mistake"), post("/refuse"), post("/echo", b"3", LAST))
        first, second, third = received.split(b"HTTP/1.1 ")[1:]
        assert first.startswith(b"500 ")
        error = json.loads(first.partition(b"\r\n\r\n")[2])["error"]
        assert error["type"] == "InternalError"
        assert b"secret" not in received
        assert "ZeroDivisionError: secret" in caplog.text
        assert second.startswith(b"405 ")
        assert b"allow: POST\r\n" in second
        assert third.endswith(b"POST 3")


def test_an_answered_request_is_not_taken_back() -> None:
    later = Later()
    with serving(later=later) as server:
        with server.connect() as connection:
            connection.sendall(post("/later", b"1"))
            until(lambda: later.open, "the door is asked")
            server.call(later.open[0][1], 200, b"done")
            assert b"done" in connection.recv(1000)
        # By now the end of the other one has been noticed.
        assert server.ask(post("/other", b"", LAST))
        assert later.taken_back == []


def test_an_end_answers_what_is_open_and_takes_it_back() -> None:
    later = Later()
    with serving(later=later) as server, server.connect() as connection:
        connection.sendall(post("/later", b"1"))
        until(lambda: later.open, "the door is asked")
        server.wait(server.http.stop(0.1))
        received = rest_of(connection)
        assert received.startswith(b"HTTP/1.1 503 ")
        assert later.taken_back == [b"1"]


class Keeper:
    """A door that answers with a long body, and notes whether that was in a file.

    It takes bodies with the header `raw` as raw numbers.
    """

    def __init__(self) -> None:
        self.in_file: list[bool] = []

    def __call__(self, request: Request, answer: Answer) -> None:
        assert isinstance(request.body, HeldBody)
        view = request.body.view()
        self.in_file.append(isinstance(view.obj, mmap.mmap))
        answer(200, view)

    def is_raw(self, headers: Headers) -> bool:
        return b"raw" in headers


def test_long_bodies_of_raw_numbers_are_held_in_memory_and_others_in_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = Keeper()
    body = bytes(range(256)) * (HEAVY_BYTES // 256) + b"x"
    monkeypatch.setattr(exchange, "MOST_IN_MEMORY", len(body))
    packed = "Content-Encoding: identity"
    with bare_server.serving({"/keep": keeper}, limit=1 << 30) as server:
        for headers in (["raw: 1"], [], ["raw: 1", packed]):
            assert server.ask(post("/keep", body, *headers, LAST)).endswith(b"\r\n\r\n" + body)
        long = body + b"x"
        assert server.ask(post("/keep", long, "raw: 1", LAST)).endswith(b"\r\n\r\n" + long)
    assert keeper.in_file == [False, True, True, True]


def test_long_bodies_that_are_whole_at_once_are_read_one_in_a_turn() -> None:
    of_loop, held = LoopTurns(), threading.Event()
    turns: list[int] = []

    def note(request: Request, answer: Answer) -> None:
        turns.append(of_loop.number)
        answer(200, b"x")

    with bare_server.serving({"/note": note}, limit=1 << 20) as server:

        def nearly_whole() -> int:
            exchanges = [getattr(connection, "_exchange") for connection in server.connections]  # noqa: B009
            return sum(1 for e in exchanges if e is not None and e.size == QUICK_BYTES)

        connections = [server.connect() for _ in range(20)]
        request = post("/note", bytes(QUICK_BYTES + 1))
        for connection in connections:
            connection.sendall(request[:-1])
        until(lambda: server.call(nearly_whole) == 20, "all but the last bytes are there")
        server.loop.call_soon_threadsafe(of_loop.count)
        server.loop.call_soon_threadsafe(held.wait, WAIT_S)
        for connection in connections:
            connection.sendall(request[-1:])
        held.set()
        until(lambda: len(turns) == 20, "all are read")
        for connection in connections:
            connection.close()
    assert len(set(turns)) == 20


QUESTION = {"name": "gate", "input": [[4]], "config": {}}


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
        gate.open.set()


@pytest.fixture
def open_door(door: Door, gate: Gate) -> Door:
    gate.open.set()
    return door


def test_it_has_what_the_conventions_ask_for(open_door: Door, collector: SpanCollector) -> None:
    headers = {"User-Agent": "probe/1", "X-Request-ID": "a-1"}
    assert open_door.ask("POST", "/Evaluate?why=so", QUESTION, headers).status == 200
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
    open_door: Door, collector: SpanCollector
) -> None:
    for _ in range(3):
        assert open_door.ask("POST", "/Evaluate", QUESTION).status == 200
    requests = collector.wait(3, lambda span: span.kind == "SERVER")
    assert len({span.trace for span in requests}) == 3


@pytest.mark.parametrize(
    ("body", "status", "mark", "kind"),
    [(b"{", 400, "", None), ({**QUESTION, "input": [[-4]]}, 500, "ERROR", "500")],
)
def test_only_the_servers_own_faults_are_errors(
    open_door: Door, collector: SpanCollector, body: Any, status: int, mark: str, kind: Any
) -> None:
    assert open_door.ask("POST", "/Evaluate", body).status == status
    (request,) = collector.wait(1, lambda span: span.kind == "SERVER")
    assert request.attributes["http.response.status_code"] == status
    assert (request.status, request.attributes.get("error.type")) == (mark, kind)


def test_a_client_that_leaves_is_an_error(door: Door, gate: Gate, collector: SpanCollector) -> None:
    with door.connect() as client:
        client.sendall(post("/Evaluate", json.dumps(QUESTION).encode()))
        assert gate.begun.wait(WAIT_S)
    (request,) = collector.wait(1, lambda span: span.kind == "SERVER")
    assert "http.response.status_code" not in request.attributes
    assert (request.status, request.attributes["error.type"]) == ("ERROR", "client left")


def test_an_answer_in_parts_has_its_status(open_door: Door, collector: SpanCollector) -> None:
    assert open_door.ask("POST", "/no/such", b"").status == 404
    assert open_door.ask("GET", "/", None).status == 200
    (request,) = collector.wait(1, lambda span: span.kind == "SERVER")
    assert (request.name, request.attributes["http.response.status_code"]) == ("POST", 404)
