"""Admission control: whether the queue accepts another call of a client."""

from __future__ import annotations

from farm.errors import Overloaded

FEW_QUEUED = 100
"""A client with fewer waiting calls than this may use the reserve."""

RESERVE = 10
"""The queue may exceed `most` by a tenth of it, for clients with few waiting calls: a single client
that fills the queue must not lock out all others.
"""


def check_room(
    queued: int, most: int, client: str, queued_of_client: int, most_of_client: int
) -> None:
    """Raise Overloaded if the queue has no room for a call of `client`.

    queued: number of waiting calls, of which `queued_of_client` are the client's.
    most, most_of_client: maximum number of waiting calls.
    """
    if queued >= most and (queued_of_client >= FEW_QUEUED or queued >= most + most // RESERVE):
        raise Overloaded(f"{queued} calls are waiting, the most the farm takes; try again later")
    if queued_of_client >= most_of_client:
        raise Overloaded(
            f"{queued_of_client} calls of client {client!r} are waiting, the most one client may "
            "have; try again later"
        )
