"""The functions that ASGI applications share, fed with messages: bodies, disconnecting clients."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from http.client import HTTPResponse, IncompleteRead
from typing import Any

import pytest
from starlette.types import Receive as Receives
from starlette.types import Scope, Send

from farm.errors import InvalidInput
from farm.http1.asgi import PATIENCE_S, ClientGone, read_body, while_client_waits
from farm.http1.connections import Stage
from tests.support.bare_server import serving
from tests.support.front_door import WAIT_S, until

Receive = Callable[[], Awaitable[dict[str, Any]]]
GONE = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def messages(*sent: dict[str, Any]) -> Receive:
    """Return a `receive` that returns these messages and then blocks for ever."""
    waiting = list(sent)

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.get_running_loop().create_future()
        return waiting.pop(0)

    return receive


def test_a_body_is_read_or_its_client_is_gone() -> None:
    assert asyncio.run(read_body(messages(part(b"abc", more=False)))) == b"abc"
    with pytest.raises(ClientGone):
        asyncio.run(read_body(messages(GONE)))


def test_work_that_ends_gives_its_value_or_its_error() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    async def fail() -> int:
        await asyncio.sleep(2 * PATIENCE_S)
        raise InvalidInput("no")

    assert asyncio.run(while_client_waits(work(), messages())) == 3
    with pytest.raises(InvalidInput):
        asyncio.run(while_client_waits(fail(), messages()))


def test_work_stops_when_the_client_hangs_up() -> None:
    stopped = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            stopped.append(True)
            raise

    async def serve() -> int:
        with pytest.raises(ClientGone):
            await while_client_waits(work(), messages(part(b"", more=False), GONE))
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(serve()) == 0  # the task continues as if it had never been cancelled
    assert stopped == [True]


def test_a_cancellation_from_elsewhere_stays_one() -> None:
    async def serve() -> None:
        forever = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(_wait(forever))
        await asyncio.sleep(2 * PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def _wait(forever: asyncio.Future[None]) -> None:
        await while_client_waits(forever, messages())

    asyncio.run(serve())


def test_short_work_makes_no_second_task_and_long_work_leaves_none() -> None:
    counts = []

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        counts.append(len(asyncio.all_tasks()))

    async def serve() -> int:
        await while_client_waits(work(0), messages())
        await while_client_waits(work(2 * PATIENCE_S), messages())
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    assert asyncio.run(serve()) == 1
    assert counts == [1, 2]


def test_long_work_leaves_no_cycle() -> None:
    """The front door seldom searches for garbage cycles, and not at all among many objects."""

    class Receiving:
        async def __call__(self) -> dict[str, Any]:
            await asyncio.get_running_loop().create_future()
            return GONE

    async def serve() -> None:
        receive = Receiving()
        left = weakref.ref(receive)
        await while_client_waits(asyncio.sleep(2 * PATIENCE_S), receive)
        del receive
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert left() is None

    gc.disable()
    try:
        asyncio.run(serve())
    finally:
        gc.enable()


async def echo(scope: Scope, receive: Receives, send: Send) -> None:
    """Answers with the scope and the body, in two parts of unknown length."""
    body = await read_body(receive)
    shown = {k: v for k, v in scope.items() if isinstance(v, str)}
    start: dict[str, Any] = {"type": "http.response.start", "status": 200}
    await send({**start, "headers": [(b"x-shown", json.dumps(shown).encode())]})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"!", "more_body": False})


def test_an_application_is_told_of_the_request_and_streams_its_answer() -> None:
    with serving({}, echo) as server:
        ask = b"PUT //a%20b/c?d=%20e HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        with server.connect() as connection:
            for _ in range(2):  # the connection stays open
                connection.sendall(ask)
                response = HTTPResponse(connection)
                response.begin()
                assert response.headers["transfer-encoding"] == "chunked"
                shown = json.loads(response.headers["x-shown"])
                assert response.read() == b"abc!"
        assert shown == {
            "type": "http",
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
            "method": "PUT",
            "path": "/a b/c",
            "farm.user": "",
            "farm.end": f"127.0.0.1 (uid {os.geteuid()})",
        }


def test_a_stream_to_an_old_client_ends_with_the_connection() -> None:
    with serving({}, echo) as server:
        received = server.ask(b"POST /x HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
        assert b"transfer-encoding" not in received
        assert received.endswith(b"connection: close\r\n\r\nabc!")


def test_a_head_is_answered_without_a_body() -> None:
    with serving({}, echo) as server:
        received = server.ask(b"HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert received.endswith(b"connection: close\r\n\r\n")
        assert b"transfer-encoding" not in received


async def fails(scope: Scope, receive: Receives, send: Send) -> None:
    if scope["path"] == "/late":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    if scope["path"] == "/silent":
        return
    raise ZeroDivisionError("secret")


@pytest.mark.parametrize("path", ["/early", "/silent"])
def test_an_application_that_fails_is_answered_for(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving({}, fails) as server:
        received = server.ask(
            f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        )
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b'"type":"InternalError"' in received
    assert b"secret" not in received
    assert path in caplog.text


def test_an_answer_that_fails_on_the_way_is_cut_off() -> None:
    with serving({}, fails) as server, server.connect() as connection:
        connection.sendall(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n")
        response = HTTPResponse(connection)
        response.begin()
        with pytest.raises((IncompleteRead, ConnectionResetError)):
            response.read()


def test_a_slow_reader_slows_the_stream_down() -> None:
    sent = 0

    async def endless(scope: Scope, receive: Receives, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while sent < 1 << 30:
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            sent += 1 << 16

    with serving({}, endless) as server:
        with server.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            (one,) = server.call(list, server.connections)
            until(lambda: one.standing()[0] is Stage.STUCK, "the client takes no more")
            stuck = server.call(lambda: sent)
            assert stuck < 64 << 20  # as much as the buffers of both ends hold
        until(lambda: len(server.connections) == 0, "who hangs up ends the stream")


def test_an_application_hears_when_the_client_hangs_up() -> None:
    asked, heard = threading.Event(), threading.Event()

    async def waits(scope: Scope, receive: Receives, send: Send) -> None:
        await read_body(receive)
        asked.set()
        if (await receive())["type"] == "http.disconnect":
            heard.set()

    with serving({}, waits) as server:
        with server.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert asked.wait(WAIT_S)
        assert heard.wait(WAIT_S)
