"""Attacks on farm's own messages, over the socket in its run folder, by a program of its user."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Callable

from farm.call import Buffer, WorkerInfo
from farm.transports.connection import read_connection
from farm.transports.stream.address import dial_path
from farm.wire import messages as wire
from farm.wire.messages import Kind
from hostile_target import Target

AT_ONCE_S = 1.0

KEYLESS = 8000

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""The first bytes of a ZeroMQ program with encryption (ZMTP 3.1)."""


def _flood(target: Target, frames: list[Buffer]) -> None:
    """Send the same message as fast as it is read, and read the answers."""
    line = dial_path(read_connection(target.connection_file).local, "client:attacker")
    if line is None:
        raise ConnectionError("no farm listens")
    end = time.monotonic() + AT_ONCE_S
    with contextlib.closing(line):
        while time.monotonic() < end and not line.ended():
            if line.queued < 1 << 20:
                for _ in range(100):
                    line.send(frames)
            else:
                select.select([line], [line], [], 0.1)
                line.write_some()
            while line.receive() is not None:
                pass


def refused_joins(target: Target) -> None:
    """JOIN under the name of a worker, as a client: each is refused."""
    _flood(target, wire.encode_join("life", WorkerInfo("node/1-a", ())))


def probes(target: Target) -> None:
    """PROBE, which is answered at once."""
    _flood(target, wire.encode(Kind.PROBE))


def questions(target: Target) -> None:
    """ASK for the farm's status, which takes the most to answer of all short messages."""
    _flood(target, wire.encode(Kind.ASK, {"id": 1, "what": "status"}))


def connections(target: Target) -> None:
    """Connect and leave, as fast as possible."""
    path = read_connection(target.connection_file).local
    end = time.monotonic() + AT_ONCE_S
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dialed:
            dialed.connect(path)


def keyless(target: Target) -> None:
    """Hold connections to both ZeroMQ ports that greet, then close all together."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    folder = target.connection_file.parent
    there = [read_connection(folder / name).endpoint for name in ("farm.json", "workers.json")]
    ports = [int(endpoint.rpartition(":")[2]) for endpoint in there]
    with contextlib.ExitStack() as held:
        for number in range(KEYLESS):
            stranger = held.enter_context(socket.socket())
            stranger.setblocking(False)
            stranger.connect_ex((target.host, ports[number % 2]))
            with contextlib.suppress(OSError):
                stranger.send(GREETING)
        time.sleep(target.seconds)


CASES: dict[str, Callable[[Target], None]] = {
    "JOINs of a client": refused_joins,
    "PROBEs without end": probes,
    "questions without end": questions,
    "connections that say nothing": connections,
    f"{KEYLESS} ZeroMQ connections without a key": keyless,
}
