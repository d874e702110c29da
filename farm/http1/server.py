"""The HTTP server: serves a front door on a port, on the caller's event loop."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from farm.bodies.held import HeldBytes
from farm.http1.call_ids import NOTHING_NAMED, Naming
from farm.http1.connection import HttpConnection
from farm.http1.connections import Connections, HttpTimeouts
from farm.http1.request import Routes
from farm.http1.turns import Buffer, Turns
from farm.machine.listener import BACKLOG, listen, listen_unix, several
from farm.machine.resources import allow_many_open_files

SHARE_OF_FILES = 2
"""HTTP connections may use 1 / SHARE_OF_FILES of the process's open files; workers, other protocols
and results need files too."""

TIMEOUTS = HttpTimeouts()


@dataclass(slots=True)
class Traffic:
    """Bytes in both directions since the start."""

    received: int = 0
    sent: int = 0

    def receives(self, count: int) -> None:
        """Count bytes that were received."""
        self.received += count

    def sends(self, count: int) -> None:
        """Count bytes that were sent."""
        self.sent += count

    def shown(self) -> dict[str, int]:
        """Return the counts as JSON data."""
        return asdict(self)


@dataclass(slots=True)
class HttpServerState:
    """State shared by all connections of a server. bodies: queue of long bodies to handle."""

    front: Routes
    held: HeldBytes
    turns: Turns
    bodies: Turns
    connections: Connections
    timeouts: HttpTimeouts
    traffic: Traffic = field(default_factory=Traffic)
    naming: Naming = NOTHING_NAMED
    buffer: Buffer = field(default_factory=Buffer)


class HttpServer:
    """Serves a front door on a port: `start` listens, `stop` shuts down in order.

    It leaves signals to the surrounding program.
    """

    def __init__(
        self,
        front: Routes,
        *,
        held: HeldBytes | None = None,
        timeouts: HttpTimeouts = TIMEOUTS,
        most_connections: int | None = None,
        naming: Naming = NOTHING_NAMED,
    ) -> None:
        """held: memory for bodies of all connections; several servers may share it.

        most_connections: None derives it from the number of files that this process may open.
        """
        self._front = front
        self._held = held or HeldBytes(1 << 62)
        self._timeouts = timeouts
        self._most = most_connections
        self._naming = naming
        self.unix: Path | None = None
        self._servers: list[asyncio.Server] = []
        self.connections: Connections | None = None  # while it runs
        self.traffic = Traffic()

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, unix: Path | None = None
    ) -> tuple[str, int]:
        """Listen and return the address. Raises Unavailable if it cannot be bound.

        port: 0 picks a free one; unix: path of a socket that is served too.
        """
        files = allow_many_open_files()
        loop = asyncio.get_running_loop()
        listener = listen(host, port)
        try:
            local = None if unix is None else listen_unix(str(unix))
        except BaseException:
            listener.close()
            raise
        self.unix = unix
        connections = Connections(loop, self._most or files // SHARE_OF_FILES)
        self.connections = connections
        served = HttpServerState(
            *(self._front, self._held, Turns(loop), Turns(loop, 1), connections),
            *(self._timeouts, self.traffic, self._naming),
        )
        made = partial(HttpConnection, served)
        for sock in several(listener):
            self._servers.append(await loop.create_server(made, sock=sock, backlog=BACKLOG))
        for sock in () if local is None else several(local):
            self._servers.append(await loop.create_unix_server(made, sock=sock, backlog=BACKLOG))
        host, port = listener.getsockname()[:2]
        return str(host), int(port)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop listening, let running requests finish within `grace_s` seconds, close the rest.

        Calls that do not end in time are answered with Unavailable.
        """
        connections, self.connections = self.connections, None
        if connections is None:
            return
        for server in self._servers:
            server.close()
        self._servers = []
        await connections.stop(grace_s, self._front.cancel)
        if self.unix is not None:
            self.unix.unlink(missing_ok=True)
