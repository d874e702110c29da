"""Connecting workers, supervisors and native clients to the dispatcher."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from farm.call import Buffer
from farm.errors import Unavailable
from farm.transports.connection import Connection
from farm.transports.stream.address import dial_path
from farm.transports.stream.line import StreamLine

DIAL_EVERY_S = 0.25
"""Interval at which a peer whose line has ended dials the same address again."""


class DialedLine(Protocol):
    """One ordered line of messages to the dispatcher, for use by one thread at a time.

    may_come_back: it reconnects by itself when it breaks, and may lose messages; otherwise it ends.
    """

    @property
    def may_come_back(self) -> bool: ...

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; return False if the line has ended."""

    def receive(self) -> Sequence[Buffer] | None:
        """Return the frames of the next message; None if there is none now."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until all messages have left this process; return False on timeout."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while there may be something to receive."""

    def ended(self) -> bool:
        """Whether the line is gone; call it after `receive` returned None, to lose no message."""

    def close(self) -> None:
        """Release all resources."""


def dial(
    connection: Connection,
    name: str,
    *,
    heartbeat_s: float = 5.0,
    on_return: Callable[[], None] | None = None,
) -> DialedLine:
    """Return a line to the dispatcher: the local stream on the farm's own machine, else ZeroMQ.

    name: the peer's, unique for one start of one process.
    on_return: called by `receive` after a line that may come back has reconnected.
    Raises Unavailable if the dispatcher cannot be reached from here.
    """
    local = dial_local(connection, name)
    if local is not None:
        return local
    if connection.endpoint:
        # Load ZeroMQ only in processes that need it.
        from farm.transports.zmq.line import DealerLine

        return DealerLine(connection, name, heartbeat_s=heartbeat_s, on_return=on_return)
    if connection.host != socket.gethostname():
        raise Unavailable(
            f"the farm on {connection.host} serves workers and native clients of its own machine "
            "only; start it with --host 0.0.0.0 or --transport zmq"
        )
    raise Unavailable(f"no farm listens at {connection.local}; is the farm running?")


def dial_local(connection: Connection, name: str) -> StreamLine | None:
    """Return a line over the farm's socket file; None without one, or on another machine."""
    if not connection.local or connection.host != socket.gethostname():
        return None
    return dial_path(connection.local, name)
