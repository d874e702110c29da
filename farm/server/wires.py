"""The run folder of a farm, and where it listens for its own messages: a Unix socket, and ZeroMQ.

One running farm uses a folder at a time. Its connection files say where the farm listens.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from farm.errors import Unavailable
from farm.machine.addresses import is_loopback
from farm.machine.keeper_line import keeper
from farm.machine.private import make_private_folder, remove_abandoned, remove_unfinished
from farm.settings import ANY_HOST, Settings
from farm.storage.lock import is_alive
from farm.transports.connection import (
    CLIENTS_FILE,
    WORKERS_FILE,
    Connection,
    new_token,
    read_connection,
    write_connection,
)
from farm.transports.dial import accepts_tcp
from farm.transports.peers import Listener
from farm.transports.stream.listener import UnixListener
from farm.wording import worded

RUN_FOLDER = ("farm.*", ".farm.*", "workers.*", "logs", "jobs", "experiments.db*")
"""Files that farms create in a run folder; a folder with other files is not farm's alone."""


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
    reach: the name by which other machines reach this one; "" means the address that is bound, or
    this machine's name where that is any address.
    Raises Unavailable if an address cannot be bound.
    """
    host = socket.gethostname()
    token = ""
    with contextlib.suppress(Unavailable):  # clients of a farm that was killed here still have it
        token = read_connection(settings.dir).token
    here = Connection("", host=host, pid=os.getpid(), token=token or new_token())
    wires = Wires((), here, replace(here, token=""))
    if elastic or settings.transport == "zmq" or not is_loopback(settings.host):
        wires = _listen_beyond(settings, here, elastic=elastic, reach=reach)
    if settings.transport == "zmq":
        return wires
    unix = UnixListener(settings.dir)
    path = unix.place.path
    local = path.name if path.parent.resolve() == settings.dir.resolve() else str(path)
    return replace(
        wires,
        listeners=(unix, *wires.listeners),
        for_clients=replace(wires.for_clients, local=local),
        for_workers=replace(wires.for_workers, local=local),
    )


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
        bound_to = f"[{settings.host}]" if ":" in settings.host else settings.host
        interface = f"tcp://{bound_to}"
        reach = reach or bound_to  # the machine's name may lead to another of its networks

    def bound(**ports: str) -> ZmqListener:
        keys = before.keys if before else None
        return ZmqListener(interface, keys=keys, heartbeat_s=settings.heartbeat_s, **ports)

    zmq = None
    if before is not None:
        here = replace(here, token=before.token)
        with contextlib.suppress(Unavailable):
            zmq = bound(clients_port=before.clients_port, workers_port=before.workers_port)
    zmq = zmq or bound()

    def reached(there: Connection, token: str) -> Connection:
        port = there.endpoint.rpartition(":")[2]
        endpoint = there.endpoint if local else f"tcp://{reach or here.host}:{port}"
        return replace(there, endpoint=endpoint, host=here.host, pid=here.pid, token=token)

    return Wires(
        (zmq,),
        reached(zmq.for_clients, here.token),
        reached(zmq.for_workers, ""),
        keep=(lambda: keep_secret(folder, zmq.keys)) if outlives else (lambda: None),
        forget=lambda: forget_secret(folder),
    )


class RunFolder:
    """The folder of one running farm, with its connection files: taken, published, left.

    connection: the address and keys for clients, once they are published.
    """

    def __init__(self, folder: Path) -> None:
        self.connection = Connection("")
        self.for_clients = folder / CLIENTS_FILE
        self.for_workers = folder / WORKERS_FILE
        self._folder = folder
        self._forget: Callable[[], None] = lambda: None

    def take(self) -> None:
        """Claim the folder. Raises Unavailable if a running farm uses it.

        Removes the temporary folders of programs that were killed.
        """
        with contextlib.suppress(OSError):
            remove_abandoned()
        try:
            make_private_folder(self._folder, known=RUN_FOLDER)
        except OSError as error:
            raise Unavailable(f"run folder {self._folder} cannot be made: {error}") from None
        other = ""
        with contextlib.suppress(Unavailable):
            before = read_connection(self.for_clients)
            if before.host != socket.gethostname():
                if accepts_tcp(before.endpoint):
                    answers = f"as something answers at {before.endpoint}"
                    other = f"a farm on {before.host} runs in {self._folder} already, {answers}"
            elif before.pid != os.getpid() and is_alive(before.pid):
                other = f"a farm (process {before.pid}) runs in {self._folder} already"
        if other:
            raise Unavailable(
                f"{other}; stop it, or give this one its own {worded('--dir', 'dir=')}"
            )
        remove_unfinished(self._folder)

    def publish(self, wires: Wires) -> None:
        """Write the connection files, and keep what a farm started after a crash takes over."""
        write_connection(self.for_workers, wires.for_workers)
        self.update(wires.for_clients)
        wires.keep()
        self._forget = wires.forget

    def update(self, connection: Connection) -> None:
        """Write the file for clients again, with more addresses."""
        self.connection = connection
        write_connection(self.for_clients, connection)

    def leave(self) -> None:
        """Remove the files, unless another farm has taken the folder."""
        with contextlib.suppress(FileNotFoundError, Unavailable):
            if read_connection(self.for_clients).pid == os.getpid():
                self.for_clients.unlink()
                self.for_workers.unlink()
                self._forget()
