"""A handler: a function that gets a whole request and answers it, at once or when its call ends.

A call needs no coroutine and no task: these, and a framework's routing and request objects, cost
several times as much per call as farm itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote

import httptools

from farm.bodies.unpacking import Extra, Headers
from farm.call import LONGEST_NAME, MAX_PRIORITY, CancelCall, Hints, Result, named
from farm.encoding.errors import error_body
from farm.errors import InvalidInput
from farm.http1.call_ids import NAMING, call_id_of, trace_parent_of

if TYPE_CHECKING:
    import asyncio

    from farm.bodies.body import Body
    from farm.http1.access import Access
    from farm.http1.asgi import Application


JSON = b"application/json"


class Request(NamedTuple):
    """A whole request. path: unquoted, except below /v2, where it is as sent, with its query.

    body: a HeldBody if it is long. peer: the client's host; user: its Basic name, or "".
    is_owner_here: whether the client is a program of the server's owner on this machine. end: the
    client's host, and the owner of its socket if that is known.
    """

    method: str
    path: str
    headers: Headers
    body: Body
    peer: str
    user: str
    is_owner_here: Callable[[], bool] = lambda: False
    end: str = ""

    def hints(self) -> Hints:
        """Return the hints in its headers. Raises InvalidInput."""
        if _HINTS.isdisjoint(self.headers):  # the usual case
            return named(self.user or self.peer, self.end)
        return hints_of(self.headers, self.peer, self.user, self.end)


class Answer(Protocol):
    """Sends the answer; has no effect once the client has disconnected."""

    def __call__(
        self, status: int, body: bytes | memoryview, headers: Extra = (), content_type: bytes = JSON
    ) -> None:
        """Send the complete answer; call it once."""


Handler = Callable[[Request, Answer], CancelCall | None]
"""Answers a request, now or later; returns the function that cancels it, or None.

A handler or an Application may have the attributes `error_form`, an ErrorForm, and `headers`, an
Extra: they give the form of every answer at its paths, also of the connection's own errors, which
no handler sees. A third one, `is_raw`, is an IsRaw.
"""

ErrorForm = Callable[[str, str], tuple[bytes, bytes]]
"""Returns body and content type of an error, from its kind and message; `json_error` if omitted."""


def json_error(kind: str, message: str) -> tuple[bytes, bytes]:
    """Return body and content type of an error in farm's own form."""
    return error_body(kind, message), JSON


IsRaw = Callable[[Headers], bool]
"""Whether a long body with these headers is raw numbers, which no reader process has to parse."""


class Routes(Protocol):
    """The access rules, and the handler of each path."""

    @property
    def access(self) -> Access:
        """The access rules."""

    @property
    def max_body_bytes(self) -> int:
        """Largest size of a body, in bytes."""

    @property
    def otherwise(self) -> Application:
        """The application that answers paths without a handler."""

    def handler(self, method: str, path: str) -> Handler | Application | None:
        """Return the handler or application at this path, if there is one."""

    def wait(self, method: str, path: str, go: Callable[[], None]) -> CancelCall | None:
        """Call `go` later if the request has to wait; None if it is answered now."""

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel the applications' answers; return the tasks that still have to end."""


HEADER_LINE = b"%b: %b\r\n"


class Destination(NamedTuple):
    """The handler of a request's path, and the form of all answers there.

    path: as the handler knows it; "" if the client has sent none. headers: lines of every answer.
    """

    path: str
    handler: Handler | Application
    error_form: ErrorForm
    headers: bytes

    @classmethod
    def at(cls, path: str, handler: Handler | Application) -> Destination:
        """Return the destination with the form that the handler gives."""
        headers: Extra = getattr(handler, "headers", ())
        lines = b"".join(map(HEADER_LINE.__mod__, headers))
        return cls(path, handler, getattr(handler, "error_form", json_error), lines)

    @classmethod
    def of(cls, method: str, target: bytes, front: Routes) -> Destination:
        """Return the destination of a request with this target."""
        path = target.decode("latin-1")
        handler = front.handler(method, path)
        if handler is None:
            # Not spelled as clients usually write it, or not served by a handler.
            try:
                written = httptools.parse_url(target).path or b""
            except httptools.HttpParserInvalidURLError:
                return cls.at("", front.otherwise)
            path = "/" + written.decode("latin-1").lstrip("/")
            handler = front.handler(method, path)
        if handler is None:
            path = "/" + unquote(path).lstrip("/")
            handler = front.handler(method, path)
        return cls.at(path, front.otherwise if handler is None else handler)


def hints_of(headers: Headers, peer: str, user: str, end: str = "") -> Hints:
    """Return the hints in the headers `Farm-Client`, `-Chain`, `-Priority` and `-Deadline`.

    The id of the call is that of its `X-Request-ID` or `traceparent`.

    A client without a name is identified by the HTTP user name, or else by its host; a port would
    differ for each call, because most clients open a new connection each time. Raises InvalidInput.
    """
    if not _HINTS.isdisjoint(headers):
        client = headers.get(b"farm-client", b"").decode("latin-1")[:LONGEST_NAME]
        priority, deadline = headers.get(b"farm-priority"), headers.get(b"farm-deadline")
        given = headers.get(b"farm-chain")
        chain = None if given is None else given.decode("latin-1")[:LONGEST_NAME]
        is_named, client = bool(client or chain), client or user or peer
        return Hints(
            client=client,
            priority=0 if priority is None else _priority(priority),
            deadline_s=None if deadline is None else _deadline(deadline),
            chain=chain,
            shown_as=(client, chain) if is_named else None,
            call_id=call_id_of(headers),
            trace_parent=trace_parent_of(headers),
            end=end,
        )
    return named(user or peer, end)


_HINTS = NAMING | {b"farm-client", b"farm-chain", b"farm-priority", b"farm-deadline"}


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


@lru_cache(maxsize=4096)
def header_value(text: str) -> bytes:
    """Return `text` as a header value: printable ASCII, with "?" for any other character."""
    return "".join(c if " " <= c <= "~" else "?" for c in text).encode()


def result_headers(result: Result) -> Extra:
    """Return the headers that farm adds: seconds in the model, seconds queued, and the worker.

    A call that had a copy has one more, and so has one that was answered from the record.
    """
    headers: Extra = (
        (b"farm-run-time", b"%.6f" % result.run_time_s),
        (b"farm-queue-time", b"%.6f" % result.queue_time_s),
        (b"farm-worker", header_value(result.worker)),
    )
    if result.copied:
        headers = (*headers, (b"farm-copied", b"true"))
    return headers + reused_header(result) if result.reused else headers


def reused_header(result: Result) -> Extra:
    """Return the header of an answer from the record, or from another call's run; else none."""
    return ((b"farm-reused", b"true"),) if result.reused else ()
