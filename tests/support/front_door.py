"""An HTTP server on a free port, with models in threads of this process behind it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any, TypeVar

import urllib3

from farm.bodies.readers import READS_HERE, Reads
from farm.descriptors import built_in
from farm.dispatcher.dispatcher import Dispatcher
from farm.http1.access import Access
from farm.http1.call_ids import Naming
from farm.http1.server import HttpServer
from farm.model import Model
from farm.monitoring.monitor import watch
from farm.monitoring.tracing import Tracing
from farm.protocols.interface import Site
from farm.server.doors import Router, checked_options, endpoints_of
from farm.server.doors import front_door as router_of
from farm.settings import Settings
from farm.transports.threads import LocalTransport
from tests.support.coroutines import loop_in_thread, wait_until
from tests.support.time_limits import scaled

T = TypeVar("T")
WAIT_S = scaled(20.0)


@dataclass
class Door:
    """The running farm: its address, and its parts for tests that inspect them."""

    address: tuple[str, int]
    dispatcher: Dispatcher
    server: HttpServer
    loop: asyncio.AbstractEventLoop
    connections: urllib3.PoolManager

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the farm's loop; return its value."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def snapshot(self) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return self.dispatcher.snapshot()

        return self.wait(look())

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> urllib3.BaseHTTPResponse:
        """Send a request over a kept connection; a body that is not bytes is sent as JSON."""
        sent: dict[str, Any] = {"body": body} if isinstance(body, bytes) else {"json": body}
        if body is None:
            sent = {}
        return self.connections.request(
            method, self.url + path, headers=headers, retries=False, timeout=WAIT_S, **sent
        )

    def connect(self) -> socket.socket:
        """Open a bare connection, for bytes that no HTTP client would send."""
        return socket.create_connection(self.address, timeout=WAIT_S)


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Return status and body of the next answer on a bare connection."""
    response = HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def router(dispatcher: Dispatcher, access: Access, settings: Settings, readers: Reads) -> Router:
    """The HTTP side of a dispatcher, with all protocols that come with farm."""
    site = Site(dispatcher, access, access, settings, readers=readers)
    served = endpoints_of(checked_options(built_in(), settings), site)
    return router_of(site, served.values())


@contextmanager
def front_door(
    models: Mapping[str, Model],
    *,
    workers: int = 1,
    token: str | None = None,
    settings: Settings | None = None,
    most_connections: int | None = None,
    readers: Reads = READS_HERE,
    tracing: Tracing | None = None,
) -> Iterator[Door]:
    """Run a farm with its HTTP server for the duration of the block."""
    settings = settings or Settings(port=0)

    async def start(loop: asyncio.AbstractEventLoop) -> Door:
        dispatcher = Dispatcher(
            [LocalTransport(models, workers=workers)], max_queued=settings.max_queued
        )
        watch(dispatcher, tracing)
        dispatcher.start()
        await dispatcher.wait_for_workers(workers, timeout_s=WAIT_S)
        server = HttpServer(
            router(dispatcher, Access(token), settings, readers),
            most_connections=most_connections,
            naming=Naming(tracing=tracing),
        )
        address = await server.start(settings.host, settings.port, unix=settings.unix)
        dispatcher.add_part("http", server.traffic.shown)
        return Door(address, dispatcher, server, loop, urllib3.PoolManager(maxsize=8))

    async def stop(door: Door) -> None:
        await door.server.stop(grace_s=0.5)
        await door.dispatcher.close(grace_s=0.5)

    with loop_in_thread() as loop:
        door = asyncio.run_coroutine_threadsafe(start(loop), loop).result(WAIT_S)
        try:
            yield door
        finally:
            door.connections.clear()
            door.wait(stop(door))


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, `WAIT_S` seconds at most."""
    wait_until(condition, WAIT_S, what=what)
