"""One gRPC call without its connection."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from farm.bodies.held import HeldBytes
from farm.call import CancelCall
from farm.errors import InvalidInput, Overloaded
from farm.grpc.call import (
    NO_CALLER,
    OWN_FAULT,
    Answer,
    Caller,
    GrpcCall,
    Noted,
    Requests,
    Write,
)
from farm.grpc.connection import GrpcConnection
from farm.grpc.http2 import connection as http2
from farm.grpc.http2.frames import DATA, INITIAL_WINDOW_SIZE, WINDOW_UPDATE, literal
from farm.grpc.messages import LONG, STATUSES
from farm.http1.call_ids import NOTHING_NAMED, Naming
from tests.support.body_bytes import bytes_of
from tests.support.coroutines import until
from tests.support.grpc_server import Methods
from tests.support.http2_bytes import (
    data,
    framed,
    frames_in,
    greeted,
    request,
    said,
    setting,
    window_update,
)
from tests.support.span_collector import SpanCollector, span_collector, tracing_to

LIMIT = 1_000_000


class Line:
    """A connection with one open stream, 1."""

    def __init__(self, methods: Methods, naming: Naming = NOTHING_NAMED) -> None:
        self.http2 = greeted()
        self.http2.receive(request(1, end=False))
        self.ended = 0
        self.served = SimpleNamespace(
            service=methods, limit=LIMIT, held=HeldBytes(200_000), naming=naming
        )

    def flush_soon(self) -> None:
        pass

    def call_ended(self, stream: int) -> None:
        assert stream == 1
        self.ended += 1

    def overdue(self, call: GrpcCall) -> None:
        call.expire()

    async def turn(self) -> None:
        pass

    def said(self) -> bytes:
        return said(self.http2)


Tell = Callable[[Answer | Exception], None]
"""How a direct method answers."""


class Direct(Methods):
    """Methods that need no task, too."""

    def __init__(self) -> None:
        super().__init__()
        also = dict.fromkeys(("/x/Direct", "/x/Now", "/x/Never"), self.echo)
        self.unary = {**self.unary, **also}
        self.direct = {"/x/Direct": self.later, "/x/Now": self.now, "/x/Never": self.never}
        self.bidirectional = {"/x/Sum": self.sum, "/x/Length": self.length}
        self.answers: list[Tell] = []
        self.undone = 0

    def later(self, body: bytes, caller: Caller, answer: Tell) -> CancelCall:
        self.answers.append(answer)
        return self.undo

    def undo(self) -> None:
        self.undone += 1

    def now(self, body: bytes, caller: Caller, answer: Tell) -> CancelCall:
        if body == b"wrong":
            raise InvalidInput("that is wrong")
        answer(Noted(body, [(b"note", b"c sharp")]))
        return self.undo

    def never(self, body: bytes, caller: Caller, answer: Tell) -> None:
        return None

    async def length(self, requests: Requests, write: Write, caller: Caller) -> None:
        async for body in requests:
            await write(b"%d" % len(bytes_of(body)))

    async def sum(self, requests: Requests, write: Write, caller: Caller) -> None:
        await write(b"%d" % sum([int(bytes_of(body)) async for body in requests]))


def begun(
    path: str,
    headers: dict[bytes, bytes] | None = None,
    naming: Naming = NOTHING_NAMED,
    peer: str = "here",
) -> tuple[GrpcCall, Line, Direct]:
    methods = Direct()
    line = Line(methods, naming)
    call = GrpcCall(cast(GrpcConnection, line), 1, "", NO_CALLER)
    call.begin(path, Caller(peer, "", headers or {}, None))
    return call, line, methods


def asked(path: str = "/x/Direct", message: bytes = b"abc") -> tuple[GrpcCall, Line, Direct]:
    """A call whose request is whole."""
    call, line, methods = begun(path)
    call.received(framed(message))
    call.received(b"", ended=True)
    return call, line, methods


async def test_a_direct_method_answers_without_a_task() -> None:
    tasks = asyncio.all_tasks()
    call, line, methods = asked()
    assert asyncio.all_tasks() == tasks
    assert line.said() == b""
    methods.answers[0](b"its answer")
    said = line.said()
    assert framed(b"its answer") in said
    assert b"grpc-status\x010" in said
    assert line.ended == 1
    call.fail("UNAVAILABLE", "the end")
    assert line.said() == b""
    assert methods.undone == 0


async def test_a_direct_method_may_answer_or_fail_at_once() -> None:
    call, line, methods = asked("/x/Now")
    said = line.said()
    assert literal(b"note", b"c sharp") in said
    assert framed(b"abc") in said
    call.cancel()
    call, line, methods = asked("/x/Now", b"wrong")
    said = line.said()
    assert literal(b"grpc-status", b"3") in said
    assert b"that is wrong" in said
    assert methods.undone == 0


async def test_errors_of_a_direct_method(caplog: pytest.LogCaptureFixture) -> None:
    _, line, methods = asked()
    methods.answers[0](Overloaded("too much"))
    assert literal(b"grpc-status", b"14") in (said := line.said())
    assert b"too much" in said
    _, line, methods = asked()
    methods.answers[0](ValueError("no number"))
    assert literal(b"grpc-status", b"13") in (said := line.said())
    assert b"no number" not in said
    assert "no number" in caplog.text


@pytest.mark.parametrize(
    "end",
    [GrpcCall.cancel, GrpcCall.expire, lambda call: call.fail("UNAVAILABLE", "the end")],
    ids=["cancelled", "expired", "failed"],
)
async def test_the_end_of_a_call_cancels_its_direct_method_once(
    end: Callable[[GrpcCall], None],
) -> None:
    call, line, methods = asked()
    end(call)
    assert methods.undone == 1
    line.said()
    methods.answers[0](b"too late")
    call.cancel()
    assert line.said() == b""
    assert methods.undone == 1


async def test_a_client_is_not_too_slow_while_a_direct_method_runs() -> None:
    call, line, methods = asked()
    for _ in range(3):
        call.look(1 << 20)
    methods.answers[0](b"at last")
    assert framed(b"at last") in line.said()


@pytest.mark.parametrize(
    ("path", "answer"), [("/x/Echo", bytes(900_000)), ("/x/Length", b"900000")]
)
async def test_packed_messages_are_unpacked(path: str, answer: bytes) -> None:
    call, line, _ = begun(path, {b"grpc-encoding": b"gzip"})
    line.http2.receive(setting(INITIAL_WINDOW_SIZE, 1 << 21) + window_update(0, 1 << 21))
    call.received(b"\x01" + framed(gzip.compress(bytes(900_000)))[1:], ended=True)
    await until(lambda: line.ended)
    assert answer in b"".join(s.payload for s in frames_in(line.said()) if s.kind == DATA)


async def test_what_a_direct_method_does_not_take_gets_a_task() -> None:
    call, line, methods = asked("/x/Never")
    await until(lambda: line.ended)
    assert framed(b"abc") in line.said()
    call, line, methods = begun("/x/Direct")
    call.received(framed(bytes(LONG + 1))[:10])
    call.received(framed(bytes(LONG + 1))[10:])
    call.received(b"", ended=True)
    await until(lambda: methods.callers)
    assert methods.answers == []


def told(line: Line) -> list[int]:
    """Return the increments of the client's window."""
    return [
        int.from_bytes(sent.payload, "big")
        for sent in frames_in(line.said())
        if sent.kind == WINDOW_UPDATE
    ]


