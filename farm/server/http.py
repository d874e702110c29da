"""The HTTP server: a front door on a port, in a loop that somebody else runs."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from farm.server.connections import Connections
from farm.server.held import HeldBytes
from farm.server.http_connection import Connection, Served
from farm.server.http_patience import Patience
from farm.server.listener import BACKLOG, listen, listen_unix
from farm.server.turns import Turns
from farm.worker.open_files import allow_many_open_files

if TYPE_CHECKING:
    from farm.server.app import FrontDoor

LAST_WORDS_S = 1.0
"""How long answers on their way may take once everything else has ended."""

SHARE_OF_FILES = 2
"""A connection is an open file, and HTTP may have one of so many: workers, other protocols and
results need files too."""

ACCEPTED_IN_A_TURN = 4
"""Connections that are accepted in one turn of the loop. uvloop accepts one from each socket that
it listens to; at that rate a burst of connections would take as many turns."""

PATIENCE = Patience()


class HttpServer:
    """A front door on a port: `start` listens, `stop` ends in order.

    Signals are left alone, they belong to the program around it.
    """

    def __init__(
        self,
        front: FrontDoor,
        *,
        host: str = "127.0.0.1",
        port: int = 4242,
        unix: Path | None = None,
        held: HeldBytes | None = None,
        patience: Patience = PATIENCE,
        most_connections: int | None = None,
    ) -> None:
        """port: 0 picks a free one; unix: the path of a socket that is served too.

        held: what bodies may take over all connections, perhaps of several servers.
        most_connections: None for as many as this process may have files.
        """
        self._front = front
        self._host = host
        self._port = port
        self.unix = unix
        self._held = held or HeldBytes(1 << 62)
        self._patience = patience
        self._most = most_connections
        self._servers: list[asyncio.Server] = []
        self.connections: Connections | None = None  # while it runs

    async def start(self) -> tuple[str, int]:
        """Listen; gives the address. Raises Unavailable when it cannot be had."""
        files = allow_many_open_files()
        loop = asyncio.get_running_loop()
        listener = listen(self._host, self._port)
        try:
            local = None if self.unix is None else listen_unix(str(self.unix))
        except BaseException:
            listener.close()
            raise
        connections = Connections(loop, self._most or files // SHARE_OF_FILES)
        self.connections = connections
        served = Served(
            self._front, self._held, Turns(loop), Turns(loop, 1), connections, self._patience
        )
        made = partial(Connection, served)
        for sock in _several(listener):
            self._servers.append(await loop.create_server(made, sock=sock, backlog=BACKLOG))
        for sock in () if local is None else _several(local):
            self._servers.append(await loop.create_unix_server(made, sock=sock, backlog=BACKLOG))
        host, port = listener.getsockname()[:2]
        return str(host), int(port)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop listening, let requests that run end within `grace_s` seconds, close the rest.

        Calls that do not end in time are answered with Unavailable.
        """
        connections, self.connections = self.connections, None
        if connections is None:
            return
        for server in self._servers:
            server.close()
        self._servers = []
        connections.end()
        await connections.wait_gone(grace_s)
        answering = self._front.cancel()
        connections.give_up()
        if answering:
            await asyncio.wait(answering, timeout=LAST_WORDS_S)
        await connections.wait_gone(LAST_WORDS_S)
        connections.close()
        if self.unix is not None:
            self.unix.unlink(missing_ok=True)


def _several(listener: socket.socket) -> list[socket.socket]:
    """Sockets that share the queue of a listening one, which is the first of them."""
    return [listener, *(listener.dup() for _ in range(ACCEPTED_IN_A_TURN - 1))]
