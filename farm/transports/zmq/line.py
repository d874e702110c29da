"""A DEALER as a line of messages, and how both ends of the ZeroMQ transport send and receive."""

from __future__ import annotations

import os
import selectors
from collections.abc import Sequence

import zmq
from zmq.utils.monitor import recv_monitor_message

from farm.call import Buffer
from farm.errors import Unavailable
from farm.transports.connection import Connection

COPIED_BYTES = 64 * 1024
"""Copying smaller frames costs less than a notification that ZeroMQ has finished with them."""

# Plain integers: arithmetic on enumerations costs as much as a small message.
_POLLIN = int(zmq.POLLIN)
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


def set_heartbeat(socket: zmq.Socket[bytes], heartbeat_s: float) -> None:
    """Let libzmq detect the loss of the other host within `heartbeat_s` seconds."""
    socket.set(zmq.HEARTBEAT_IVL, max(1, int(heartbeat_s * 1000 / 3)))
    socket.set(zmq.HEARTBEAT_TIMEOUT, max(1, int(heartbeat_s * 1000)))
    socket.set(zmq.HEARTBEAT_TTL, max(1, int(heartbeat_s * 1000)))


def receive(socket: zmq.Socket[bytes], *, small: int = 1) -> list[Buffer] | None:
    """Return the frames of the next message, None if there is none now.

    The first `small` frames become bytes; large arrays follow and are not copied.
    """
    try:
        frames: list[Buffer] = [socket.recv(zmq.NOBLOCK)]
    except zmq.Again:
        return None
    while len(frames) < small or socket.get(zmq.RCVMORE):
        if len(frames) < small:
            frames.append(socket.recv(zmq.NOBLOCK))
        else:
            frames.append(socket.recv(zmq.NOBLOCK, copy=False).buffer)
    return frames


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Whether there is a message now; cheaper than trying `receive`."""
    return bool(int(socket.get(zmq.EVENTS)) & _POLLIN)


def send(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
    """Send a message without waiting and without copying large frames. Raises ZMQError."""
    # send_multipart without its checks: half the cost of a small message.
    *first, last = frames
    for frame in first:
        socket.send(frame, _MORE, copy=len(frame) < COPIED_BYTES)
    socket.send(last, _LAST, copy=len(last) < COPIED_BYTES)


class DealerLine:
    """A `DialedLine` to the dispatcher's ROUTER, which libzmq reconnects whenever it breaks.

    name, heartbeat_s, watched: as for `Dialer`. Raises Unavailable without keys.
    """

    may_come_back = True
    drained = False
    queued = 0

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        heartbeat_s: float | None = 5.0,
        watched: bool = False,
    ) -> None:
        if not connection.server_key:
            raise Unavailable(f"the connection file for {connection.endpoint} has no keys")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.ROUTING_ID, name.encode())
        socket.set(zmq.LINGER, 2000)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.RECONNECT_IVL_MAX, 2000)
        socket.set(zmq.CONNECT_TIMEOUT, 3000)  # the kernel repeats at longer and longer intervals
        socket.set(zmq.IPV6, int("[" in connection.endpoint))
        if heartbeat_s is not None:
            set_heartbeat(socket, heartbeat_s)
        socket.set(zmq.CURVE_SERVERKEY, connection.server_key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, connection.client_public.encode())
        socket.set(zmq.CURVE_SECRETKEY, connection.client_secret.encode())
        self._monitor: zmq.Socket[bytes] | None = None
        if watched:  # before connecting: later, the first connection might be missed
            events = zmq.Event.DISCONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED
            self._monitor = socket.get_monitor_socket(events)
        socket.connect(connection.endpoint)
        self._connected = not watched
        self._broken = self._came_back = False
        # libzmq's descriptor signals a message once, and a send may consume that signal: the pipe
        # then replaces it. The selector combines all of them in one descriptor.
        self._rung = False
        self._bell_read, self._bell_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(int(socket.get(zmq.FD)), selectors.EVENT_READ)
        self._selector.register(self._bell_read, selectors.EVENT_READ)
        if self._monitor is not None:
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

    def receive(self, most: int | None = None) -> Sequence[Buffer] | None:
        """Return the frames of the next message; None if there is none now."""
        while self._monitor is not None and has_message(self._monitor):
            event = recv_monitor_message(self._monitor)["event"]
            self._connected = event == zmq.Event.HANDSHAKE_SUCCEEDED
            if not self._connected:
                self._broken = True
            elif self._broken:
                self._broken, self._came_back = False, True
        frames = receive(self._socket)
        if frames is not None:
            self._connected = True
        elif self._rung:
            self._rung = False
            os.read(self._bell_read, 1)
        return frames

    def flush(self, timeout_s: float) -> bool:
        """Return True: it is unknown what libzmq's own thread still holds."""
        return True

    def ended(self) -> bool:
        """Return False: the connection may always come back."""
        return False

    def broken(self) -> bool:
        """Whether the connection was lost and is not restored; only known if it is watched."""
        return self._broken

    def came_back(self) -> bool:
        """Whether it was broken and is connected again; only known if it is watched."""
        came_back, self._came_back = self._came_back, False
        return came_back

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
