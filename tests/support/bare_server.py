"""An HTTP server with test endpoints and a test application, without a farm behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.types import ASGIApp

from farm.http1.access import Access
from farm.http1.connections import Connections
from farm.http1.request import Handler
from farm.http1.server import HttpServer
from farm.protocols.interface import Endpoints
from farm.server.doors import Router
from tests.support.coroutines import loop_in_thread
from tests.support.front_door import WAIT_S

LIMIT = 1000
"""Bytes of a body."""


async def path_told(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with the path of the request."""
    body = scope["path"].encode()
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


class Server:
    """A running server, with its loop in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, http: HttpServer) -> None:
        self.loop = loop
        self.http = http
        self.address = self.wait(http.start())

    def wait(self, work: Any) -> Any:
        """Run a coroutine on the server's loop; return its value."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the server's loop; return its value."""

        async def there() -> Any:
            return function(*arguments)

        return self.wait(there())

    @property
    def connections(self) -> Connections:
        """The open connections."""
        assert self.http.connections is not None
        return self.http.connections

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(self.address, timeout=WAIT_S)

    def ask(self, *requests: bytes) -> bytes:
        """Return everything received; the last request closes the connection."""
        with self.connect() as connection:
            for request in requests:
                connection.sendall(request)
            return rest_of(connection)


def rest_of(connection: socket.socket) -> bytes:
    """Return everything received until the server closes or resets."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(10**5):
            received += part
    return received


@contextmanager
def serving(
    doors: Mapping[str, Handler] = {},
    application: ASGIApp = path_told,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Iterator[Server]:
    """Run a server for the duration of the block. doors: by their paths; options: of HttpServer."""
    front = Router(Endpoints(doors, otherwise=application), Access(None), max_body_bytes=limit)
    with loop_in_thread() as loop:
        server = Server(loop, HttpServer(front, **options))
        try:
            yield server
        finally:
            server.wait(server.http.stop(0.1))


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    """A request."""
    head = "".join(f"{line}\r\n" for line in (f"Content-Length: {len(body)}", *headers))
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode() + body
