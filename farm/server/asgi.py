"""What the ASGI side shares: reading a request, answering, and noticing that the client hung up.

Only what streams or is not in a hurry is ASGI; the protocols' calls go through an `Exchange`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from farm.machine.peer import Peer
from farm.protocols.umbridge import error_body
from farm.server.door import JSON, Headers, Refused, too_large, unpacked

T = TypeVar("T")

PEER = "farm.peer"
"""Key of the scope: the connection's other end, a `farm.machine.peer.Peer`."""

USER = "farm.user"
"""Key of the scope: the name that a client gave with its Basic credentials, or ""."""

PATIENCE_S = 0.05
"""How long a call may take before anybody looks whether its client is still there."""


class ClientGone(Exception):
    """The client closed its connection; nobody waits for an answer."""


def headers_of(scope: Scope) -> Headers:
    """The request's headers as a mapping; of a repeated one the last counts."""
    return dict(scope["headers"])


def peer_of(scope: Scope) -> str:
    """The host that the request comes from, or ""."""
    peer: Peer = scope[PEER]
    return peer.host


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """The whole body, unpacked when it came compressed.

    Raises Refused above `limit` bytes, before reading where the length is announced, and
    ClientGone when the connection ends first.
    """
    if int(headers.get(b"content-length", 0)) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
        more = message.get("more_body", False)
    return unpacked(b"".join(parts), headers, limit)


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


async def answer_refused(send: Send, refused: Refused) -> None:
    """Send the answer to a refused request."""
    body = error_body(refused.kind, refused.message)
    await answer_json(send, refused.status, body, headers=refused.headers)
