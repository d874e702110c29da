"""Connecting workers, supervisors and native clients to the dispatcher; waiting for messages."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from farm.call import Buffer
from farm.errors import Unavailable
from farm.machine.spinning import ShortWaits
from farm.transports.connection import Connection, ConnectionFile
from farm.transports.stream.address import dial_path
from farm.transports.stream.line import StreamLine

DIAL_EVERY_S = 0.25
"""Interval at which a peer whose line has ended dials the same address again."""

ACCEPTED_WITHIN_S = 2.0
"""Timeout within which a reachable machine accepts a connection."""


class DialedLine(Protocol):
    """One ordered line of messages to the dispatcher, for use by one thread at a time.

    may_come_back: it reconnects by itself when it breaks, and may lose messages; otherwise it ends.
    drained: the last message was all that had arrived. queued: bytes to flush; 0 if unknown.
    """

    may_come_back: bool
    drained: bool
    queued: int

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; return False if the line has ended."""

    def receive(self, most: int | None = None) -> Sequence[Buffer] | None:
        """Return the frames of the next message; None if there is none now.

        most: as for `StreamLine`; others have no bound.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until all messages have left this process; return False on timeout."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while there may be something to receive."""

    def ended(self) -> bool:
        """Whether the line is gone; call it after `receive` returned None, to lose no message."""

    def broken(self) -> bool:
        """Whether there is no connection now; a line that may come back can be broken for long."""

    def came_back(self) -> bool:
        """Whether it was broken and has reconnected since the last question; after `receive`."""

    def close(self) -> None:
        """Release all resources."""


class NoLine(StreamLine):
    """A line that has ended, for a peer that has not dialed yet."""

    def __init__(self) -> None:
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.close()


class LineWait:
    """Waits until the line or the wake-up pipe has something to do; for one thread.

    waits: those of a thread that may spin through short ones.
    """

    def __init__(self, wake_fd: int, waits: ShortWaits | None = None) -> None:
        self._poll = select.poll()
        self._waits = waits
        self._poll.register(wake_fd, select.POLLIN)
        self._watched = (-1, 0)

    def __call__(
        self, line: DialedLine | None, timeout_s: float, *, writes: bool = False
    ) -> dict[int, int]:
        """Wait; with `line` None, only for the pipe. Return the events by ready descriptor.

        timeout_s: negative for no limit. writes: also wait for room to write.
        """
        events = select.POLLIN | select.POLLOUT if writes else select.POLLIN
        watched = (-1 if line is None else line.fileno(), events)
        if watched != self._watched:
            if self._watched[0] >= 0:
                self._poll.unregister(self._watched[0])
            if watched[0] >= 0:
                self._poll.register(*watched)
            self._watched = watched
        if self._waits is None:
            return dict(self._poll.poll(int(1000 * timeout_s)))
        return dict(self._waits.poll(self._poll, timeout_s))


class Dialer:
    """Dials the dispatcher, and again wherever the one that replaces it listens.

    A farm that is killed and started again in its run folder writes another connection file, with
    other ports, keys and another process. `connection` is the one that was dialed last.
    name: the peer's, unique for one start of one process. file: the connection file; None: it never
    changes. heartbeat_s: silence after which a line over ZeroMQ connects again; None: as the
    dispatcher's heartbeats name it. watched: a line that may come back notices when it is broken,
    and when it has reconnected.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        file: ConnectionFile | None = None,
        heartbeat_s: float | None = 5.0,
        watched: bool = False,
    ) -> None:
        self.connection = _for_dialing(connection)
        self._name = name
        self._file = file
        self._heartbeat_s = heartbeat_s
        self._watched = watched
        self._dialed_at = 0.0

    def dial(self) -> DialedLine:
        """Return a line: the local stream on the farm's own machine, else ZeroMQ.

        Raises Unavailable if the dispatcher cannot be reached from here.
        """
        return self._dial(self.connection)

    def again(self, line: DialedLine, every_s: float = 0.0) -> DialedLine | None:
        """Return a line in place of one that is ended, broken or silent; None if there is none yet.

        Without another connection file, only a line that has ended is replaced. every_s: interval
        of the attempts.
        """
        now = time.monotonic()
        if now - self._dialed_at < every_s:
            return None
        self._dialed_at = now
        there = self.connection
        if self._file is not None:
            with contextlib.suppress(Unavailable):
                there = _for_dialing(self._file.read())
        if isinstance(line, NoLine) or there != self.connection:
            with contextlib.suppress(Unavailable):  # it may not listen yet
                replacement = self._dial(there)
                self.connection = there
                return replacement
        return dial_local(self.connection, self._name) if line.ended() else None

    def _dial(self, connection: Connection) -> DialedLine:
        local = dial_local(connection, self._name)
        if local is not None:
            return local
        if connection.endpoint:
            # Load ZeroMQ only in processes that need it.
            from farm.transports.zmq.line import DealerLine

            heartbeat_s, watched = self._heartbeat_s, self._watched
            return DealerLine(connection, self._name, heartbeat_s=heartbeat_s, watched=watched)
        if connection.host != socket.gethostname():
            raise Unavailable(
                f"the farm on {connection.host} serves workers and native clients of its own "
                "machine only; start it with --host 0.0.0.0 or --transport zmq"
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


def accepts(connection: Connection) -> bool:
    """Whether something accepts connections at the dispatcher's address."""
    if connection.local and connection.host == socket.gethostname():
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialed,
        ):
            dialed.settimeout(ACCEPTED_WITHIN_S)
            dialed.connect(connection.local)
            return True
    return accepts_tcp(connection.endpoint)


def accepts_tcp(endpoint: str) -> bool:
    """Whether something accepts connections at `tcp://host:port`; False for no address at all."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ACCEPTED_WITHIN_S).close()
    except (OSError, ValueError):
        return False
    return True
