"""Listening sockets, of the network and of this machine alone."""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from farm.errors import Unavailable

BACKLOG = 2048
"""Most clients connect anew for every call, so that connections come in bursts."""

PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""A peer that vanished is noticed within two minutes, and no router forgets a long run."""


def listen(host: str, port: int, *, port_option: str = "--port") -> socket.socket:
    """A listening socket whose connections are probed when silent.

    Raises Unavailable, which names the `port_option` that gives another port.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit these from the socket that accepts them.
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
        raise Unavailable(
            f"cannot listen on {host}:{port}: {reason}; {port_option} 0 picks a free one"
        ) from None
    return listener


def listen_unix(path: str) -> socket.socket:
    """A listening socket at a path, for nobody but the user; what a server that is gone has left
    there is removed.

    Raises Unavailable.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left(path)
        listener.bind(path)
        os.chmod(path, 0o600)  # before it listens: until then nobody gets in
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise Unavailable(f"cannot listen on unix:{path}: {reason}") from None
    return listener


def _remove_left(path: str) -> None:
    """Remove the socket file of a server that is gone. Raises OSError where one lives."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # it lives and has too much to do
            pass
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
