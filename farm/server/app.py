"""The way in: a path is looked up, and its protocol's door answers, or else the application.

The doors stand in front of the FastAPI application and not inside it, where the way through its
layers would cost a call a third of its speed.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from farm.protocols.json_numbers import NonFinite
from farm.server.access import Access
from farm.server.asgi import Application
from farm.server.door import Backend, Door
from farm.server.graphpipe import GraphPipeDoor
from farm.server.graphpipe import is_below as is_graphpipe
from farm.server.kserve import KServeDoor
from farm.server.kserve_paths import is_below, is_stream
from farm.server.kserve_repository import Repository
from farm.server.kserve_stream import KServeStreams
from farm.server.metrics import metrics_door
from farm.server.readers import READS_HERE, Reads
from farm.server.stream import IN_FLIGHT
from farm.server.umbridge import PATHS, UmBridgeDoor
from farm.settings import Settings

DEFAULTS = Settings()


def create_app(
    backend: Backend,
    *,
    access: Access,
    settings: Settings = DEFAULTS,
    in_flight: int = IN_FLIGHT,
    repository: Repository | None = None,
    readers: Reads = READS_HERE,
) -> FrontDoor:
    """The way in to `backend`, which is the dispatcher or something like it.

    access: says who may come in; settings: of them
    max_body_bytes, non_finite and graphpipe_default; in_flight: points of one streamed request at
    work at once; repository: KServe's, where another door has a share in it; readers: read and
    write long messages.
    """
    limit, non_finite = settings.max_body_bytes, NonFinite(settings.non_finite)
    umbridge = UmBridgeDoor(backend, non_finite=non_finite, readers=readers)
    api = Later(
        "farm.server.api",
        "create_api",
        backend,
        non_finite=non_finite,
        in_flight=in_flight,
        readers=readers,
    )
    doors: dict[str, Door] = {str(path): umbridge for path in PATHS}
    graphpipe = GraphPipeDoor(backend, default=settings.graphpipe_default, readers=readers)
    doors |= {"/": graphpipe, "/metrics": metrics_door(backend)}
    repository = repository or Repository(backend)
    kserve = KServeDoor(backend, repository, non_finite=non_finite, readers=readers)
    streams = KServeStreams(backend, repository, non_finite=non_finite, readers=readers)
    return FrontDoor(
        doors,
        api,
        access,
        max_body_bytes=limit,
        kserve=(kserve, streams),
        graphpipe=graphpipe,
    )


class Later:
    """An ASGI application that is imported and made when the first request is for it.

    FastAPI takes as long to import as all the rest of a front door, and many a farm never needs it.
    """

    def __init__(self, module: str, name: str, /, *arguments: Any, **options: Any) -> None:
        """Where the function that makes it is, and what that is called with."""
        self._module = module
        self._name = name
        self._arguments = arguments
        self._options = options
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            # In a thread: meanwhile calls come and go.
            module = await asyncio.to_thread(importlib.import_module, self._module)
            if self._app is None:  # nobody was quicker
                self._app = getattr(module, self._name)(*self._arguments, **self._options)
        await self._app(scope, receive, send)


class FrontDoor:
    """The doors by their paths, the ASGI application for all other paths, and who may come in."""

    def __init__(
        self,
        doors: Mapping[str, Door],
        otherwise: ASGIApp,
        access: Access,
        *,
        max_body_bytes: int = DEFAULTS.max_body_bytes,
        kserve: tuple[Door, KServeStreams] | None = None,
        graphpipe: Door | None = None,
    ) -> None:
        """kserve: what answers below /v2 as a whole, and what answers there in parts.

        graphpipe: what answers below /graphpipe and /control.
        """
        self.access = access
        self.max_body_bytes = max_body_bytes
        self._doors = doors
        self._graphpipe = graphpipe
        self._otherwise = Application(otherwise)
        self._kserve: Door | None = None
        self._streams = self._otherwise
        if kserve is not None:
            self._kserve, streams = kserve
            self._streams = Application(streams, streams.error_body)

    def door(self, path: str) -> Door | None:
        """The door of exactly this path, or of what is below /v2, /graphpipe or /control."""
        door = self._doors.get(path)
        if door is not None:
            return door
        if is_graphpipe(path):
            return self._graphpipe
        if is_below(path) and not is_stream(path):
            return self._kserve
        return None

    def application(self, path: str) -> Application:
        """The application that answers where there is no door."""
        return self._streams if is_below(path) else self._otherwise

    def cancel(self) -> set[asyncio.Task[None]]:
        """Have the applications' answers end soon; gives the tasks that do it."""
        return self._streams.cancel() | self._otherwise.cancel()
