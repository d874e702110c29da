"""One gRPC connection, frame by frame: frames that no grpcio client would send."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest

from farm.bodies.body import Body
from farm.grpc import server as grpc
from farm.grpc.call import Caller, Requests, Service, Write
from farm.grpc.connection import GrpcConnection
from farm.grpc.http2.frames import GOAWAY, HEADERS, PING, PREFACE, SETTINGS, frame, literal
from farm.grpc.server import GrpcServer
from farm.http1.access import Access
from tests.support.body_bytes import bytes_of
from tests.support.coroutines import LIMIT_S, until
from tests.support.garbage import garbage
from tests.support.http2_bytes import REQUEST, framed, request


class Methods(Service):
    """Methods of each kind, which record how far they came."""

    def __init__(self) -> None:
        self.started = self.cancelled = 0
        self.held = asyncio.Event()
        self.unary = {"/x/Echo": self.echo, "/x/Hold": self.hold}
        self.server_streams = {"/x/Flood": self.flood}
        self.bidirectional = {"/x/EchoAll": self.echo_all}

    def end_streams(self) -> None:
        self.held.set()

    async def echo(self, body: Body, caller: Caller) -> bytes:
        return bytes_of(body)

    async def hold(self, body: Body, caller: Caller) -> bytes:
        await self._wait()
        return bytes_of(body)

    def hold_directly(self, body: bytes, caller: Caller, answer: Any) -> Callable[[], None]:
        self.started += 1
        return self.undo

    def undo(self) -> None:
        self.cancelled += 1

    async def _wait(self) -> None:
        self.started += 1
        try:
            await self.held.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def flood(self, body: Body, write: Write, caller: Caller) -> None:
        for _ in range(100):
            await write(bytes(100_000))

    async def echo_all(self, requests: Requests, write: Write, caller: Caller) -> None:
        async for body in requests:
            await write(bytes_of(body))


class Client:
    """A client of the package h2 on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.http2 = h2.connection.H2Connection(config)
        self.reader, self.writer = reader, writer
        self.events: list[Any] = []
        self.http2.initiate_connection()
        self.send()

    def send(self) -> None:
        self.writer.write(self.http2.data_to_send())

    def ask(
        self,
        method: str,
        *messages: bytes,
        end: bool = True,
        body: bytes = b"",
        sends: bool = True,
        **headers: str,
    ) -> int:
        stream: int = self.http2.get_next_available_stream_id()
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        head = {**dict(REQUEST), ":path": f"/x/{method}", **more}
        self.http2.send_headers(stream, list(head.items()))
        body = body or b"".join(map(framed, messages))
        self.http2.send_data(stream, body, end_stream=end)
        if sends:
            self.send()
        return stream

    async def until(self, condition: Callable[[], object]) -> None:
        """Read until the condition is true."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                data = await self.reader.read(65536)
                assert data, "the server has closed the connection"
                self.events += self.http2.receive_data(data)
                self.send()

    async def read_to_the_end(self) -> bytes:
        """Return all remaining bytes; h2 itself ignores everything after a GOAWAY."""
        return await asyncio.wait_for(self.reader.read(), LIMIT_S)

    async def echoes(self, message: bytes = b"abc") -> None:
        """Make a call that is answered."""
        body, _ = await self.answer(self.ask("Echo", message))
        assert body == framed(message)

    async def answer(self, stream: int) -> tuple[bytes, dict[str, str]]:
        """Return body and all headers of an answer, once it has ended."""

        def mine(kind: type[Any]) -> list[Any]:
            return [e for e in self.events if isinstance(e, kind) and e.stream_id == stream]

        await self.until(lambda: mine(h2.events.StreamEnded))
        headers: dict[str, str] = {}
        for event in mine(h2.events.ResponseReceived) + mine(h2.events.TrailersReceived):
            headers |= {str(name): str(value) for name, value in event.headers}
        return b"".join(e.data for e in mine(h2.events.DataReceived)), headers


@asynccontextmanager
async def connected(
    **options: Any,
) -> AsyncIterator[tuple[Methods, GrpcServer, Callable[[], Awaitable[Client]]]]:
    methods = Methods()
    server = GrpcServer(methods, Access(None), **options)
    host, port = await server.start()
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection(host, port)))
        return clients[-1]

    try:
        yield methods, server, connect
    finally:
        await server.stop(0.0)
        for client in clients:
            client.writer.close()


async def test_calls_with_the_headers_of_the_one_before_share_what_these_mean() -> None:
    callers: list[Caller] = []

    async def note(body: Body, caller: Caller) -> bytes:
        callers.append(caller)
        return bytes_of(body)

    async with connected() as (methods, _, connect):
        methods.unary = {"/x/Note": note, "/x/Echo": note}
        client = await connect()
        asked: list[tuple[str, dict[str, Any]]] = [("Note", {})] * 2
        asked += [("Note", {"a": "b"}), ("Note", {}), ("Echo", {})]
        asked += [("Note", {"grpc_timeout": "9S"})] * 3 + [("Note", {"x_request_id": "one"})] * 3
        for i, (method, headers) in enumerate(asked):
            body, _ = await client.answer(client.ask(method, b"%d" % i, **headers))
            assert body == framed(b"%d" % i)
    paths = [caller.headers[b":path"].decode() for caller in callers]
    assert paths == [f"/x/{method}" for method, _ in asked]
    assert callers[1].headers == callers[0].headers
    assert callers[2].headers[b"a"] == b"b"
    assert callers[4] is not callers[3]
    # gRPC's own field, and a name, belong to one call: nothing of them is kept.
    assert [caller.remaining_s for caller in callers[4:9]] == [None, 9.0, 9.0, 9.0, None]
    async with connected() as (methods, _, connect):
        methods.unary = {"/x/Note": note}
        client = await connect()
        for _ in range(4):  # from the second time on, the headers are indices of the table
            await client.answer(client.ask("Note", b"1"))
        assert callers[-1] is callers[-2]


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        ({"method": "Echo"}, "13", "no message for a method that takes one"),
        ({"method": "Nothing"}, "12", "there is no method '/x/Nothing'"),
        ({"method": "Echo", "body": b"\0\0\0"}, "3", "in the middle of a message"),
        ({"method": "Echo", "body": framed(b"a") * 2}, "13", "more than one message"),
        ({"method": "Echo", "grpc_encoding": "snappy"}, "12", "gzip and deflate are known"),
        ({"method": "Echo", "grpc_timeout": "soon"}, "13", "expected such as 500m or 2S"),
        ({"method": "Hold", "body": framed(b""), "grpc_timeout": "50m"}, "4", "deadline"),
        ({"method": "EchoAll", "body": b"\0\0\0"}, "3", "in the middle of a message"),
    ],
)
async def test_what_is_wrong_has_its_status(asked: dict[str, Any], status: str, text: str) -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        _, headers = await client.answer(client.ask(**asked))
        assert headers["grpc-status"] == status
        assert text in headers["grpc-message"]
        await client.echoes(b"still here")


async def test_a_client_that_left_before_it_was_accepted_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = set[int]()

    class Recorded(GrpcConnection):
        def received(self, data: bytes) -> None:
            heard.add(id(self))
            super().received(data)

    monkeypatch.setattr(grpc, "GrpcConnection", Recorded)
    async with connected() as (_, _, connect):
        client = await connect()
        with socket.create_connection(client.writer.get_extra_info("peername")) as gone:
            gone.sendall(PREFACE)
        for one in (client, await connect()):
            await one.echoes()
    assert len(heard) == 2


async def test_what_is_not_grpc_is_told_by_http() -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        stream = client.ask("Echo", b"abc", content_type="application/json")
        body, headers = await client.answer(stream)
        assert headers == {":status": "415", "content-type": "text/plain"}
        assert b"speaks gRPC" in body


async def test_metadata_that_is_too_long_fails_its_call_alone() -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        client.http2.remote_settings.max_header_list_size = 1 << 20
        many: dict[str, Any] = {f"a{i}": "b" * 1000 for i in range(20)}
        _, headers = await client.answer(client.ask("Echo", b"abc", **many))
        assert headers["grpc-status"] == "8"
        assert headers["grpc-message"] == "the metadata is larger than 16384 bytes, the limit here"
        stream = client.ask("Echo", b"abc", content_type="text/html", **many)
        _, headers = await client.answer(stream)
        assert headers == {":status": "431"}
        await client.echoes(b"still here")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE + frame(SETTINGS, 0, 0) + frame(PING, 0, 0, b"short"),
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"),
    ],
    ids=["http1", "ping", "headers"],
)
async def test_who_does_not_speak_http2_is_sent_away(sent: bytes) -> None:
    async with connected() as (_, _, connect):
        place = (await connect()).writer.get_extra_info("peername")
        reader, writer = await asyncio.open_connection(*place)
        writer.write(sent)
        said = await asyncio.wait_for(reader.read(), LIMIT_S)
        assert struct.pack(">BBL", GOAWAY, 0, 0) in said
        writer.close()


async def test_calls_taken_back_are_cancelled_also_before_they_run() -> None:
    async with connected() as (methods, _, connect):
        client = await connect()
        streams = [client.ask("Hold", b"") for _ in range(10)]
        await until(lambda: methods.started == 10)
        for stream in streams:
            client.http2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        client.send()
        await until(lambda: methods.cancelled == 10)
        methods.direct = {"/x/Hold": methods.hold_directly}  # which would start without a task
        for _ in range(100):  # requested and cancelled at once
            client.http2.reset_stream(client.ask("Hold", b"", sends=False))
        client.send()
        await client.echoes()
        assert methods.started - methods.cancelled == 0
        assert methods.started <= 30  # all but a few, whose frames are read in two steps


@pytest.mark.slow
async def test_who_does_not_read_is_not_heard_without_end() -> None:
    async with connected() as (_, _, connect):
        client = await connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads, too
        sent, stream = 0, 1
        with contextlib.suppress(TimeoutError):
            while sent < 200 << 20:
                for _ in range(1000):
                    client.writer.write(request(stream))  # answered with trailers
                    stream += 2
                sent += 1000 * len(request(1))
                await asyncio.wait_for(client.writer.drain(), 1.0)
        assert sent < 100 << 20
        await (await connect()).echoes()


async def test_at_the_end_what_runs_is_answered_and_idle_clients_are_let_go() -> None:
    async with connected() as (methods, server, connect):
        idle, busy = await connect(), await connect()
        busy.ask("Hold", b"abc")
        await until(lambda: methods.started == 1)
        stopping = asyncio.create_task(server.stop(LIMIT_S))
        said = await busy.read_to_the_end()
        assert struct.pack(">BBLL", GOAWAY, 0, 0, 1) in said
        assert framed(b"abc") in said
        assert literal(b"grpc-status", b"0") in said
        assert struct.pack(">BBLL", GOAWAY, 0, 0, 0) in await idle.read_to_the_end()
        await asyncio.wait_for(stopping, LIMIT_S)


async def test_what_does_not_end_in_time_is_unavailable() -> None:
    async with connected() as (methods, server, connect):
        methods.end_streams = lambda: None  # type: ignore[method-assign]  # nothing lets it go
        client = await connect()
        client.ask("Hold", b"abc")
        await until(lambda: methods.started == 1)
        stopping = asyncio.create_task(server.stop(0.1))
        assert literal(b"grpc-status", b"14") in await client.read_to_the_end()
        await asyncio.wait_for(stopping, LIMIT_S)
        assert methods.cancelled == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", ["answered", "cancelled", "gone"])
async def test_a_connection_leaves_nothing_for_the_garbage_collector(end: str) -> None:
    async with connected() as (methods, server, connect):
        with garbage() as left:
            for number in range(3):
                client = await connect()
                if end == "answered":
                    await client.answer(client.ask("Echo", b"abc", grpc_timeout="5S"))
                    await client.answer(client.ask("EchoAll", b"abc"))
                    await client.answer(client.ask("Nothing", b"abc"))
                else:
                    streams = [client.ask("Hold", b"abc"), client.ask("EchoAll", b"a", end=False)]
                    await until(lambda: methods.started == number + 1)  # noqa: B023
                    if end == "cancelled":
                        for stream in streams:
                            client.http2.reset_stream(stream)
                        client.send()
                        await until(lambda: methods.cancelled == number + 1)  # noqa: B023
                client.writer.transport.abort()
                await until(lambda: not server.connections)
        assert left == []
