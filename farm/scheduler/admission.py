"""Whether the queue takes another call of a client."""

from __future__ import annotations

from farm.errors import Overloaded

FEW_QUEUED = 100
"""A client with fewer waiting calls than this may use the reserve."""

RESERVE = 10
"""A tenth of `most`, by which the queue may grow beyond it, for clients with few waiting calls: one
client that fills the queue must not keep out all others."""


def check_room(
    queued: int, most: int, client: str, queued_of_client: int, most_of_client: int
) -> None:
    """Raise Overloaded when a call of `client` finds no room.

    queued: calls that wait, of which `queued_of_client` are the client's.
    most, most_of_client: how many may wait.
    """
    if queued >= most and (queued_of_client >= FEW_QUEUED or queued >= most + most // RESERVE):
        raise Overloaded(f"{queued} calls are waiting, the most the farm takes; try again later")
    if queued_of_client >= most_of_client:
        raise Overloaded(
            f"{queued_of_client} calls of client {client!r} are waiting, the most one client may "
            "have; try again later"
        )
