"""MIP at an address: one model's requests in, answers out, on a loop that somebody else runs."""

from __future__ import annotations

import asyncio
import contextlib
import os

from farm.server.access import Access
from farm.server.door import Backend
from farm.server.listener import BACKLOG
from farm.server.mip_address import MipAddress, bound
from farm.server.mip_connection import PATIENCE, Connection, Patience
from farm.server.portions import Buffer
from farm.server.readers import READS_HERE, Reads
from farm.server.turns import Turns
from farm.settings import Settings
from farm.worker.open_files import allow_many_open_files

DEFAULTS = Settings()

LAST_WORDS_S = 1.0
"""How long answers on their way may take once everything else has ended."""


class MipServer:
    """One model at one address: `start` listens, `stop` ends in order."""

    def __init__(
        self,
        backend: Backend,
        address: MipAddress,
        *,
        access: Access,
        max_bytes: int = DEFAULTS.mip_max_bytes,
        patience: Patience = PATIENCE,
        readers: Reads = READS_HERE,
    ) -> None:
        """address: with the model's name; max_bytes: payload of the largest packet.

        readers: read and write long packets.
        """
        self._readers = readers
        self._access = access
        self.address = address
        self._backend = backend
        self._limit = max_bytes
        self._patience = patience
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._turns: Turns
        self._buffer = Buffer()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> MipAddress:
        """Listen; gives the address with its port. Raises Unavailable when it cannot be had."""
        allow_many_open_files()
        listener, self.address = bound(self.address)
        loop = asyncio.get_running_loop()
        self._turns = Turns(loop, 1)  # at which longer requests are read
        if self.address.path:
            listening = loop.create_unix_server(self._connection, sock=listener, backlog=BACKLOG)
        else:
            listening = loop.create_server(self._connection, sock=listener, backlog=BACKLOG)
        self._server = await listening
        self._look()
        return self.address

    def _connection(self) -> Connection:
        return Connection(
            self._backend,
            self.address.model,
            self._access,
            self._limit,
            self._patience,
            self._connections,
            self._turns,
            self._buffer,
            self._readers,
        )

    def _look(self) -> None:
        """See to all connections, again and again: one timer for all costs a call nothing."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            connection.look(now)
        self._timer = loop.call_later(self._patience.look_every_s, self._look)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take nothing new, let what runs end within `grace_s` seconds, answer the rest so."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        if self.address.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)
        for connection in list(self._connections):
            connection.end()
        await self._all_gone(grace_s)
        for connection in list(self._connections):
            connection.give_up()
        await self._all_gone(LAST_WORDS_S)
        for connection in list(self._connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()

    async def _all_gone(self, limit_s: float) -> None:
        if gone := [connection.gone for connection in self._connections]:
            await asyncio.wait(gone, timeout=limit_s)
