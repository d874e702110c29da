"""ASGI applications on farm's own HTTP connection, and what these applications share.

Only what streams or is not in a hurry is ASGI; the protocols' calls go to doors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.protocols.umbridge import error_body
from farm.server.body import Body
from farm.server.door import INTERNAL_ERROR, JSON, Headers, Request, TakeBack

if TYPE_CHECKING:
    from farm.server.exchange import Exchange

logger = logging.getLogger(__name__)

T = TypeVar("T")

USER = "farm.user"
"""Key of the scope: the name that a client gave with its Basic credentials, or ""."""

PATIENCE_S = 0.05
"""How long a call may take before anybody looks whether its client is still there."""


SLICE_BYTES = 256 * 1024
"""How much of an answer is sent in one turn of the loop."""


class ClientGone(Exception):
    """The client closed its connection; nobody waits for an answer."""


def headers_of(scope: Scope) -> Headers:
    """The request's headers as a mapping; of a repeated one the last counts."""
    return dict(scope["headers"])


def peer_of(scope: Scope) -> str:
    """The host that the request comes from, or ""."""
    return str(scope["client"][0])


async def read_body(receive: Receive) -> Body:
    """The whole body; a long one is held. Raises ClientGone when the connection has ended."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: Body = message["body"]
    return body


async def send_more(send: Send, body: bytes | memoryview) -> None:
    """Send a part of an answer; a long one in slices, as each is copied on the way."""
    left = memoryview(body)
    while left:
        part = bytes(left[:SLICE_BYTES])
        await send({"type": "http.response.body", "body": part, "more_body": True})
        left = left[SLICE_BYTES:]
        if left:
            await asyncio.sleep(0)


class _Watch:
    """Cancels a task when the client hangs up; owns the task that waits for that."""

    def __init__(self, receive: Receive, watched: asyncio.Task[Any]) -> None:
        self.client_left = False
        self._receive = receive
        self._watched = watched
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._waiting = asyncio.get_running_loop().create_task(self._wait())

    def stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_left = True
        self._watched.cancel()


async def while_client_waits(work: Awaitable[T], receive: Receive) -> T:
    """What `work` gives; it is cancelled, and ClientGone raised, when the client hangs up.

    The request's body must have been read. Short work costs a timer and no second task.
    """
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    watch = _Watch(receive, task)
    timer = asyncio.get_running_loop().call_later(PATIENCE_S, watch.start)
    try:
        return await work
    except asyncio.CancelledError:
        if not watch.client_left:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        timer.cancel()
        watch.stop()


async def answer_json(
    send: Send, status: int, body: bytes, *, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole JSON answer."""
    start = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*start, *headers]})
    await send({"type": "http.response.body", "body": body})


class Application:
    """An ASGI application as an exchange asks it: with the whole request, in a task of its own."""

    def __init__(self, app: ASGIApp, error_body: Callable[[str, str], bytes] = error_body) -> None:
        """error_body: writes the bodies of errors from outside the application."""
        self.error_body = error_body
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange, request: Request) -> TakeBack:
        """Begin to answer; gives what is called when the client has left."""
        cycle = _Cycle(exchange, request)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(cycle, exchange, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return cycle.client_left

    def cancel(self) -> set[asyncio.Task[None]]:
        """Have every answer end soon; gives the tasks that do it."""
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)

    async def _run(self, cycle: _Cycle, exchange: Exchange, request: Request) -> None:
        """Have the application answer; whatever goes wrong with it, the request has an end."""
        what = f"{request.method} {request.path[:80]}"
        kind, message = "InternalError", INTERNAL_ERROR
        status = 500
        try:
            await self._app(cycle.scope(), cycle.receive, cycle.send)
            if not exchange.answered:
                logger.error("%s: the application gave no whole answer", what)
        except asyncio.CancelledError:
            # The server shuts down; an answer that has begun ends in the middle, which is seen.
            logger.info("%s is cut off", what)
            status, kind, message = 503, "Unavailable", "the farm shut down in the meantime"
        except Exception:
            # FastAPI has answered with a 500 already.
            if not cycle.gone:
                logger.exception("answering %s", what)
        if cycle.begun:
            exchange.cut_off()
        else:
            exchange.answer(status, self.error_body(kind, message))


class _Cycle:
    """One request to an application and its answer, in ASGI's messages.

    Source: ASGI specification 3.0, HTTP 2.3.
    """

    def __init__(self, exchange: Exchange, request: Request) -> None:
        self.begun = False
        self.gone = False
        self._exchange = exchange
        self._request = request
        self._read = False
        self._over = asyncio.Event()

    def client_left(self) -> None:
        """The client is not there any more."""
        self.gone = True
        self._over.set()

    def scope(self) -> Scope:
        """What the application is told of the request."""
        exchange, request = self._exchange, self._request
        head = exchange.head
        raw_path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": None,
            "client": (request.peer, 0),
            "scheme": "http",
            "root_path": "",
            "headers": head.fields,
            "method": head.method,
            "path": request.path,
            "raw_path": raw_path,
            "query_string": query,
            USER: request.user,
        }

    async def receive(self) -> Message:
        """The whole body, and then the end of the connection or of the answer."""
        if not self._read:
            self._read = True
            body, self._request = self._request.body, self._request._replace(body=b"")
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send the start of the answer or a part of its body, once the client takes it."""
        exchange = self._exchange
        if message["type"] == "http.response.start":
            self.begun = True
            exchange.begin_answer(message["status"], list(message.get("headers", ())))
            return
        exchange.write(message.get("body", b""))
        if not message.get("more_body", False):
            exchange.end_answer()
            self._over.set()
        else:
            await exchange.drained()
