"""ASGI applications on farm's own HTTP connection, and functions that these applications share.

ASGI serves only streams and requests that are not urgent; handlers serve the protocols' calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.bodies.body import Body
from farm.bodies.unpacking import Headers
from farm.call import CancelCall, Hints
from farm.errors import INTERNAL_ERROR
from farm.http1.request import JSON, ErrorForm, Request, hints_of, json_error

if TYPE_CHECKING:
    from farm.http1.exchange import Exchange

logger = logging.getLogger(__name__)

T = TypeVar("T")

USER = "farm.user"
"""Key in the ASGI scope: the name in the client's Basic credentials, or ""."""

IS_OWNERS = "farm.is_owners"
"""Key in the ASGI scope: a function that returns whether the request comes from the owner."""

IS_OWNER_HERE = "farm.is_owner_here"
"""The same for the owner's programs on this machine only."""

END = "farm.end"
"""Key in the ASGI scope: `Request.end`."""

PATIENCE_S = 0.05
"""Seconds that a call runs before farm starts to watch whether its client disconnects."""


SLICE_BYTES = 256 * 1024
"""Bytes of an answer that are sent in one turn of the loop."""


class ClientGone(Exception):
    """The client closed its connection and no longer waits for the answer."""


def headers_of(scope: Scope) -> Headers:
    """Return the request's headers as a mapping; the last value of a repeated header wins."""
    return dict(scope["headers"])


def hints_in(scope: Scope) -> Hints:
    """Return the hints in the request's headers. Raises InvalidInput."""
    return hints_of(headers_of(scope), scope["client"][0], scope[USER], scope[END])


async def read_body(receive: Receive) -> Body:
    """Return the whole body; a long one is a HeldBody. Raises ClientGone if the client has left."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: Body = message["body"]
    return body


async def send_more(send: Send, body: bytes | memoryview) -> None:
    """Send a part of an answer. A long part is sent in slices, because each slice is copied."""
    left = memoryview(body)
    while left:
        part = bytes(left[:SLICE_BYTES])
        await send({"type": "http.response.body", "body": part, "more_body": True})
        left = left[SLICE_BYTES:]
        if left:
            await asyncio.sleep(0)


async def while_client_waits(work: Awaitable[T], receive: Receive) -> T:
    """Return the result of `work`. If the client disconnects, cancel `work` and raise ClientGone.

    The request's body must have been read. Short work costs a timer but no second task.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "a coroutine runs in a task"
    watching: list[asyncio.Task[None]] = []
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    timer = loop.call_later(PATIENCE_S, lambda: watching.append(loop.create_task(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
        raise ClientGone from None
    finally:
        timer.cancel()
        for watcher in watching:
            watcher.cancel()


async def answer_json(
    send: Send, status: int, body: bytes, *, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete JSON answer."""
    start = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*start, *headers]})
    await send({"type": "http.response.body", "body": body})


class Application:
    """Runs an ASGI application for an exchange: one whole request, in a task of its own."""

    def __init__(self, app: ASGIApp, error_form: ErrorForm = json_error) -> None:
        """error_form: of errors that arise outside the application."""
        self.error_form = error_form
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange, request: Request) -> CancelCall:
        """Start to answer. Return the function to call when the client has disconnected."""
        cycle = _Cycle(exchange, request)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(cycle, exchange, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return cycle.client_left

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel all answers; return the tasks that still have to end."""
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)

    async def _run(self, cycle: _Cycle, exchange: Exchange, request: Request) -> None:
        """Run the application; whatever it raises, the request is answered or cut off."""
        what = f"{request.method} {request.path[:80]}"
        kind, message = "InternalError", INTERNAL_ERROR
        status = 500
        try:
            await self._app(cycle.scope(), cycle.receive, cycle.send)
            if not exchange.answered:
                logger.error("%s: the application did not complete its answer", what)
        except asyncio.CancelledError:
            # The server shuts down. The client notices an answer that breaks off in the middle.
            logger.info("%s: answer broken off, as the farm shuts down", what)
            status, kind, message = 503, "Unavailable", "the farm shut down in the meantime"
        except Exception:
            # FastAPI has already answered with a 500.
            if not cycle.gone:
                logger.exception("answering %s", what)
        if cycle.begun:
            exchange.cut_off()
        else:
            exchange.fail(status, kind, message)


class _Cycle:
    """One request to an application and its answer, as ASGI messages.

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
        """The client has disconnected."""
        self.gone = True
        self._over.set()

    def scope(self) -> Scope:
        """Return the ASGI scope of the request."""
        exchange, request = self._exchange, self._request
        head = exchange.head
        raw_path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": None,
            "client": (request.peer, 0),
            END: request.end,
            "scheme": "http",
            "root_path": "",
            "headers": list(head.fields),
            "method": head.method,
            "path": request.path,
            "raw_path": raw_path,
            "query_string": query,
            USER: request.user,
            IS_OWNERS: lambda: exchange.is_owners,
            IS_OWNER_HERE: exchange.is_owner_here,
        }

    async def receive(self) -> Message:
        """Return the whole body first; afterwards wait until the connection or the answer ends."""
        if not self._read:
            self._read = True
            body, self._request = self._request.body, self._request._replace(body=b"")
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send the start of the answer, or a part of its body as soon as the client can take it."""
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
