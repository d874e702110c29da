"""Serves farm's own interface: /farm, /docs, and the paths that no other protocol serves."""

from __future__ import annotations

import asyncio
import importlib
import threading

from starlette.types import ASGIApp, Receive, Scope, Send

from farm.encoding.json_numbers import NonFinite
from farm.protocols.interface import Endpoints, Site


def serve(site: Site) -> Endpoints:
    """Return the endpoints: an application for all remaining paths.

    It is created at its first request: importing FastAPI takes as long as all the rest of a front
    door, which opens before that.
    """
    created: list[ASGIApp] = []
    lock = threading.Lock()

    def create() -> ASGIApp:
        with lock:
            if not created:
                create_api = importlib.import_module("farm.protocols.points.endpoint").create_api
                non_finite = NonFinite(site.settings.non_finite)
                created.append(
                    create_api(site.backend, non_finite=non_finite, readers=site.readers)
                )
        return created[0]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        app = created[0] if created else await asyncio.to_thread(create)  # the loop goes on
        await app(scope, receive, send)

    return Endpoints(otherwise=answer)
