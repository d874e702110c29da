"""Attacks without a token: wrong tokens, many connections, and floods of ports without tokens.

As root the attacker runs as another user of the machine, otherwise it poses as a remote caller.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from hostile_target import Target

STRANGER = 65534
LASTS_S = 0.5
"""Duration of one round of a case."""

AT_ONCE = 400
"""Number of connections, or requests on one, that are open at a time."""

EVALUATE = b'{"name":"innocent","input":[[1.0]],"config":{}}'


def as_stranger() -> None:
    """Continue as another user, if this one may."""
    if os.geteuid() == 0:
        socket.getaddrinfo("127.0.0.1", 1)  # imports what the other user may be unable to read
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)


def request(*headers: bytes) -> bytes:
    """Return an evaluation that is refused for any caller."""
    lines = [b"POST /Evaluate HTTP/1.1", b"host: farm.example", b"forwarded: for=192.0.2.1"]
    lines += [b"content-length: %d" % len(EVALUATE), *headers, b"", b""]
    return b"\r\n".join(lines) + EVALUATE


WRONG = request(b"authorization: Bearer 0123456789abcdef0123456789abcdef")


def wrong_tokens(target: Target) -> None:
    """Send wrong tokens on one connection, as fast as they are answered."""
    as_stranger()
    end = time.monotonic() + LASTS_S
    with socket.create_connection(target.http, 10) as client:
        while time.monotonic() < end:
            client.sendall(10 * WRONG)
            answers = b""
            while answers.count(b"HTTP/1.1 401 ") < 10:
                answers += client.recv(65536)


def wrong_tokens_anew(target: Target) -> None:
    """Send each wrong token on a new connection."""
    as_stranger()
    end = time.monotonic() + LASTS_S
    while time.monotonic() < end:
        with socket.create_connection(target.http, 10) as client:
            client.sendall(WRONG)
            client.recv(65536)


def opened_and_closed(address: Callable[[Target], tuple[str, int]]) -> Callable[[Target], None]:
    """Send a request and disconnect, on as many connections as possible."""

    def case(target: Target) -> None:
        as_stranger()
        end = time.monotonic() + LASTS_S
        while time.monotonic() < end:
            with socket.create_connection(address(target), 10) as client:
                client.sendall(WRONG)

    return case


def held_open(address: Callable[[Target], tuple[str, int]]) -> Callable[[Target], None]:
    """Open many connections together and keep them for a while."""

    def case(target: Target) -> None:
        as_stranger()
        clients = [socket.create_connection(address(target), 10) for _ in range(AT_ONCE)]
        time.sleep(LASTS_S)
        for client in clients:
            client.close()

    return case


CASES: dict[str, Callable[[Target], None]] = {
    "wrong tokens on one connection": wrong_tokens,
    "wrong tokens, a connection each": wrong_tokens_anew,
    "connections that send and close, HTTP": opened_and_closed(lambda t: t.http),
    "connections that send and close, gRPC": opened_and_closed(lambda t: t.grpc),
    "connections of another user, MIP": opened_and_closed(lambda t: t.mip),
    "connections of another user, AEPsych": opened_and_closed(lambda t: t.aepsych),
    f"{AT_ONCE} connections held open, HTTP": held_open(lambda t: t.http),
    f"{AT_ONCE} connections held open, AEPsych": held_open(lambda t: t.aepsych),
}
