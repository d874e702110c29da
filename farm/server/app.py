"""The HTTP side of a farm: finds the handler or application that answers at a path.

Handlers are called before the FastAPI application, not inside it: its layers would lower the rate
of calls by a third.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.types import ASGIApp

from farm.descriptors import Protocol, resolve
from farm.dispatcher.backend import Backend, CancelCall
from farm.errors import Unavailable
from farm.http.access import Access
from farm.http.asgi import Application
from farm.http.request import Answer, Handler, Request
from farm.protocols.site import Endpoints, Site, Waits
from farm.server.metrics import metrics_handler
from farm.server.page import status_page
from farm.settings import Settings, option_values

T = TypeVar("T")

DEFAULTS = Settings()


def checked_options(protocols: Iterable[Protocol], settings: Settings) -> dict[str, Any]:
    """Return the checked options of each protocol, by name. Raises SettingsError."""
    found = {}
    for protocol in protocols:
        values = option_values(settings, protocol.options)
        check = resolve(protocol.check) if protocol.check else lambda values, _: values
        found[protocol.name] = check(values, settings)
    return found


def endpoints_of(
    protocols: Iterable[Protocol], site: Site, options: Mapping[str, Any]
) -> dict[str, Endpoints]:
    """Return the endpoints that each protocol serves at the site, by protocol name."""
    return {
        protocol.name: resolve(protocol.serve)(replace(site, options=options[protocol.name]))
        for protocol in protocols
    }


def front_door(site: Site, served: Iterable[Endpoints]) -> Router:
    """Return the HTTP side of the endpoints, with the status page and the metrics.

    Raises Unavailable if two protocols answer the same requests.
    """
    served = list(served)
    otherwise = _only([each.otherwise for each in served if each.otherwise], "every other path")
    handlers: dict[str, Handler] = {}
    for each in served:
        if taken := handlers.keys() & each.paths.keys():
            raise Unavailable(f"two protocols answer {min(taken)}; expected one")
        handlers |= each.paths
    root = _only([each.root for each in served if each.root], "POST at /")
    handlers |= {"/": _root(root), "/metrics": metrics_handler(site.backend)}
    find = [each.find for each in served if each.find is not None]
    limit = site.settings.max_body_bytes
    return Router(
        handlers,
        otherwise,
        site.access,
        find=find,
        max_body_bytes=limit,
        backend=site.backend,
        waits=[each.waits for each in served if each.waits is not None],
    )


def _only(claims: Sequence[T], what: str) -> T:
    """Return the only element. Raises Unavailable if there are none or several."""
    if len(claims) != 1:
        raise Unavailable(f"{len(claims)} protocols answer {what}; expected one")
    return claims[0]


def _root(posted: Handler) -> Handler:
    """Return a handler for /: the status page, and `posted` for POST."""

    def root(request: Request, answer: Answer) -> CancelCall | None:
        if request.method == "POST":
            return posted(request, answer)
        status_page(request, answer)
        return None

    return root


class Router:
    """The handlers by path, the ASGI application for all other paths, and the access rules."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        otherwise: ASGIApp,
        access: Access,
        *,
        find: Sequence[Callable[[str], Handler | Application | None]] = (),
        max_body_bytes: int = DEFAULTS.max_body_bytes,
        backend: Backend | None = None,
        waits: Sequence[Waits] = (),
    ) -> None:
        """find: look up handlers for paths without one of their own; the first result wins.

        backend: knows the models; waits: whether requests wait until it knows more of them.
        """
        self._backend = backend
        self._models = None if backend is None else backend.models()
        self._waits = waits
        self.access = access
        self.max_body_bytes = max_body_bytes
        self._handlers = handlers
        self._find = find
        self._otherwise = Application(otherwise)
        self._applications = {self._otherwise}

    def handler(self, path: str) -> Handler | None:
        """Return the handler of exactly this path, or the one that a protocol finds for it."""
        handler = self._handlers.get(path)
        if handler is not None:
            return handler
        found = self._found(path)
        return None if isinstance(found, Application) else found

    def wait(self, method: str, path: str, go: Callable[[], None]) -> CancelCall | None:
        """Call `go` later if the request waits for the first models; None if it does not."""
        models, backend = self._models, self._backend
        if models is None or backend is None or (models and not backend.first_worker.incomplete()):
            return None
        still = [partial(each, method, path, models) for each in self._waits]
        if not any(waits() for waits in still):
            return None
        return backend.first_worker.when_known(go, lambda: not any(waits() for waits in still))

    def application(self, path: str) -> Application:
        """Return the application that answers paths without a handler."""
        found = self._found(path)
        if not isinstance(found, Application):
            return self._otherwise
        self._applications.add(found)
        return found

    def _found(self, path: str) -> Handler | Application | None:
        for find in self._find:
            found = find(path)
            if found is not None:
                return found
        return None

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel the applications' answers; return the tasks that still have to end."""
        return set().union(*(application.cancel() for application in self._applications))
