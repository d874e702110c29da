"""What all front doors share: the farm behind them, reading a request, answering, and noticing
that the client hung up.

Doors are plain ASGI functions: a framework's routing and request objects cost several times what
farm itself costs a call.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Awaitable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from farm.call import Call, Hints, ModelInfo, Result
from farm.errors import InvalidInput
from farm.protocols.umbridge import error_body

T = TypeVar("T")
Headers = dict[bytes, bytes]
"""Request headers, names in lower case."""

USER = "farm.user"
"""Key of the scope: the name that a client gave with its Basic credentials, or ""."""

INTERNAL_ERROR = "the farm made a mistake; its log says which"

PATIENCE_S = 0.05
"""How long a call may take before anybody looks whether its client is still there."""

MAX_PRIORITY = 1000
LONGEST_CLIENT_NAME = 100


class Backend(Protocol):
    """What the doors need of whatever runs calls: the dispatcher, as a rule."""

    async def submit(self, call: Call, hints: Hints = ...) -> Result:
        """The call's result; raises FarmError. Cancelling takes the call back if it still waits."""

    async def describe(self, model: str, config: str = ...) -> ModelInfo:
        """What the model says of itself for a config. Raises FarmError."""

    def models(self) -> Mapping[str, ModelInfo]:
        """The models that are served, described for the empty config."""

    def snapshot(self) -> dict[str, Any]:
        """Workers, queues, rates and percentiles as JSON data."""


class ClientGone(Exception):
    """The client closed its connection; nobody waits for an answer."""


class Refused(Exception):
    """A request is turned away before anybody asks what it means.

    kind: the `type` of the error body; headers: sent along with the answer.
    """

    def __init__(
        self, status: int, kind: str, message: str, *, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = tuple(headers)


def headers_of(scope: Scope) -> Headers:
    """The request's headers as a mapping; of a repeated one the last counts."""
    return dict(scope["headers"])


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """The whole body, unpacked when it came compressed.

    Raises Refused above `limit` bytes, before reading where the length is announced, and
    ClientGone when the connection ends first.
    """
    if int(headers.get(b"content-length", 0)) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    body = b"".join(parts)
    encoding = headers.get(b"content-encoding")
    return body if encoding is None else _unpacked(body, encoding.lower(), limit)


def _too_large(limit: int) -> Refused:
    return Refused(413, "TooLarge", f"the body is longer than {limit} bytes, the limit here")


def _unpacked(body: bytes, encoding: bytes, limit: int) -> bytes:
    if encoding == b"identity":
        return body
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        shown = encoding.decode("ascii", "replace")
        message = f"Content-Encoding {shown!r} is not understood here; gzip and deflate are"
        raise Refused(415, "UnsupportedEncoding", message)
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: look whether gzip or zlib
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise Refused(400, "InvalidInput", f"the body is not {encoding!r}: {error}") from None
    if len(unpacked) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise Refused(400, "InvalidInput", "the compressed body is cut short or has a tail")
    return unpacked


def hints_of(scope: Scope, headers: Headers) -> Hints:
    """What the request says of itself in `Farm-Client`, `Farm-Priority` and `Farm-Deadline`.

    Who gives no name is known by the HTTP user name or else by the host: a port would be another
    one for each call, as most clients connect anew each time. Raises InvalidInput.
    """
    client = headers.get(b"farm-client", b"").decode("latin-1")[:LONGEST_CLIENT_NAME]
    peer = scope.get("client")
    priority, deadline = headers.get(b"farm-priority"), headers.get(b"farm-deadline")
    return Hints(
        client=client or scope.get(USER) or (peer[0] if peer else ""),
        priority=0 if priority is None else _priority(priority),
        deadline_s=None if deadline is None else _deadline(deadline),
    )


def _priority(text: bytes) -> int:
    try:
        value = int(text)
    except ValueError:
        value = MAX_PRIORITY + 1
    if abs(value) > MAX_PRIORITY:
        raise InvalidInput(
            f"Farm-Priority is {text[:20].decode('latin-1')!r}; "
            f"expected a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    return value


def _deadline(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InvalidInput(
            f"Farm-Deadline is {text[:20].decode('latin-1')!r}; expected seconds above 0"
        )
    return value


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
    start = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*start, *headers]})
    await send({"type": "http.response.body", "body": body})


async def answer_refused(send: Send, refused: Refused) -> None:
    """Send the answer to a refused request."""
    body = error_body(refused.kind, refused.message)
    await answer_json(send, refused.status, body, headers=refused.headers)


@lru_cache(maxsize=4096)
def header_value(text: str) -> bytes:
    """`text` as the value of a header: printable ASCII, anything else as a question mark."""
    return "".join(c if " " <= c <= "~" else "?" for c in text).encode()
