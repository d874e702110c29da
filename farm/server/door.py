"""What a front door is: it gets a whole request and answers it, now or when its call is done.

No coroutine and no task belongs to a call: these, and a framework's routing and request objects,
cost several times what farm itself costs a call.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.errors import FarmError, InvalidInput
from farm.scheduler.parts import Rows
from farm.scheduler.state import TaskId
from farm.scheduler.statistics import ModelStatistics

if TYPE_CHECKING:
    from farm.server.body import Body

Headers = dict[bytes, bytes]
"""Request headers, names in lower case."""

Extra = tuple[tuple[bytes, bytes], ...]
"""Headers of an answer beside its type and length."""

JSON = b"application/json"

INTERNAL_ERROR = "the farm made a mistake; its log says which"

MOST_SWELLING = 128
"""How many times its size a compressed body may have once it is unpacked. Numbers as text shrink to
a third, as bytes hardly at all; only long runs of one number pass this, and bombs: 1,000 times."""

SWELLS_FREELY = 1 << 20
"""Bytes up to which that does not matter."""

MAX_PRIORITY = 1000
LONGEST_CLIENT_NAME = 100


class Backend(Protocol):
    """What the doors need of whatever runs calls: the dispatcher, as a rule."""

    def start_call(
        self, call: Call, hints: Hints, on_done: Callable[[Result | FarmError], None]
    ) -> TaskId:
        """Take a call in; `on_done` gets its outcome later, once. Raises FarmError instead."""

    def start_rows(self, rows: Rows, model: str, operation: Operation, hints: Hints) -> TaskId:
        """Take many rows in, each of which has an outcome of its own. Raises FarmError instead."""

    def more_rows(self, rows: TaskId) -> None:
        """Of what `start_rows` has taken in, more may be open now."""

    def cancel(self, task_id: TaskId) -> None:
        """Take a call, or many rows, back: nobody hears of their outcomes."""

    async def submit(self, call: Call, hints: Hints = ...) -> Result:
        """The call's result; raises FarmError. Cancelling takes the call back if it still waits."""

    def description(self, model: str, config: str = ...) -> ModelInfo | None:
        """What the model says of itself for a config, if that is known."""

    async def describe(self, model: str, config: str = ...) -> ModelInfo:
        """What the model says of itself for a config. Raises FarmError."""

    def models(self) -> Mapping[str, ModelInfo]:
        """The models that are served, described for the empty config."""

    def is_ready(self, model: str) -> bool:
        """Whether a model has a worker, or one may come."""

    def statistics(self) -> Mapping[str, ModelStatistics]:
        """What has become of the calls of each model that was called."""

    def snapshot(self) -> dict[str, Any]:
        """Workers, queues, rates and percentiles as JSON data."""


class Request(NamedTuple):
    """A whole request. path: unquoted, but below /v2 as it was sent, with its query.

    body: a HeldBody where it is long. peer: the client's host; user: its Basic name, or "".
    """

    method: str
    path: str
    headers: Headers
    body: Body
    peer: str
    user: str


class Answer(Protocol):
    """Where the answer goes; after the client has hung up, nowhere."""

    def __call__(
        self, status: int, body: bytes | memoryview, headers: Extra = (), content_type: bytes = JSON
    ) -> None:
        """Send the whole answer; to be called once."""


TakeBack = Callable[[], None]
"""Called when nobody waits for the answer any more."""

Door = Callable[[Request, Answer], TakeBack | None]
"""Answers a request, now or later; None: nothing is to be taken back."""


@runtime_checkable
class SpeaksErrors(Protocol):
    """A door whose protocol has its own form for errors; else they have UM-Bridge's."""

    def error_body(self, kind: str, message: str) -> bytes:
        """The body of an answer for what goes wrong outside the door."""


class Refused(Exception):
    """A request is turned away before anybody asks what it means.

    kind: the `type` of the error body; headers: sent along with the answer.
    """

    def __init__(self, status: int, kind: str, message: str, *, headers: Extra = ()) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = headers


def unpacked(body: bytes, headers: Headers, limit: int) -> bytes:
    """The body as it was before its Content-Encoding. Raises Refused, also above `limit` bytes."""
    encoding = headers.get(b"content-encoding")
    return body if encoding is None else _unpacked(body, encoding.lower(), limit)


def too_large(limit: int) -> Refused:
    """The refusal of a body above `limit` bytes."""
    return Refused(413, "TooLarge", f"the body is longer than {limit} bytes, the limit here")


def _unpacked(body: bytes, encoding: bytes, limit: int) -> bytes:
    if encoding == b"identity":
        return body
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        shown = encoding.decode("ascii", "replace")
        message = f"Content-Encoding {shown!r} is not understood here; gzip and deflate are"
        raise Refused(415, "UnsupportedEncoding", message)
    swells_to = max(SWELLS_FREELY, MOST_SWELLING * len(body))
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: look whether gzip or zlib
    try:
        unpacked = unpacker.decompress(body, min(limit, swells_to) + 1)
    except zlib.error as error:
        raise Refused(400, "InvalidInput", f"the body is not {encoding!r}: {error}") from None
    if len(unpacked) > limit:
        raise too_large(limit)
    if len(unpacked) > swells_to:
        raise Refused(
            413, "TooLarge", f"the body unpacks to more than {MOST_SWELLING} times its size"
        )
    if not unpacker.eof or unpacker.unused_data:
        raise Refused(400, "InvalidInput", "the compressed body is cut short or has a tail")
    return unpacked


def hints_of(headers: Headers, peer: str, user: str) -> Hints:
    """What the request says of itself in `Farm-Client`, `Farm-Priority` and `Farm-Deadline`.

    Who gives no name is known by the HTTP user name or else by the host: a port would be another
    one for each call, as most clients connect anew each time. Raises InvalidInput.
    """
    if not _HINTS.isdisjoint(headers):
        client = headers.get(b"farm-client", b"").decode("latin-1")[:LONGEST_CLIENT_NAME]
        priority, deadline = headers.get(b"farm-priority"), headers.get(b"farm-deadline")
        return Hints(
            client=client or user or peer,
            priority=0 if priority is None else _priority(priority),
            deadline_s=None if deadline is None else _deadline(deadline),
        )
    return named(user or peer)


_HINTS = frozenset({b"farm-client", b"farm-priority", b"farm-deadline"})


@lru_cache(maxsize=4096)
def named(client: str) -> Hints:
    """The hints of a client of whom only the name is known."""
    return Hints(client=client)


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
    """`text` as the value of a header: printable ASCII, anything else as a question mark."""
    return "".join(c if " " <= c <= "~" else "?" for c in text).encode()
