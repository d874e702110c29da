"""The gRPC server: methods by their paths on a port, on a loop that somebody else runs.

A method gets its request as bytes and gives bytes back, so that reading a message is the method's
and an error in it is answered as every other. HTTP/2 is farm's own: with grpcio's server, whose
threads hand each call over several times, a call costs ten times the processor time.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farm.errors import Unavailable
from farm.server.connections import Connections
from farm.server.exchange import Admits
from farm.server.grpc_call import Service
from farm.server.grpc_connection import Connection, Patience, Served
from farm.server.held import HeldBytes
from farm.server.listener import BACKLOG, listen
from farm.server.turns import Turns
from farm.worker.open_files import allow_many_open_files

LARGEST_MESSAGE = 2**32 - 1
"""Its length travels in four bytes."""

SHARE_OF_FILES = 4
"""A connection is an open file, and gRPC may have one of so many: its clients need few."""

HANDSHAKE_S = 10.0
"""How long a client may take for the handshake of TLS."""

LAST_WORDS_S = 1.0
"""How long answers on their way may take once everything else has ended."""


def check_packages() -> None:
    """Raises Unavailable, which names the extra, where the package that gRPC needs is missing."""
    try:
        importlib.import_module("google.protobuf")
    except ImportError:
        raise Unavailable(
            'gRPC needs the package protobuf: pip install "modelfarm[kserve]"'
        ) from None


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: the server's certificates, its own first, and the key."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For the server's end. Raises Unavailable when the files cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["h2"])
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            reason = error.strerror or str(error)
            raise Unavailable(
                f"certificate {self.certificate} with key {self.key} cannot be used: {reason}"
            ) from None
        return context


class GrpcServer:
    """Methods on a port: `start` listens, `stop` ends in order."""

    def __init__(
        self,
        service: Service,
        access: Admits,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_body_bytes: int = LARGEST_MESSAGE,
        tls: Tls | None = None,
        held: HeldBytes | None = None,
        patience: Patience = Patience(),  # noqa: B008  # it cannot be changed
    ) -> None:
        """port: 0 picks a free one; tls: None to speak in the clear.

        held: what long messages may take over all connections, perhaps of several servers.
        """
        self._service = service
        self._access = access
        self._host = host
        self._port = port
        self._limit = min(max_body_bytes, LARGEST_MESSAGE)
        self._tls = tls
        self._held = held or HeldBytes(1 << 62)
        self._patience = patience
        self._server: asyncio.Server | None = None
        self.connections: Connections | None = None  # while it runs

    async def start(self) -> tuple[str, int]:
        """Listen; gives the address. Raises Unavailable when it cannot be had."""
        context = None if self._tls is None else self._tls.context()
        listener = listen(self._host, self._port, port_option="--grpc-port")
        loop = asyncio.get_running_loop()
        connections = Connections(loop, allow_many_open_files() // SHARE_OF_FILES)
        self.connections = connections
        served = Served(
            self._service,
            self._access,
            self._limit,
            self._held,
            Turns(loop),
            connections,
            self._patience,
        )
        self._server = await loop.create_server(
            partial(Connection, served),
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            backlog=BACKLOG,
        )
        host, port = listener.getsockname()[:2]
        return str(host), int(port)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take nothing new, let what runs end within `grace_s` seconds, cut off the rest."""
        connections, self.connections = self.connections, None
        if self._server is None or connections is None:
            return
        self._server.close()
        self._service.end_streams()
        connections.end()
        await connections.wait_gone(grace_s)
        connections.give_up()
        await connections.wait_gone(LAST_WORDS_S)
        connections.close()
