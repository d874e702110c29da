"""Functions for both ends of the ZeroMQ transport: heartbeats, connecting, sending, receiving."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

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


def dial(
    context: zmq.Context[zmq.Socket[bytes]],
    connection: Connection,
    routing_id: str,
    *,
    heartbeat_s: float | None = 5.0,
    watch: int = 0,
) -> zmq.Socket[bytes]:
    """Return a DEALER connected to the dispatcher, with the keys of the connection file.

    heartbeat_s: silence after which libzmq connects again; None: it sends no heartbeats of its own
    and relies on those of the dispatcher, which also name the time of silence.
    watch: events reported by its `get_monitor_socket()`, from the first connection on.
    Raises Unavailable if there are no keys, after terminating the context.
    """
    if not connection.server_key:
        context.term()
        raise Unavailable(f"the connection file for {connection.endpoint} has no keys")
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, routing_id.encode())
    socket.set(zmq.LINGER, 2000)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.RECONNECT_IVL_MAX, 2000)
    socket.set(zmq.IPV6, int("[" in connection.endpoint))
    if heartbeat_s is not None:
        set_heartbeat(socket, heartbeat_s)
    socket.curve_serverkey = connection.server_key.encode()
    socket.curve_publickey = connection.client_public.encode()
    socket.curve_secretkey = connection.client_secret.encode()
    if watch:  # before connecting: later, the first connection might be missed
        socket.get_monitor_socket(watch)
    socket.connect(connection.endpoint)
    return socket


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
