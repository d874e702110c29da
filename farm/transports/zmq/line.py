"""The connecting end of the ZeroMQ transport: a DEALER as a line of messages."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from farm.call import Buffer
from farm.transports.connection import Connection
from farm.transports.zmq.socket import dial, has_message, receive, send


class DealerLine:
    """A `DialedLine` to the dispatcher's ROUTER, which libzmq reconnects whenever it breaks.

    on_return: called by `receive` after it was broken and is connected again.
    """

    may_come_back = True

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        heartbeat_s: float | None = 5.0,
        on_return: Callable[[], None] | None = None,
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        watch = zmq.Event.DISCONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED if on_return else 0
        self._socket = dial(self._context, connection, name, heartbeat_s=heartbeat_s, watch=watch)
        self._on_return = on_return
        self._connected = on_return is None
        self._broken = False
        # libzmq's descriptor signals a message once, and a send may consume that signal: the pipe
        # then replaces it. The selector combines all of them in one descriptor.
        self._rung = False
        self._bell_read, self._bell_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(int(self._socket.get(zmq.FD)), selectors.EVENT_READ)
        self._selector.register(self._bell_read, selectors.EVENT_READ)
        self._monitor: zmq.Socket[bytes] | None = None
        if on_return:
            self._monitor = self._socket.get_monitor_socket()
            self._selector.register(int(self._monitor.get(zmq.FD)), selectors.EVENT_READ)

    def fileno(self) -> int:
        """Return the selector's descriptor, which is readable while there may be messages."""
        descriptor: int = self._selector.fileno()
        return descriptor

    def send(self, frames: list[Buffer]) -> bool:
        """Send a message without waiting; libzmq keeps it while there is no connection."""
        send(self._socket, frames)
        if not self._rung and has_message(self._socket):
            self._rung = True
            os.write(self._bell_write, b"m")
        return True

    def receive(self) -> Sequence[Buffer] | None:
        """Return the frames of the next message; None if there is none now."""
        if self._monitor is not None:
            self._look_at_connection(self._monitor)
        frames = receive(self._socket)
        if frames is None:
            if self._rung:
                self._rung = False
                os.read(self._bell_read, 1)
        else:
            self._connected = True
        return frames

    def _look_at_connection(self, monitor: zmq.Socket[bytes]) -> None:
        while has_message(monitor):
            event = recv_monitor_message(monitor)["event"]
            self._connected = event == zmq.Event.HANDSHAKE_SUCCEEDED
            if not self._connected:
                self._broken = True
            elif self._broken:
                self._broken = False
                if self._on_return is not None:
                    self._on_return()

    def flush(self, timeout_s: float) -> bool:
        """Return True: it is unknown what libzmq's own thread still holds."""
        return True

    def ended(self) -> bool:
        """Return False: the connection may always come back."""
        return False

    def broken(self) -> bool:
        """Whether the connection was lost and is not restored; only known with `on_return`."""
        return self._broken

    def close(self) -> None:
        """Close; if connected, recently sent messages have two seconds to leave."""
        if self._socket.closed:
            return
        self._selector.close()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close()
        self._socket.close(None if self._connected else 0)  # 0: unconnected, drop the goodbye
        self._context.term()
        os.close(self._bell_read)
        os.close(self._bell_write)
