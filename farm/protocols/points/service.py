"""Serves farm's own interface: /farm, /docs, and the paths that no other protocol serves."""

from __future__ import annotations

import asyncio
import importlib
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

    Importing FastAPI takes as long as all the rest of a front door, and many farms never need it.
    """

    def __init__(self, module: str, name: str, /, *arguments: Any, **options: Any) -> None:
        """module, name: the function that creates the application from the other arguments."""
        self._module = module
        self._name = name
        self._arguments = arguments
        self._options = options
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            # In a thread, so that the event loop is not blocked meanwhile.
            module = await asyncio.to_thread(importlib.import_module, self._module)
            if self._app is None:  # no other request has created it meanwhile
                self._app = getattr(module, self._name)(*self._arguments, **self._options)
        await self._app(scope, receive, send)
