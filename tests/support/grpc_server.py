"""A gRPC server with methods of each kind, and a client of the package h2 on a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import h2.config
import h2.connection
import h2.events

from farm.bodies.body import Body
from farm.errors import FarmError, Overloaded
from farm.grpc.call import Caller, Requests, Service, Write
from farm.grpc.server import GrpcServer, Tls
from farm.http1.access import Access
from tests.support.body_bytes import bytes_of
from tests.support.coroutines import LIMIT_S
from tests.support.http2_bytes import REQUEST, framed

S = TypeVar("S", bound=Service)


class Methods(Service):
    """Methods of each kind, which record their callers and how far they came."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.started = self.cancelled = 0
        self.held = asyncio.Event()
        self.unary = {"/x/Echo": self.echo, "/x/Hold": self.hold, "/x/Fail": self.fail}
        self.server_streams = {"/x/Count": self.count, "/x/Flood": self.flood}
        self.bidirectional = {"/x/EchoAll": self.echo_all}

    def end_streams(self) -> None:
        self.held.set()

    async def echo(self, body: Body, caller: Caller) -> bytes:
        self.callers.append(caller)
        return bytes_of(body)

    async def fail(self, body: Body, caller: Caller) -> bytes:
        kind = bytes_of(body).decode()
        if kind in FarmError.kinds:
            raise FarmError.kinds[kind]("no \ud800 ü")
        raise ValueError("a mistake")

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

    async def count(self, body: Body, write: Write, caller: Caller) -> None:
        for i in range(int(bytes_of(body))):
            await write(b"%d" % i)
        if body == b"2":
            raise Overloaded("enough")

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
async def served(
    service: S, token: str | None = None, tls: Tls | None = None, **options: Any
) -> AsyncIterator[tuple[S, GrpcServer, int]]:
    """Serve the methods; yield them, the server and its port."""
    server = GrpcServer(service, Access(token), **options)
    _, port = await server.start(tls=tls)
    try:
        yield service, server, port
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def connected(
    **options: Any,
) -> AsyncIterator[tuple[Methods, GrpcServer, Callable[[], Awaitable[Client]]]]:
    """Serve `Methods`; yield them, the server, and a function that connects a client."""
    clients: list[Client] = []
    async with served(Methods(), **options) as (methods, server, port):

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
            return clients[-1]

        try:
            yield methods, server, connect
        finally:
            for client in clients:
                client.writer.close()
