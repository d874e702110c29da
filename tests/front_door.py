"""A front door on a free port, with models in threads of this process behind it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any, TypeVar

import urllib3
import uvloop

from farm.dispatcher import Dispatcher
from farm.model import Model
from farm.server.access import Access
from farm.server.app import create_app
from farm.server.http import HttpServer
from farm.settings import Settings
from farm.transports.local import LocalTransport
from tests.patience import scaled

T = TypeVar("T")
WAIT_S = scaled(20.0)


@dataclass
class Door:
    """What runs: its address, and its parts for a test that looks inside."""

    address: tuple[str, int]
    dispatcher: Dispatcher
    server: HttpServer
    loop: asyncio.AbstractEventLoop
    connections: urllib3.PoolManager

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's value; it runs on the farm's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    def snapshot(self) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return self.dispatcher.snapshot()

        return self.wait(look())

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> urllib3.BaseHTTPResponse:
        """One request over a kept connection; a body that is no bytes is sent as JSON."""
        sent: dict[str, Any] = {"body": body} if isinstance(body, bytes) else {"json": body}
        if body is None:
            sent = {}
        return self.connections.request(
            method, self.url + path, headers=headers, retries=False, timeout=WAIT_S, **sent
        )

    def connect(self) -> socket.socket:
        """A bare connection, for what no HTTP client would send."""
        return socket.create_connection(self.address, timeout=WAIT_S)


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer on a bare connection."""
    response = HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


@contextmanager
def front_door(
    models: Mapping[str, Model],
    *,
    workers: int = 1,
    token: str | None = None,
    settings: Settings | None = None,
    most_connections: int | None = None,
    **app: Any,
) -> Iterator[Door]:
    """A farm with its HTTP door, up for the length of the block."""
    settings = settings or Settings(port=0)
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> Door:
        dispatcher = Dispatcher(
            [LocalTransport(models, workers=workers)], max_queued=settings.max_queued
        )
        dispatcher.start()
        await dispatcher.wait_for_workers(workers, timeout_s=WAIT_S)
        server = HttpServer(
            create_app(dispatcher, access=Access(token), settings=settings, **app),
            host=settings.host,
            port=settings.port,
            unix=settings.unix,
            most_connections=most_connections,
        )
        address = await server.start()
        return Door(address, dispatcher, server, loop, urllib3.PoolManager(maxsize=8))

    async def stop(door: Door) -> None:
        await door.server.stop(grace_s=0.5)
        await door.dispatcher.close(grace_s=0.5)

    door = None
    try:
        door = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_S)
        yield door
    finally:
        if door is not None:
            door.connections.clear()
            door.wait(stop(door))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, `WAIT_S` seconds at most."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, f"never came true: {what}"
        time.sleep(0.005)
