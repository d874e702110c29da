"""Where a farm listens for its own messages: a socket in its run folder, ZeroMQ beyond."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from farm.errors import Unavailable
from farm.settings import ANY_HOST, Settings
from farm.transports.connection import Connection, is_loopback, new_token
from farm.transports.peers import Listener
from farm.transports.stream.listener import UnixListener


@dataclass(frozen=True, slots=True)
class Wires:
    """What a farm listens with, and what the files for clients and workers say of it.

    keep: writes what the farm after this one needs to take its place; forget: undoes that.
    """

    listeners: Sequence[Listener]
    for_clients: Connection
    for_workers: Connection
    keep: Callable[[], None] = lambda: None
    forget: Callable[[], None] = lambda: None


def listen(settings: Settings, *, elastic: bool, reach: str = "") -> Wires:
    """Listen, as it suits the settings.

    On one machine that is a unix socket, and no TCP port is open. Other machines are expected with
    a host beyond loopback, or when workers come as jobs (`elastic`); then ZeroMQ is there as well,
    and alone with `transport` set to zmq.
    reach: the name by which others reach this machine; its host name unless said.
    Raises Unavailable when no address can be had.
    """
    host = socket.gethostname()
    here = Connection("", host=host, pid=os.getpid(), token=new_token())
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


def _listen_beyond(settings: Settings, here: Connection, *, elastic: bool, reach: str) -> Wires:
    """Listen with ZeroMQ.

    Jobs of a farm that was here before and had no time to stop may live: with its keys, at its
    ports, their workers join this one as soon as it is there.
    """
    from farm.transports.keys import forget_secret, keep_secret, predecessor
    from farm.transports.zmq import ZmqListener

    folder = settings.dir
    before = predecessor(folder) if elastic else None
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
        keep=lambda: keep_secret(folder, zmq.keys),
        forget=lambda: forget_secret(folder),
    )
