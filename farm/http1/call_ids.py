"""The id that a request gives its call, which follows it into the logs of front door and workers.

Sources: the usual header X-Request-ID; W3C Trace Context, whose trace-id identifies the request of
a user through all services.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from farm.bodies.unpacking import Headers
from farm.call import checked_call_id
from farm.monitoring.tracing import Tracing

REQUEST_ID = b"x-request-id"
TRACE_PARENT = b"traceparent"
NAMING = frozenset({REQUEST_ID, TRACE_PARENT})
"""The headers that may name a call."""

_PARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def call_id_of(headers: Headers) -> str:
    """Return the call's id: the request's own, or else that of its trace; empty if it has none.

    An id that is too long, or has other characters than visible ASCII, counts as none.
    """
    given = checked_call_id(headers.get(REQUEST_ID, b"").decode("latin-1"))
    if given:
        return given
    parent = _PARENT.match(headers.get(TRACE_PARENT, b""))
    return parent[1].decode() if parent else ""


def trace_parent_of(headers: Headers) -> str:
    """Return the request's parent span, as in `traceparent`; empty if it has none."""
    # Later versions may have more fields behind these.
    parent = _PARENT.match(headers.get(TRACE_PARENT, b""))
    return parent[0].decode() if parent else ""


class Naming(NamedTuple):
    """How calls get ids and spans.

    make_id: makes the id of a call that has none; None: it stays without. tracing: makes the spans
    of calls; None: there are none.
    """

    make_id: Callable[[], bytes] | None = None
    tracing: Tracing | None = None


NOTHING_NAMED = Naming()


def call_ids() -> Callable[[], bytes]:
    """Return a function whose results are new ids: a random part for this farm, and a number."""
    prefix, numbers = secrets.token_hex(4).encode(), count(1)
    return lambda: b"%b-%d" % (prefix, next(numbers))
