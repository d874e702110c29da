"""Serves an ASGI application on one port, inside an event loop that somebody else runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from farm.errors import Unavailable
from farm.protocols.umbridge import error_body

logger = logging.getLogger(__name__)

BACKLOG = 2048
"""Most clients connect anew for every call, so that connections come in bursts."""

KEEP_ALIVE_S = 75
"""How long an idle connection stays: longer than clients keep theirs, so that it is they who close
it and none sends into a connection that is being closed."""

PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that vanished is noticed within two minutes, and no router forgets a long run."""

OPEN_FILES = 65_536
"""Open connections that are asked for, as far as the machine allows."""

LAST_WORDS_S = 1.0
"""How long answers on their way may take once everything else has ended."""


class HttpServer:
    """An application on a port: `start` listens, `stop` ends in order.

    Signals are left alone, they belong to the program around it.
    """

    def __init__(self, app: ASGIApp, *, host: str = "127.0.0.1", port: int = 4242) -> None:
        """port: 0 picks a free one."""
        self._app = app
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; gives the address. Raises Unavailable when it cannot be had."""
        allow_many_open_files()
        listener = listen(self._host, self._port)
        config = uvicorn.Config(
            self._app,
            http=_Connection,
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
        self._server = server = _Server(config)
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
        await serving
        tasks = list(server.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        self._server = self._serving = None


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and with an event instead of a flag."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class _WholeAnswers:
    """A transport that keeps the head of an answer back until its body comes, which is at once.

    uvicorn writes them one after the other; together they cost one system call and the client one
    read. An answer without a stated length may take its time, so its head leaves alone.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        """Send, or keep a head that states the length of its body."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif data.startswith(b"HTTP/1.1 ") and b"\r\ncontent-length: " in data:
            self._head = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head that no body follows, as in the answer to HEAD."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Send what is left and close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, whose answers leave whole and whose own error has our errors' form."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # narrower, as uvicorn's
        super().connection_made(_WholeAnswers(transport))  # type: ignore[arg-type]  # it quacks

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # ours, see connection_made
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        body = error_body("InvalidInput", "these bytes are no HTTP/1.1 request")
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket whose connections are probed when silent. Raises Unavailable."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit these from the socket that accepts them.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in PROBES.items():
                if hasattr(socket, option):
                    listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unavailable(
            f"cannot listen on {host}:{port}: {reason}; --port 0 picks a free one"
        ) from None
    return listener


def allow_many_open_files() -> None:
    """Raise this process's limit of open files towards `OPEN_FILES`, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
