"""Time limits of an HTTP/1.1 connection, and the stages that they apply to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Time limits for a client, in seconds.

    idle: until a request begins; longer than clients keep connections, so that the clients close
    them and none sends on a connection that farm is closing. head: from its first byte to its last;
    clients send it at once. body, stuck: for each `progress` bytes of a body that is received or an
    answer that is sent; networks in use are faster than 2 kB/s. contended: for each hundredth of a
    large body while other requests wait for its memory. linger: until a client has read the answer
    after which the connection closes.
    """

    idle: float = 75.0
    head: float = 10.0
    body: float = 30.0
    stuck: float = 30.0
    contended: float = 5.0
    linger: float = 5.0
    progress: int = 64 * 1024


class Stage(Enum):
    """Stages of a connection, named by the event that ends each; BUSY alone has no limit."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    BUSY = "an answer, or room for a body"
    STUCK = "the client to read its answer"
    LINGER = "the client to close"
