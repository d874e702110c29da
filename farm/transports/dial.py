"""How workers, supervisors and native clients reach the dispatcher: over which line, and where."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from farm.errors import Unavailable
from farm.protocols.wire import Buffer
from farm.transports.connection import Connection
from farm.transports.stream.address import dial_path
from farm.transports.stream.line import StreamLine

DIAL_EVERY_S = 0.25
"""How often a peer whose line has ended looks for a dispatcher in the same place."""


class DialedLine(Protocol):
    """One ordered line of messages to the dispatcher. For one thread at a time.

    may_come_back: it mends itself when it breaks, and messages may be lost then; otherwise it ends.
    """

    @property
    def may_come_back(self) -> bool: ...

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; False when the line has ended."""

    def receive(self) -> Sequence[Buffer] | None:
        """The frames of the next message; None when there is none now."""

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was sent is out of this process; waits so long at the most."""

    def fileno(self) -> int:
        """A descriptor that is readable while there may be something to receive."""

    def ended(self) -> bool:
        """Whether the line is gone; ask once `receive` gave None, so that nothing is left."""

    def close(self) -> None:
        """Let go of every resource."""


def dial(
    connection: Connection,
    name: str,
    *,
    heartbeat_s: float = 5.0,
    on_return: Callable[[], None] | None = None,
) -> DialedLine:
    """A line to the dispatcher: the local stream on the farm's own machine, else ZeroMQ.

    name: the peer's, unique for one incarnation of one process.
    on_return: called by `receive` when a line that may come back has done so.
    Raises Unavailable when there is no way from here.
    """
    local = dial_local(connection, name)
    if local is not None:
        return local
    if connection.endpoint:
        # Only processes that need it load ZeroMQ.
        from farm.transports.zmq_line import DealerLine

        return DealerLine(connection, name, heartbeat_s=heartbeat_s, on_return=on_return)
    if connection.host != socket.gethostname():
        raise Unavailable(
            f"the farm on {connection.host} serves workers and native clients of its own machine "
            "only; start it with --host 0.0.0.0 or --transport zmq"
        )
    raise Unavailable(f"nobody listens at {connection.local}; is the farm running?")


def dial_local(connection: Connection, name: str) -> StreamLine | None:
    """A line over the farm's socket file; None when it has none, or we are on another machine."""
    if not connection.local or connection.host != socket.gethostname():
        return None
    return dial_path(connection.local, name)
