"""The CurveZMQ keys of a farm, and how they outlive its server process.

The server has a key pair, all clients share one, and all workers share another, so a client cannot
pass for a worker. A holder of the server's secret key can pass for the server. That key is in
neither connection file but in its own file beside them, for as long as the farm runs: a restarted
server reads it and takes over keys and ports, so that living workers and clients find it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from farm.errors import Unavailable
from farm.machine.private import read_private, replace_private
from farm.transports.connection import read_connection, read_worker_connection

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
    server, clients, workers = (
        KeyPair(public.decode(), secret.decode())
        for public, secret in (zmq.curve_keypair() for _ in range(3))
    )
    return Keys(server, clients, workers)


def keep_secret(folder: Path, keys: Keys) -> None:
    """Write the server's secret key, readable by its owner only."""
    replace_private(folder / FILE, keys.server.secret.encode("ascii"))


def forget_secret(folder: Path) -> None:
    """Remove the server's secret key when the farm has stopped, so that no successor takes over."""
    (folder / FILE).unlink(missing_ok=True)


def predecessor(folder: Path) -> Predecessor | None:
    """Return what an earlier farm left in its run folder; None if it cannot be taken over."""
    path = folder / FILE
    with contextlib.suppress(OSError, ValueError, Unavailable, zmq.ZMQError):
        secret = read_private(path).decode("ascii")
        clients = read_connection(folder, named=False)
        workers = read_worker_connection(folder, named=False)
        server = KeyPair(zmq.curve_public(secret.encode()).decode(), secret)
        if clients.server_key == workers.server_key == server.public:
            files = (clients, workers)
            keys = Keys(server, *(KeyPair(one.client_public, one.client_secret) for one in files))
            clients_port, workers_port = (one.endpoint.rpartition(":")[2] for one in files)
            return Predecessor(keys, clients_port, workers_port, clients.token)
    return None
