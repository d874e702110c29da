"""Listening sockets, and the socket options of connections to other servers."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from farm.errors import Unavailable
from farm.machine.keeper_line import keeper
from farm.wording import worded

BACKLOG = 4096
"""Size of the accept queue; Linux caps it unless configured. Most clients connect for every call,
so connections come in bursts, and a client that finds the queue full retries only after 200 ms.
"""

ACCEPTED_IN_A_TURN = 8
"""Sockets to listen on, and so connections accepted per turn of the loop: uvloop accepts one per
listening socket and turn, so a burst would otherwise take a turn for each connection."""

PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Keep-alive: a vanished peer is noticed within two minutes, and routers keep idle connections."""

CONNECT_TIMEOUT_S = 30.0
"""Timeout for connecting to another program's server."""

CONNECT_RETRIES = 4
"""Within 1.5 s, for a server that is being restarted; nothing has been sent yet."""

SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A model may run for hours: notice a lost server, and keep routers from dropping connections.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)
"""Options of connections to model servers."""


def listen(host: str, port: int, *, port_option: str = "") -> socket.socket:
    """Return a listening socket whose silent connections are probed.

    port_option: what chooses a free port, for the error. A front door that was started again gets
    the socket of its predecessor. Raises Unavailable.
    """
    line, name = keeper(), f"{port_option} {host}:{port}"
    listener = None if line is None else line.take(name)
    if listener is None:
        listener = bound(host, port, port_option=port_option)
        if line is not None:
            line.hand(name, listener)
    return listener


def bound(host: str, port: int, *, port_option: str = "") -> socket.socket:
    """Return a new listening socket, as `listen` does."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted connections inherit these from the listening socket.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in PROBES.items():
                if hasattr(socket, option):
                    listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = ""
        if port and error.errno in (errno.EADDRINUSE, errno.EACCES):
            remedy = f"; {port_option or worded('--port 0', 'port=0')} picks a free one"
        raise Unavailable(f"cannot listen on {host}:{port}: {reason}{remedy}") from None
    return listener


def several(listener: socket.socket, count: int = ACCEPTED_IN_A_TURN) -> list[socket.socket]:
    """Return `count` sockets with one queue, that of a listening one, which is the first of them.

    Each connection wakes all of them, which costs some 3 µs for each.
    """
    return [listener, *(listener.dup() for _ in range(count - 1))]


def listen_unix(path: str) -> socket.socket:
    """Return a Unix socket that listens at a path for this user only; replace a dead one's file.

    A front door that was started again gets that of its predecessor. Raises Unavailable.
    """
    line, name = keeper(), f"unix:{path}"
    kept = None if line is None else line.take(name)
    if kept is not None and os.path.exists(path):
        return kept
    listener = _bound_unix(path)
    if line is not None:
        line.hand(name, listener)
    return listener


def _bound_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left(path)
        listener.bind(path)
        os.chmod(path, 0o600)  # before `listen`: connections are refused until then
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise Unavailable(f"cannot listen on unix:{path}: {reason}") from None
    return listener


def _remove_left(path: str) -> None:
    """Remove the socket file of a dead server. Raises OSError if a server is listening there."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # it is alive and overloaded
            pass
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
