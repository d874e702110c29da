"""The CurveZMQ keys of a farm, and how they outlive its server process.

The server has a key pair, all clients share one, and all workers share another, so a client cannot
pass for a worker. A holder of the server's secret key can pass for the server. That key is in
neither connection file but in its own file beside them, for as long as the farm runs: a restarted
server reads it and takes over keys and ports, so that living workers and clients find it.
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
class KeyPair:
    """A public key and its secret key, in Z85."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a farm."""

    server: KeyPair
    clients: KeyPair
    workers: KeyPair


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The state left by an earlier farm: its keys, and the ports that it listened on."""

    keys: Keys
    clients_port: str
    workers_port: str
    token: str = field(repr=False)


def new_keys() -> Keys:
    """Return new keys."""
    server, clients, workers = (zmq.curve_keypair() for _ in range(3))
    return Keys(_pair(*server), _pair(*clients), _pair(*workers))


def _pair(public: bytes, secret: bytes) -> KeyPair:
    return KeyPair(public.decode(), secret.decode())


def keep_secret(folder: Path, keys: Keys) -> None:
    """Write the server's secret key, readable by its owner only."""
    path = folder / FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(keys.server.secret)


def forget_secret(folder: Path) -> None:
    """Remove the server's secret key when the farm has stopped, so that no successor takes over."""
    (folder / FILE).unlink(missing_ok=True)


def predecessor(folder: Path) -> Predecessor | None:
    """Return what an earlier farm left in its run folder; None if it cannot be taken over."""
    path = folder / FILE
    with contextlib.suppress(OSError, ValueError, Unavailable, zmq.ZMQError):
        if path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
            return None
        clients, workers = read_connection(folder), read_worker_connection(folder)
        secret = path.read_text(encoding="ascii")
        server = KeyPair(zmq.curve_public(secret.encode()).decode(), secret)
        if clients.server_key == workers.server_key == server.public:
            keys = Keys(server, _own_pair(clients), _own_pair(workers))
            return Predecessor(keys, _port(clients), _port(workers), clients.token)
    return None


def _own_pair(connection: Connection) -> KeyPair:
    return KeyPair(connection.client_public, connection.client_secret)


def _port(connection: Connection) -> str:
    return connection.endpoint.rpartition(":")[2]
