"""The doors of a farm: its HTTP and gRPC servers, and protocols with addresses of their own.

HTTP handlers are called before the FastAPI application, not inside it: its layers would lower the
rate of calls by a third.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from starlette.types import ASGIApp

from farm.bodies.held import HeldBytes
from farm.call import CancelCall, ModelInfo
from farm.descriptors import Protocol, resolve
from farm.dispatcher.dispatcher import Dispatcher
from farm.errors import Unavailable
from farm.grpc.reflection import Reflection
from farm.grpc.server import GrpcServer, Services, Tls
from farm.http1.access import Access
from farm.http1.asgi import Application
from farm.http1.call_ids import Naming, call_ids
from farm.http1.request import Handler
from farm.http1.server import HttpServer
from farm.machine.resources import usable_memory
from farm.monitoring.tracing import Tracing
from farm.protocols.interface import Endpoints, ProtocolListener, Site
from farm.server.metrics import metrics_handler
from farm.server.page import status_page
from farm.settings import ANY_HOST, Settings, option_values
from farm.transports.connection import Connection

T = TypeVar("T")

DEFAULTS = Settings()

SHARE_OF_MEMORY = 4
"""Bodies may use 1 / SHARE_OF_MEMORY of the memory: as arrays, in queues and in answers they
take as much again."""


def checked_options(
    protocols: Iterable[Protocol], settings: Settings
) -> list[tuple[Protocol, Any]]:
    """Return the protocols with their checked options. Raises SettingsError."""
    found = []
    for protocol in protocols:
        values = option_values(settings, protocol.options)
        check = resolve(protocol.check) if protocol.check else lambda values, _: values
        found.append((protocol, check(values, settings)))
    return found


def endpoints_of(protocols: Iterable[tuple[Protocol, Any]], site: Site) -> dict[str, Endpoints]:
    """Return the endpoints that protocols serve at the site with their options, by name."""
    return {
        protocol.name: resolve(protocol.serve)(replace(site, options=options))
        for protocol, options in protocols
    }


def front_door(site: Site, served: Iterable[Endpoints]) -> Router:
    """Return the HTTP side of the endpoints, with the status page and the metrics.

    Raises Unavailable if two protocols answer the same requests.
    """
    served = list(served)
    paths: dict[str, Handler] = {}
    for each in served:
        if taken := paths.keys() & each.paths.keys():
            raise Unavailable(f"two protocols answer {min(taken)}; expected one")
        paths |= each.paths
    metrics = [each.metrics for each in served if each.metrics is not None]
    paths |= {"/": status_page, "/metrics": metrics_handler(site.backend, metrics)}
    finds = [each.find for each in served if each.find is not None]
    waits = [each.waits for each in served if each.waits is not None]

    def find(path: str) -> Handler | Application | None:
        for look in finds:
            found = look(path)
            if found is not None:
                return found
        return None

    together = Endpoints(
        paths,
        find,
        root=_only([each.root for each in served if each.root], "POST at /"),
        otherwise=_only([each.otherwise for each in served if each.otherwise], "every other path"),
        waits=lambda *request: any(wait(*request) for wait in waits),
    )
    limit = site.settings.max_body_bytes
    return Router(together, site.access, max_body_bytes=limit, backend=site.backend)


def load_late() -> None:
    """Import what the metrics and farm's own interface need, before the first requests for them.

    That takes half a second, which a front door does not need to open.
    """
    import fastapi.responses  # noqa: F401
    import prometheus_client.core
    import prometheus_client.exposition  # noqa: F401


def _only(claims: Sequence[T], what: str) -> T:
    """Return the only element. Raises Unavailable if there are none or several."""
    if len(claims) != 1:
        raise Unavailable(f"{len(claims)} protocols answer {what}; expected one")
    return claims[0]


class Router:
    """The handlers by path, the ASGI application for all other paths, and the access rules."""

    def __init__(
        self,
        endpoints: Endpoints,
        access: Access,
        *,
        max_body_bytes: int = DEFAULTS.max_body_bytes,
        backend: Dispatcher | None = None,
    ) -> None:
        """endpoints: of all protocols together. backend: has the models that requests wait for."""
        self._backend = backend
        self._models = None if backend is None else backend.models()
        self._waits = endpoints.waits
        self.access = access
        self.max_body_bytes = max_body_bytes
        self._handlers = endpoints.paths
        self._root = endpoints.root
        self._found = endpoints.find or (lambda path: None)
        self.otherwise = Application(cast(ASGIApp, endpoints.otherwise))
        self._applications = {self.otherwise}

    def handler(self, method: str, path: str) -> Handler | Application | None:
        """Return the handler of exactly this path, or the one that a protocol finds for it."""
        if path == "/" and method == "POST" and self._root is not None:
            return self._root
        found = self._handlers.get(path) or self._found(path)
        if isinstance(found, Application):
            self._applications.add(found)
        return found

    def wait(self, method: str, path: str, go: Callable[[], None]) -> CancelCall | None:
        """Call `go` later if the request waits for the first models; None if it does not."""
        models, backend, waits = self._models, self._backend, self._waits
        if models is None or backend is None or waits is None:
            return None
        if models and not backend.first_worker.expected.incomplete:
            return None
        if not waits(method, path, models):
            return None
        return backend.first_worker.when_known(go, lambda: not waits(method, path, models))

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel the applications' answers; return the tasks that still have to end."""
        return set().union(*(application.cancel() for application in self._applications))


