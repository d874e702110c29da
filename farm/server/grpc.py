"""The gRPC server: methods by their paths on a port, on a loop that somebody else runs.

grpcio has the connections; a method gets its request as bytes and gives bytes back, so that reading
a message is the method's and an error in it is answered as every other. Needs the extra `kserve`.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from farm.errors import FarmError, Unavailable
from farm.protocols.kserve import ERRORS
from farm.server.door import INTERNAL_ERROR, Headers, Refused
from farm.server.exchange import Admits
from farm.server.http import listen

logger = logging.getLogger(__name__)

LARGEST_MESSAGE = 2**31 - 1
"""grpcio counts the bytes of a message in an int."""

LONGEST_DETAILS = 1000
"""Characters of an error's text: it travels in a header, and clients take 8 KiB of those."""

PING_EVERY_S, PING_ANSWER_S = 60, 20
"""A peer that vanished is noticed within so long."""

READ = frozenset(
    {
        *("authorization", "forwarded", "x-forwarded-for", "x-real-ip"),
        *("farm-client", "farm-priority", "farm-deadline"),
    }
)
"""Metadata that means something here."""


class Caller(NamedTuple):
    """Who asks. peer: the host; user: the Basic name or ""; remaining_s: until its deadline."""

    peer: str
    user: str
    headers: Headers
    remaining_s: float | None


Write = Callable[[bytes], Awaitable[None]]
Unary = Callable[[bytes, Caller], Awaitable[bytes]]
"""One message for one; raises FarmError."""

Requests = AsyncIterator[bytes]
ServerStream = Callable[[bytes, Write, Caller], Awaitable[None]]
"""One message for many, each of which `Write` sends."""

Bidirectional = Callable[[Requests, Write, Caller], Awaitable[None]]
"""Many for many."""


class Service(Protocol):
    """Methods by their paths, such as `/inference.GRPCInferenceService/ModelInfer`."""

    unary: Mapping[str, Unary]
    server_streams: Mapping[str, ServerStream]
    bidirectional: Mapping[str, Bidirectional]

    def end_streams(self) -> None:
        """The server ends: streams finish what they run and close."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: the server's certificates, its own first, and the key."""

    certificate: Path
    key: Path


def grpcio() -> Any:
    """The package `grpc`. Raises Unavailable where it is not installed."""
    try:
        import grpc
        import grpc.aio
    except ImportError:
        raise Unavailable('gRPC needs grpcio: pip install "modelfarm[kserve]"') from None
    return grpc


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
    ) -> None:
        """port: 0 picks a free one; tls: None to speak in the clear. Raises Unavailable."""
        self._grpc = grpcio()
        self._service = service
        self._access = access
        self._host = host
        self._port = port
        self._limit = min(max_body_bytes, LARGEST_MESSAGE)
        self._tls = tls
        self._server: Any = None
        self._handlers = self._all_handlers(service)

    async def start(self) -> tuple[str, int]:
        """Listen; gives the address. Raises Unavailable when it cannot be had."""
        credentials = None if self._tls is None else self._credentials(self._tls)
        # The operating system's reason goes to stderr in grpcio, so it is asked for beforehand.
        listen(self._host, self._port, port_option="--grpc-port").close()
        server = self._grpc.aio.server(handlers=[self], options=self._options())
        host = f"[{self._host}]" if ":" in self._host else self._host or "[::]"
        address = f"{host}:{self._port}"
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address}: {error}; --grpc-port 0 picks a free one"
            ) from None
        await server.start()
        self._server = server
        return self._host, port

    async def stop(self, grace_s: float = 10.0) -> None:
        """Take nothing new, let what runs end within `grace_s` seconds, cut off the rest."""
        server, self._server = self._server, None
        if server is not None:
            self._service.end_streams()
            await server.stop(grace_s)

    def _credentials(self, tls: Tls) -> Any:
        try:
            # Python says what is wrong with them, gRPC does not.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                tls.certificate, tls.key
            )
            pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error)
            raise Unavailable(
                f"certificate {tls.certificate} with key {tls.key} cannot be used: {reason}"
            ) from None
        return self._grpc.ssl_server_credentials([pair])

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._limit),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a port that is taken is an error
            ("grpc.keepalive_time_ms", PING_EVERY_S * 1000),
            ("grpc.keepalive_timeout_ms", PING_ANSWER_S * 1000),
            # Clients may probe an idle connection, as often as they like.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_ping_strikes", 0),
        ]

    # Methods, as grpcio asks for them

    def service(self, details: Any) -> Any:
        """The handler of the method that a call is for; None: there is none of that name."""
        return self._handlers.get(details.method)

    def _all_handlers(self, service: Service) -> dict[str, Any]:
        grpc = self._grpc
        kinds: list[tuple[Mapping[str, Any], Callable[[Any], Any], Any]] = [
            (service.unary, self._unary, grpc.unary_unary_rpc_method_handler),
            (service.server_streams, self._stream, grpc.unary_stream_rpc_method_handler),
            (service.bidirectional, self._stream, grpc.stream_stream_rpc_method_handler),
        ]
        return {
            path: handler(wrapped(method))
            for methods, wrapped, handler in kinds
            for path, method in methods.items()
        }

    def _unary(self, method: Unary) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def handle(body: bytes, context: Any) -> bytes:
            try:
                return await method(body, self._caller(context))
            except Exception as error:
                return await self._abort(context, error)

        return handle

    def _stream(self, method: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def handle(requests: Any, context: Any) -> None:
            try:
                await method(requests, context.write, self._caller(context))
            except Exception as error:
                await self._abort(context, error)

        return handle

    def _caller(self, context: Any) -> Caller:
        """Who asks. Raises Refused when it may not come in."""
        headers = {
            name.encode(): value.encode()
            for name, value in context.invocation_metadata()
            if name in READ
        }
        peer = host_of(context.peer())
        user = self._access.user(peer, headers)
        return Caller(peer, user, headers, context.time_remaining())

    async def _abort(self, context: Any, error: Exception) -> bytes:
        """Answer with an error's status and text; raises what ends the handler."""
        if isinstance(error, FarmError):
            status, text = ERRORS[type(error)][1], error.message
            if error.detail:
                logger.debug("%s\n%s", text, error.detail)
        elif isinstance(error, Refused):
            status, text = "UNAUTHENTICATED", error.message
        else:
            logger.error("answering a gRPC call", exc_info=error)
            status, text = "INTERNAL", INTERNAL_ERROR
        if len(text) > LONGEST_DETAILS:
            text = f"{text[: LONGEST_DETAILS - 3]}..."
        details = text.encode("utf-8", "replace").decode()
        await context.abort(self._grpc.StatusCode[status], details)
        raise AssertionError("abort raises")


@lru_cache(maxsize=4096)
def host_of(peer: str) -> str:
    """The host of what gRPC calls a peer: `ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")
