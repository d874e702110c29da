"""Serves farm's own interface: /farm, /docs, and the paths that no other protocol serves."""

from __future__ import annotations

import asyncio
import importlib
import threading
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from farm.encoding.json_numbers import NonFinite
from farm.protocols.site import Endpoints, Site


def serve(site: Site) -> Endpoints:
    """Return the endpoints: an application for all remaining paths."""
    return Endpoints(
        otherwise=Later(
            "farm.protocols.points.endpoint",
            "create_api",
            site.backend,
            non_finite=NonFinite(site.settings.non_finite),
            readers=site.readers,
        )
    )


class Later:
    """An ASGI application that is imported and created at its first request.

    Importing FastAPI takes as long as all the rest of a front door, which opens before that.
    """

    def __init__(self, module: str, name: str, /, *arguments: Any, **options: Any) -> None:
        """module, name: the function that creates the application from the other arguments."""
        self._module = module
        self._name = name
        self._arguments = arguments
        self._options = options
        self._app: ASGIApp | None = None
        self._lock = threading.Lock()

    def load(self) -> ASGIApp:
        """Import and create the application if it is not; return it. For any thread."""
        with self._lock:
            if self._app is None:
                create = getattr(importlib.import_module(self._module), self._name)
                self._app = create(*self._arguments, **self._options)
            return self._app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if app is None:  # the event loop goes on meanwhile
            app = await asyncio.to_thread(self.load)
        await app(scope, receive, send)
