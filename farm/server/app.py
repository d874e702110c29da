"""The way in: a path is looked up, and its protocol's door answers, or else the application.

The doors stand in front of the FastAPI application and not inside it, where the way through its
layers would cost a call a third of its speed.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.protocols.json_numbers import NonFinite
from farm.server.access import Access
from farm.server.asgi import PEER, USER, answer_refused, headers_of
from farm.server.door import INTERNAL_ERROR, Backend, Door, Refused
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

logger = logging.getLogger(__name__)

DEFAULTS = Settings()

Refuse = Callable[[Send, Refused], Awaitable[None]]
"""Answers with a refusal, in the form of the protocol that was asked."""


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
        max_body_bytes=limit,
        non_finite=non_finite,
        in_flight=in_flight,
    )
    doors: dict[str, Door] = {str(path): umbridge for path in PATHS}
    graphpipe = GraphPipeDoor(backend, default=settings.graphpipe_default, readers=readers)
    doors |= {"/": graphpipe, "/metrics": metrics_door(backend)}
    repository = repository or Repository(backend)
    kserve = KServeDoor(backend, repository, non_finite=non_finite, readers=readers)
    streams = KServeStreams(backend, repository, non_finite=non_finite, max_body_bytes=limit)
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
        self._otherwise = otherwise
        self._kserve = kserve
        self._graphpipe = graphpipe

    def door(self, path: str) -> Door | None:
        """The door of exactly this path, or of what is below /v2, /graphpipe or /control."""
        door = self._doors.get(path)
        if door is not None:
            return door
        if is_graphpipe(path):
            return self._graphpipe
        if is_below(path) and not is_stream(path):
            return None if self._kserve is None else self._kserve[0]
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is for no door."""
        if scope["type"] != "http":
            await self._otherwise(scope, receive, send)
            return
        if scope["path"].startswith("//"):
            # A server's address written with a slash at its end: clients just append.
            scope["path"] = "/" + scope["path"].lstrip("/")
        app, refuse = self._otherwise, answer_refused
        if self._kserve is not None and is_below(scope["path"]):
            app, refuse = self._kserve[1], self._kserve[1].refuse
        try:
            scope[USER] = self.access.user(scope[PEER], headers_of(scope))
        except Refused as refused:
            await refuse(send, refused)
            return
        await _answer(app, refuse, scope, receive, send)


async def _answer(app: ASGIApp, refuse: Refuse, scope: Scope, receive: Receive, send: Send) -> None:
    """Have the application answer; it goes wrong in no way that the server hears of."""
    started = False

    async def note(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        await app(scope, receive, note)
    except asyncio.CancelledError:
        # The server shuts down; an answer that has begun ends in the middle, which is seen.
        logger.info("%s %s is cut off", scope["method"], scope["path"][:80])
        if not started:
            message = "the farm shut down in the meantime"
            await refuse(send, Refused(503, "Unavailable", message))
    except Exception:
        # FastAPI has answered with a 500; any other answer that has begun ends in the middle.
        logger.exception("answering %s %s", scope["method"], scope["path"][:80])
        if not started:
            await refuse(send, Refused(500, "InternalError", INTERNAL_ERROR))
