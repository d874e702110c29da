"""The CurveZMQ keys of a farm: who makes them, and how they outlive its front door.

The server has a pair of keys, all clients share one and all workers another, so a client cannot
pass for a worker. Whoever has the server's secret can pass for the front door. It is in neither
connection file but in one of its own beside them, for as long as the farm runs: living workers and
clients find the next front door, which takes up keys and ports.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from farm.errors import Unavailable
from farm.transports.connection import Connection, read_connection, read_worker_connection

FILE = "farm.key"


@dataclass(frozen=True, slots=True)
class Pair:
    """A public key and its secret one, in Z85."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a farm."""

    server: Pair
    clients: Pair
    workers: Pair


@dataclass(frozen=True, slots=True)
class Predecessor:
    """What a farm that was here before has left: its keys, and the ports that it listened at."""

    keys: Keys
    clients_port: str
    workers_port: str
    token: str = field(repr=False)


def new_keys() -> Keys:
    """Fresh keys."""
    server, clients, workers = (zmq.curve_keypair() for _ in range(3))
    return Keys(_pair(*server), _pair(*clients), _pair(*workers))


def _pair(public: bytes, secret: bytes) -> Pair:
    return Pair(public.decode(), secret.decode())


def keep_secret(folder: Path, keys: Keys) -> None:
    """Write the server's secret where only its owner can read it."""
    path = folder / FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(keys.server.secret)


def forget_secret(folder: Path) -> None:
    """The farm has stopped: nobody is to take its place."""
    (folder / FILE).unlink(missing_ok=True)


def predecessor(folder: Path) -> Predecessor | None:
    """What the farm before has left in its run folder; None if its place cannot be taken."""
    path = folder / FILE
    with contextlib.suppress(OSError, ValueError, Unavailable, zmq.ZMQError):
        if path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
            return None
        clients, workers = read_connection(folder), read_worker_connection(folder)
        secret = path.read_text(encoding="ascii")
        server = Pair(zmq.curve_public(secret.encode()).decode(), secret)
        if clients.server_key == workers.server_key == server.public:
            keys = Keys(server, _own_pair(clients), _own_pair(workers))
            return Predecessor(keys, _port(clients), _port(workers), clients.token)
    return None


def _own_pair(connection: Connection) -> Pair:
    return Pair(connection.client_public, connection.client_secret)


def _port(connection: Connection) -> str:
    return connection.endpoint.rpartition(":")[2]