@pytest.mark.parametrize("path", ["/x/Echo", "/x/Length"])
async def test_a_long_message_may_be_sent_when_there_is_room(path: str) -> None:
    call, line, _ = begun(path)
    other = line.served.held.reserve(150_000, lambda: None)
    body = framed(bytes(100_000))
    call.received(body[:50_000])
    call.received(body[50_000:60_000])
    assert told(line) == []
    call.look(1 << 20)
    call.look(1 << 20)  # the client does not make us wait
    other.release()
    assert told(line) == [100_000]
    assert line.served.held.used == 100_000
    call.received(body[60_000:])
    assert told(line) == []  # it was sent before
    if path == "/x/Echo":
        call.received(b"", ended=True)
    else:
        await until(lambda: not line.served.held.used)
        call.received(framed(bytes(70_000))[:10])
        await until(lambda: line.served.held.used == 70_000)
        assert told(line) == [70_000]
        call.received(framed(bytes(70_000))[10:])
        call.received(b"", ended=True)
    await until(lambda: line.ended)
    assert line.served.held.used == 0


async def test_a_message_that_is_there_before_its_room_counts_all_the_same() -> None:
    call, line, _ = begun("/x/Echo")
    other = line.served.held.reserve(150_000, lambda: None)
    body = framed(bytes(100_000))
    call.received(body[:50_000])
    call.received(body[50_000:])
    call.received(b"", ended=True)
    assert line.served.held.used == 250_000
    await until(lambda: line.ended)
    assert line.served.held.used == 150_000
    other.release()


