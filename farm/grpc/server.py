"""The gRPC server: serves methods by their paths on a port, on the caller's event loop.

A method takes its request as bytes and returns bytes, so that it decodes the message itself and
decoding errors are answered like all others. HTTP/2 is farm's own: with grpcio's server, whose
threads hand each call over several times, a call costs ten times the processor time.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from farm.bodies.held import HeldBytes
from farm.errors import Unavailable
from farm.grpc.call import Service
from farm.grpc.connection import GrpcConnection, GrpcServerState, GrpcTimeouts
from farm.http1.access import Access
from farm.http1.call_ids import NOTHING_NAMED, Naming
from farm.http1.connections import Connections
from farm.http1.turns import Turns
from farm.machine.listener import BACKLOG, listen
from farm.machine.resources import allow_many_open_files
from farm.wording import needs, worded

T = TypeVar("T")

LARGEST_MESSAGE = 2**32 - 1
"""The length of a message has four bytes."""

SHARE_OF_FILES = 4
"""gRPC connections may use 1 / SHARE_OF_FILES of the open files: its clients need few."""

HANDSHAKE_S = 10.0
"""Seconds for a client's TLS handshake."""


def check_packages() -> None:
    """Raise Unavailable, naming the extra to install, if the package that gRPC needs is missing."""
    with needs("kserve", "gRPC needs the package protobuf", Unavailable):
        importlib.import_module("google.protobuf")


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the server's certificates, its own first, and its key."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context. Raises Unavailable if the files cannot be used."""
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


def _merged(all_methods: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {path: method for methods in all_methods for path, method in methods.items()}


class Services(Service):
    """The methods of several services as one."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._services = list(services)
        self.unary = _merged(s.unary for s in self._services)
        self.direct = _merged(s.direct for s in self._services)
        self.server_streams = _merged(s.server_streams for s in self._services)
        self.bidirectional = _merged(s.bidirectional for s in self._services)

    def end_streams(self) -> None:
        """End all streams because the server stops: they finish running work and close."""
        for service in self._services:
            service.end_streams()


class GrpcServer:
    """Serves methods on a port: `start` listens, `stop` shuts down in order."""

    def __init__(
        self,
        service: Service,
        access: Access,
        *,
        max_body_bytes: int = LARGEST_MESSAGE,
        held: HeldBytes | None = None,
        timeouts: GrpcTimeouts = GrpcTimeouts(),  # noqa: B008  # it is immutable
        naming: Naming = NOTHING_NAMED,
    ) -> None:
        """held: memory for long messages of all connections; several servers may share it."""
        self._service = service
        self._access = access
        self._limit = min(max_body_bytes, LARGEST_MESSAGE)
        self._held = held or HeldBytes(1 << 62)
        self._timeouts = timeouts
        self._naming = naming
        self._server: asyncio.Server | None = None
        self.connections: Connections | None = None  # while it runs

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: Tls | None = None
    ) -> tuple[str, int]:
        """Listen and return the address. Raises Unavailable if it cannot be bound.

        port: 0 picks a free one; tls: None serves without encryption.
        """
        context = None if tls is None else tls.context()
        listener = listen(host, port, port_option=worded("--grpc-port 0", "grpc_port=0"))
        loop = asyncio.get_running_loop()
        connections = Connections(loop, allow_many_open_files() // SHARE_OF_FILES)
        self.connections = connections
        served = GrpcServerState(
            *(self._service, self._access, self._limit, self._held, Turns(loop), connections),
            *(self._timeouts, self._naming),
        )
        self._server = await loop.create_server(
            partial(GrpcConnection, served),
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            backlog=BACKLOG,
        )
        host, port = listener.getsockname()[:2]
        return str(host), int(port)

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take no new calls, let running ones finish within `grace_s` seconds, then close."""
        connections, self.connections = self.connections, None
        if self._server is None or connections is None:
            return
        self._server.close()
        self._service.end_streams()
        await connections.stop(grace_s)