class Doors:
    """Serves the endpoints of protocols at a site, from `open` to `close`.

    connection: for clients, with the addresses that are open. announced: lines for the user about
    these. Raises Unavailable if two protocols answer the same requests.
    """

    def __init__(
        self,
        site: Site,
        served: Mapping[str, Endpoints],
        connection: Connection,
        *,
        tracing: Tracing | None = None,
    ) -> None:
        """served: endpoints by the name of their protocol. tracing: makes spans of requests."""
        settings = site.settings
        self.connection = connection
        self.announced: list[str] = []
        self._site = site
        self._served = served
        self._naming = Naming(call_ids() if settings.log_format == "json" else None, tracing)
        self._held = HeldBytes(settings.max_held_bytes or usable_memory() // SHARE_OF_MEMORY)
        front = front_door(site, served.values())
        self._http = HttpServer(front, held=self._held, naming=self._naming)
        self._opened: list[ProtocolListener | HttpServer | GrpcServer] = [self._http]

    async def open(self) -> None:
        """Open those for HTTP and gRPC. Raises Unavailable; `close` then closes what is open."""
        settings = self._site.settings
        _, port = await self._http.start(settings.host, settings.port, unix=settings.unix)
        reach = self.connection.host if settings.host in ANY_HOST else settings.host
        self.connection = replace(self.connection, url=f"http://{reach}:{port}")
        if settings.grpc_port is not None:
            services = [each.grpc() for each in self._served.values() if each.grpc is not None]
            services.append(Reflection(each.grpc_descriptors for each in self._served.values()))
            server = GrpcServer(
                Services(services),
                self._site.access,
                max_body_bytes=settings.max_body_bytes,
                held=self._held,
                naming=self._naming,
            )
            self._opened.append(server)
            tls = None
            if settings.grpc_tls_cert is not None and settings.grpc_tls_key is not None:
                tls = Tls(settings.grpc_tls_cert, settings.grpc_tls_key)
            _, port = await server.start(settings.host, settings.grpc_port, tls=tls)
            self.connection = replace(self.connection, grpc=f"{reach}:{port}")
        self._site.backend.add_part("http", self._http.traffic.shown)
        threading.Thread(target=load_late, name="imports", daemon=True).start()

    async def listen(self) -> None:
        """Open those of protocols with addresses of their own; raises as `open` does."""
        for name, each in self._served.items():
            if each.listener is not None:
                self._opened.append(each.listener)  # before it starts, which may fail halfway
                opened = await each.listener.start()
                self.announced += opened.lines
                addresses = {**self.connection.addresses, name: opened.address}
                self.connection = replace(self.connection, addresses=addresses)

    def check(self, models: Mapping[str, ModelInfo]) -> None:
        """Raise SettingsError if a protocol's options do not fit the farm's models."""
        for each in self._served.values():
            if each.check is not None:
                each.check(models)

    async def close(self, grace_s: float) -> None:
        """Close all at once; running requests have `grace_s` seconds to end."""
        await asyncio.gather(*(door.stop(grace_s) for door in self._opened))
        for each in self._served.values():
            if each.close is not None:
                each.close()
