"""Connecting workers, supervisors and native clients to the dispatcher."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
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

    def broken(self) -> bool:
        """Whether there is no connection now; a line that may come back can be broken for long."""

    def close(self) -> None:
        """Release all resources."""


class NoLine:
    """A `DialedLine` that has ended, for a peer that has not dialed yet."""

    may_come_back = False

    def send(self, frames: list[Buffer]) -> bool:
        """Return False: the line has ended."""
        return False

    def receive(self) -> Sequence[Buffer] | None:
        """Return None: there are no messages."""
        return None

    def flush(self, timeout_s: float) -> bool:
        """Return False: nothing can leave."""
        return False

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1

    def ended(self) -> bool:
        """Return True."""
        return True

    def broken(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing."""


class Dialer:
    """Dials the dispatcher, and again wherever the one that replaces it listens.

    A farm that is killed and started again in its run folder writes another connection file, with
    other ports, keys and another process. `connection` is the one that was dialed last.
    read: reads the connection file; None: it never changes. The rest is as for `dial`.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        read: Callable[[], Connection] | None = None,
        heartbeat_s: float = 5.0,
        on_return: Callable[[], None] | None = None,
    ) -> None:
        self.connection = _for_dialing(connection)
        self._name = name
        self._read = read
        self._heartbeat_s = heartbeat_s
        self._on_return = on_return

    def dial(self) -> DialedLine:
        """Return a line. Raises Unavailable if the dispatcher cannot be reached from here."""
        return self._dial(self.connection)

    def again(self, line: DialedLine) -> DialedLine | None:
        """Return a line in place of one that is ended, broken or silent; None if there is none yet.

        Without another connection file, only a line that has ended is replaced.
        """
        there = self._current()
        if isinstance(line, NoLine) or there != self.connection:
            with contextlib.suppress(Unavailable):  # it may not listen yet
                replacement = self._dial(there)
                self.connection = there
                return replacement
        return dial_local(self.connection, self._name) if line.ended() else None

    def _dial(self, connection: Connection) -> DialedLine:
        return dial(
            connection, self._name, heartbeat_s=self._heartbeat_s, on_return=self._on_return
        )

    def _current(self) -> Connection:
        """Return the connection as the file has it now; the last one if there is no file."""
        if self._read is not None:
            with contextlib.suppress(Unavailable):
                return _for_dialing(self._read())
        return self.connection


def dial(
    connection: Connection,
    name: str,
    *,
    heartbeat_s: float | None = 5.0,
    on_return: Callable[[], None] | None = None,
) -> DialedLine:
    """Return a line to the dispatcher: the local stream on the farm's own machine, else ZeroMQ.

    name: the peer's, unique for one start of one process. heartbeat_s: silence after which a line
    over ZeroMQ connects again; None: as the dispatcher's heartbeats name it.
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


def _for_dialing(connection: Connection) -> Connection:
    """Return the connection with the dispatcher's addresses only; the others are written later."""
    return replace(connection, url="", grpc="", addresses={}, token="")


def dial_local(connection: Connection, name: str) -> StreamLine | None:
    """Return a line over the farm's socket file; None without one, or on another machine."""
    if not connection.local or connection.host != socket.gethostname():
        return None
    return dial_path(connection.local, name)
