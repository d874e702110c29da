"""Time limits of an HTTP/1.1 connection, and the stages that they apply to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for a client, in seconds.

    idle: until a request begins; longer than clients keep connections, so that it is they who close
    them and none sends into a connection that is being closed. head: from its first byte to its
    last, which a client sends at once. body, stuck: for each `progress` bytes of a body or of an
    answer; networks in use are faster than 2 kB/s. contended: the same for a
    large body while others wait for its room, for each hundredth of it. linger: until a client has
    taken the answer after which the connection ends.
    """

    idle: float = 75.0
    head: float = 10.0
    body: float = 30.0
    stuck: float = 30.0
    contended: float = 5.0
    linger: float = 5.0
    progress: int = 64 * 1024


class Stage(Enum):
    """The stages of a connection, by the event that each ends with; BUSY alone has no limit."""

    IDLE = "a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body"
    BUSY = "an answer, or room for a body"
    STUCK = "the client to read its answer"
    LINGER = "the client to close"