async def test_a_call_that_ends_waits_for_no_room() -> None:
    call, line, _ = begun("/x/Echo")
    other = line.served.held.reserve(150_000, lambda: None)
    call.received(framed(bytes(100_000))[:50_000])
    before = line.served.held.contended
    call.cancel()
    assert (before, line.served.held.contended) == (True, False)
    other.release()


async def test_only_who_takes_messages_is_sent_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "HALF_STREAM_WINDOW", 1)  # so that every byte is acknowledged
    call, line, _ = begun("/x/Sum")

    call.received(framed(b"1")[:4])
    assert sum(told(line)) == 4  # of an incomplete message
    call.received(framed(b"1")[4:] + framed(b"2")[:3])
    call.received(framed(b"2")[3:5])
    assert sum(told(line)) == 0
    await asyncio.sleep(0)
    assert sum(told(line)) == 7
    call.received(framed(b"2")[5:])
    call.received(b"", ended=True)
    await until(lambda: line.ended)
    assert framed(b"3") in line.said()


async def test_after_it_has_failed_nothing_more_is_said() -> None:
    call, line, methods = asked("/x/Echo")
    call.fail("UNAVAILABLE", "the end")
    assert b"the end" in line.said()
    for _ in range(5):
        await asyncio.sleep(0)
    assert line.said() == b""
    assert methods.callers == []


async def test_a_deadline_means_nothing_once_there_is_an_answer() -> None:
    call, line, _ = begun("/x/Echo", {b"grpc-timeout": b"50S"})
    call.received(framed(b"abc"))
    call.received(b"", ended=True)
    await until(lambda: line.ended)
    assert call._timer is not None
    assert call._timer.cancelled()


TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = b"00-" + TRACE + b"-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        *(("/x/Echo", b""), ("/x/Now", b""), ("/x/Direct", b""), ("/x/Fail", b"")),
        *(("/x/Count", b"2"), ("/x/Count", b"0")),
    ],
)
@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({b"x-request-id": b"a-1"}, b"a-1"),
        ({b"traceparent": PARENT}, TRACE),
        ({b"x-request-id": b"a b"}, None),
        ({}, None),
    ],
)
async def test_the_answer_names_the_call_as_its_caller_did(
    path: str, message: bytes, headers: dict[bytes, bytes], named: bytes | None
) -> None:
    call, line, methods = begun(path, headers)
    line.http2.receive(data(1, end=True))
    call.received(framed(message), ended=True)
    for answer in methods.answers:
        answer(b"")
    await until(lambda: line.ended)
    told = line.said()
    if named is None:
        assert b"x-request-id" not in told
    else:
        assert told.count(literal(b"x-request-id", named)) == 1


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    with span_collector() as running:
        yield running


def test_a_span_has_what_the_conventions_ask_for(collector: SpanCollector) -> None:
    headers = {b"traceparent": PARENT, b"te": b"trailers", b"x-request-id": b"a-1"}
    passed_on = {}

    def keep(body: bytes, caller: Caller, answer: Tell) -> None:
        passed_on.update(caller.headers)
        answer(b"")

    with tracing_to(collector) as tracing:
        call, _, methods = begun("/x/Direct", headers, Naming(None, tracing), "10.0.0.1")
        methods.direct = {"/x/Direct": keep}
        call.received(framed(b""), ended=True)
    (sent,) = collector.spans
    assert sent.name == "x/Direct"
    assert sent.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": "x/Direct",
        "rpc.response.status_code": "OK",
        "client.address": "10.0.0.1",
        "farm.call.id": "a-1",
    }
    assert headers[b"traceparent"] == PARENT
    assert passed_on == {**headers, b"traceparent": f"00-{sent.trace}-{sent.id}-01".encode()}


def test_only_the_servers_own_faults_are_errors(collector: SpanCollector) -> None:
    assert set(STATUSES) >= OWN_FAULT
    with tracing_to(collector) as tracing:
        for status in ("INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE", "INTERNAL"):
            begun("/x/Direct", naming=Naming(None, tracing), peer="")[0].fail(status, "")
    assert "client.address" not in collector.spans[0].attributes
    assert collector.spans[0].attributes["farm.call.id"] == collector.spans[0].trace
    marks = [(span.status, span.attributes.get("error.type")) for span in collector.spans]
    assert marks == [("", None), ("", None), ("ERROR", "UNAVAILABLE"), ("ERROR", "INTERNAL")]
