"""The addresses at which a farm listens for its own messages: a Unix socket, and ZeroMQ."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from farm.errors import Unavailable
from farm.machine.addresses import is_loopback
from farm.machine.keeper_line import keeper
from farm.settings import ANY_HOST, Settings
from farm.transports.connection import Connection, new_token, read_connection
from farm.transports.peer_line import Listener
from farm.transports.stream.listener import UnixListener


@dataclass(frozen=True, slots=True)
class Wires:
    """A farm's listeners, and the connection files for clients and workers.

    keep: saves the keys and ports that the next farm needs to take over; forget: deletes them.
    """

    listeners: Sequence[Listener]
    for_clients: Connection
    for_workers: Connection
    keep: Callable[[], None] = lambda: None
    forget: Callable[[], None] = lambda: None


def listen(settings: Settings, *, elastic: bool, reach: str = "") -> Wires:
    """Listen at the addresses that the settings call for.

    For one machine that is a Unix socket in the run folder, and no TCP port is open. For other
    machines, expected when the host is beyond loopback or workers run as jobs (`elastic`), ZeroMQ
    listens as well; with `transport` set to zmq it listens alone.
    reach: the name by which other machines reach this one; "" means its host name.
    Raises Unavailable if an address cannot be bound.
    """
    host = socket.gethostname()
    here = Connection("", host=host, pid=os.getpid(), token=_token_before(settings) or new_token())
    wires = Wires((), here, replace(here, token=""))
    if elastic or settings.transport == "zmq" or not is_loopback(settings.host):
        wires = _listen_beyond(settings, here, elastic=elastic, reach=reach or host)
    if settings.transport == "zmq":
        return wires
    unix = UnixListener(settings.dir)
    inside = unix.path.parent.resolve() == settings.dir.resolve()
    local = unix.path.name if inside else str(unix.path)
    return replace(
        wires,
        listeners=(unix, *wires.listeners),
        for_clients=replace(wires.for_clients, local=local),
        for_workers=replace(wires.for_workers, local=local),
    )


def _token_before(settings: Settings) -> str:
    """Return the token of a farm that was killed in this folder: its clients still have it."""
    with contextlib.suppress(Unavailable):
        return read_connection(settings.dir).token
    return ""


def _listen_beyond(settings: Settings, here: Connection, *, elastic: bool, reach: str) -> Wires:
    """Listen with ZeroMQ.

    Workers of an earlier farm that was not stopped in order may still run, in jobs or because its
    keeper started this one: with its keys and its ports, they join as soon as this farm starts.
    """
    from farm.transports.keys import forget_secret, keep_secret, predecessor
    from farm.transports.zmq.listener import ZmqListener

    folder = settings.dir
    outlives = elastic or keeper() is not None
    before = predecessor(folder) if outlives else None
    local = not elastic and is_loopback(settings.host)
    if local:
        interface = "tcp://127.0.0.1"
    elif settings.host in ANY_HOST or is_loopback(settings.host):
        interface = "tcp://*"
    else:
        interface = f"tcp://{settings.host}"

    def bound(**ports: str) -> ZmqListener:
        keys = before.keys if before else None
        return ZmqListener(interface, keys=keys, heartbeat_s=settings.heartbeat_s, **ports)

    if before is None:
        zmq = bound()
    else:
        here = replace(here, token=before.token)
        try:
            zmq = bound(clients_port=before.clients_port, workers_port=before.workers_port)
        except Unavailable:
            zmq = bound()

    def reached(there: Connection, token: str) -> Connection:
        port = there.endpoint.rpartition(":")[2]
        endpoint = there.endpoint if local else f"tcp://{reach}:{port}"
        return replace(there, endpoint=endpoint, host=here.host, pid=here.pid, token=token)

    return Wires(
        (zmq,),
        reached(zmq.for_clients, here.token),
        reached(zmq.for_workers, ""),
        keep=(lambda: keep_secret(folder, zmq.keys)) if outlives else (lambda: None),
        forget=lambda: forget_secret(folder),
    )
