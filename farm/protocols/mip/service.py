"""The MIP server: serves one model per address, on the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from farm.bodies.readers import READS_HERE, Reads
from farm.dispatcher.dispatcher import Dispatcher
from farm.http1.access import Access
from farm.http1.connections import Connections
from farm.http1.turns import Buffer, Turns
from farm.machine.listener import BACKLOG, listen, listen_unix, several
from farm.machine.resources import allow_many_open_files
from farm.protocols.interface import Endpoints, Listening, Site
from farm.protocols.mip.address import MipAddress, check_models, only
from farm.protocols.mip.connection import MipConnection
from farm.protocols.mip.protocol import MAX_BYTES
from farm.wording import worded

ONLY = "the only model"

ACCEPTED_AT_ONCE = 4
"""Connections accepted per turn of the loop. Each call has a connection of its own; with one a
turn, a call of 16 callers costs the front door a quarter more. More than four gain nothing."""


@dataclass(frozen=True, slots=True)
class MipTimeouts:
    """Time limits for a client, in seconds.

    head_s: for a header that has begun; body_s: for its payload, plus one second for each `rate`
    bytes; idle_s: between requests, and to read an answer. drain_s, drain_bytes: time and bytes
    that a client may still use after a fatal error. look_every_s: interval between checks.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    rate: float = 64 * 1024
    idle_s: float = 60.0
    drain_s: float = 2.0
    drain_bytes: int = 64 << 20
    look_every_s: float = 1.0


TIMEOUTS = MipTimeouts()


@dataclass(slots=True)
class MipServed:
    """The settings that all connections of one address share.

    model: the one that is served; "": the farm's only model. limit: payload bytes of one packet.
    turns: in which longer requests are decoded. readers: decode and encode long packets.
    """

    backend: Dispatcher
    model: str
    access: Access
    limit: int
    turns: Turns
    connections: Connections
    timeouts: MipTimeouts = TIMEOUTS
    readers: Reads = READS_HERE
    buffer: Buffer = field(default_factory=Buffer)


def serve(site: Site) -> Endpoints:
    """Return the protocol's endpoints: one model at each address in the options."""
    if not site.options.addresses:
        return Endpoints()
    servers = _Servers(site)
    return Endpoints(listener=servers, check=servers.check)


class _Servers:
    """The MIP servers of one farm."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._servers: list[MipServer] = []
        self._served: dict[str, str] = {}

    def check(self, models: Collection[str]) -> None:
        check_models(self._site.options.addresses, models)
        self._served.update((at, only(models)) for at, model in self._served.items() if not model)

    async def start(self) -> Listening:
        site, options = self._site, self._site.options
        served = self._served
        for address in options.addresses:
            server = MipServer(
                site.backend,
                address,
                access=site.open_access,
                max_bytes=options.max_bytes,
                readers=site.readers,
            )
            self._servers.append(server)
            served[str(await server.start())] = server.address.model
        lines = [f"MIP for {model or ONLY} at {place}" for place, model in served.items()]
        return Listening(served, lines)

    async def stop(self, grace_s: float) -> None:
        await asyncio.gather(*[server.stop(grace_s) for server in self._servers])


def bound(address: MipAddress) -> tuple[socket.socket, MipAddress]:
    """Return a listening socket, and the address with its port. Raises Unavailable."""
    if not address.path:
        listener = listen(
            address.host, address.port, port_option=f"with {worded('--mip', 'mip=')}, port 0"
        )
        return listener, MipAddress(address.model, address.host, listener.getsockname()[1])
    return listen_unix(address.path), address


class MipServer:
    """Serves one model at one address: `start` listens, `stop` shuts down in order."""

    def __init__(
        self,
        backend: Dispatcher,
        address: MipAddress,
        *,
        access: Access,
        max_bytes: int = MAX_BYTES,
        timeouts: MipTimeouts = TIMEOUTS,
        readers: Reads = READS_HERE,
    ) -> None:
        """max_bytes: payload of the largest packet.

        readers: decode and encode long packets.
        """
        self.address = address
        loop = asyncio.get_running_loop()
        turns = Turns(loop, 1)  # decoding longer requests takes turns of its own
        connections = Connections(loop, sys.maxsize, timeouts.look_every_s)
        about = (backend, address.model, access, max_bytes, turns, connections, timeouts, readers)
        self._served = MipServed(*about)
        self._servers: list[asyncio.Server] = []

    async def start(self) -> MipAddress:
        """Listen and return the address with its port. Raises Unavailable if it cannot be bound."""
        allow_many_open_files()
        listener, self.address = bound(self.address)
        loop = asyncio.get_running_loop()
        made = partial(MipConnection, self._served)
        serve = loop.create_unix_server if self.address.path else loop.create_server
        for sock in several(listener, ACCEPTED_AT_ONCE):
            self._servers.append(await serve(made, sock=sock, backlog=BACKLOG))
        return self.address

    @property
    def open_connections(self) -> int:
        """Number of clients that are connected."""
        return len(self._served.connections)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no new requests, let running ones end within `grace_s` seconds, fail the rest."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        if servers and self.address.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)
        await self._served.connections.stop(grace_s)
