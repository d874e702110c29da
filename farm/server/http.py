"""The HTTP server: doors and an ASGI application on one port, in a loop that somebody else runs.

uvicorn has the connections. A request whose path has a door is an `Exchange`, any other is ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from farm.machine.peer import Peer
from farm.protocols.umbridge import error_body
from farm.server.asgi import PEER
from farm.server.exchange import Exchange
from farm.server.listener import BACKLOG, listen, listen_unix
from farm.worker.open_files import allow_many_open_files

if TYPE_CHECKING:
    from farm.server.app import FrontDoor
    from farm.server.door import Door

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""How long an idle connection stays: longer than clients keep theirs, so that it is they who close
it and none sends into a connection that is being closed."""

SENT_AHEAD = 16
"""Requests that a client may send before their turn; more are left in the network, and with them
the news that it hung up."""

BYTES_AHEAD = 64 * 1024
"""The same for the body of such a request: nobody fills the memory with what waits for its turn."""

LAST_WORDS_S = 1.0
"""How long answers on their way may take once everything else has ended."""


class HttpServer:
    """A front door on a port: `start` listens, `stop` ends in order.

    Signals are left alone, they belong to the program around it.
    """

    def __init__(
        self,
        front: FrontDoor,
        *,
        host: str = "127.0.0.1",
        port: int = 4242,
        unix: Path | None = None,
    ) -> None:
        """port: 0 picks a free one; unix: the path of a socket that is served too."""
        self._front = front
        self._host = host
        self._port = port
        self._unix = unix
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; gives the address. Raises Unavailable when it cannot be had."""
        allow_many_open_files()
        listener = listen(self._host, self._port)
        try:
            local = None if self._unix is None else listen_unix(str(self._unix))
        except BaseException:
            listener.close()
            raise
        config = uvicorn.Config(
            self._front,
            http=partial(Connection, self._front),  # type: ignore[arg-type]  # makes one, as a class does
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # who forwards is nobody to believe
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG,
        )
        self._server = server = _Server(config, local)
        self._serving = asyncio.create_task(server.serve(sockets=[listener]), name="http server")
        ready = asyncio.create_task(server.ready.wait())
        await asyncio.wait((ready, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await self._serving  # raises what went wrong
        host, port = listener.getsockname()[:2]
        return str(host), int(port)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop listening, let requests that run end within `grace_s` seconds, close the rest.

        Calls that do not end in time are answered with Unavailable.
        """
        server, serving = self._server, self._serving
        if server is None or serving is None:
            return
        server.config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]  # a float will do
        server.should_exit = True
        with _without("Cancel %s running task"):  # a forced end is what was asked for
            await serving
        state = server.server_state
        ending: list[asyncio.Future[None]] = [*state.tasks]
        for connection in list(state.connections):
            assert isinstance(connection, Connection), "as start says"
            ending.append(connection.give_up())
        if ending:
            await asyncio.wait(ending, timeout=LAST_WORDS_S)
        for connection in list(state.connections):
            connection.transport.abort()
        self._server = self._serving = None
        if self._unix is not None:
            self._unix.unlink(missing_ok=True)


@contextlib.contextmanager
def _without(message: str) -> Iterator[None]:
    """Keep a message of uvicorn's that begins like this from the user."""

    def is_other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(message)

    uvicorns = logging.getLogger("uvicorn.error")
    uvicorns.addFilter(is_other)
    try:
        yield
    finally:
        uvicorns.removeFilter(is_other)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and with an event instead of a flag.

    local: a listening Unix socket that it serves too.
    """

    def __init__(self, config: uvicorn.Config, local: socket.socket | None) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._local = local

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._local is not None:
            self.servers.append(
                await asyncio.get_running_loop().create_unix_server(
                    self._connection, sock=self._local, backlog=BACKLOG
                )
            )
        self.ready.set()

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]  # ours takes them
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with doors beside its application, and our form for its own error."""

    # A cycle is one of uvicorn's, for the application, or an Exchange.
    cycle: Any
    pipeline: deque[tuple[Any, Any]]

    def __init__(self, front: FrontDoor, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.peer = Peer("")
        self._front = front
        self._open: Exchange | None = None  # begun, and perhaps answered
        self._gone: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrower, as uvicorn's
        """A client is there."""
        super().connection_made(transport)
        self.peer = self._front.access.peer(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._open is not None:
            self._open.client_left()
        if isinstance(self.cycle, Exchange):
            self.cycle = None
        super().connection_lost(exc)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def on_headers_complete(self) -> None:
        """A request begins: for a door, or else for the application."""
        path, door = self._door()
        if door is None:
            self.scope[PEER] = self.peer  # type: ignore[literal-required]  # a key of farm's own
            super().on_headers_complete()
            return
        before = self.cycle
        self.cycle = exchange = Exchange(
            self,
            door,
            self.parser.get_method().decode("ascii"),
            path,
            dict(self.headers),
            limit=self._front.max_body_bytes,
            keep_alive=self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive(),
            wants_to_be_asked=self.expect_100_continue,
        )
        if before is None or before.response_complete:
            self._begin(exchange)
        else:  # sent ahead
            if len(self.pipeline) >= SENT_AHEAD:
                self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _door(self) -> tuple[str, Door | None]:
        """The path as its door knows it, and the door; None: it is for the application."""
        path = self.url.decode("latin-1")
        door = self._front.door(path)
        if door is None:
            # Not in the letters in which clients write it, or not for a door.
            path = "/" + (httptools.parse_url(self.url).path or b"").decode("ascii").lstrip("/")
            door = self._front.door(path)
        if door is None:
            path = "/" + unquote(path).lstrip("/")
            door = self._front.door(path)
        return path, door

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, Exchange):
            self._begin(cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def _begin(self, exchange: Exchange) -> None:
        self._open = exchange
        exchange.begin(self._front.access)

    def on_body(self, body: bytes) -> None:
        """Part of a body, perhaps of a request that is answered already."""
        if not isinstance(self.cycle, Exchange):
            super().on_body(body)
        elif not self.cycle.response_complete:
            self.cycle.add(body)
            if self.cycle.is_ahead_by(BYTES_AHEAD):
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The end of a request, perhaps of one that is answered already."""
        if not isinstance(self.cycle, Exchange):
            super().on_message_complete()
        elif not self.cycle.response_complete:
            self.cycle.complete()

    def give_up(self) -> asyncio.Future[None]:
        """Answer what is open with Unavailable: the server ends. Done when the client is gone."""
        self._gone = self.loop.create_future()
        if self._open is not None:
            self._open.give_up()
        return self._gone

    def send_400_response(self, msg: str) -> None:
        body = error_body("InvalidInput", "these bytes are no HTTP/1.1 request")
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
