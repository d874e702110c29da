"""The paths below /v2 and the methods they take."""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from farm.server.door import Refused, Request

LONGEST_REMEMBERED = 512
"""Characters of a path that is read once only."""


class Endpoint(Enum):
    """What a path is for."""

    SERVER = auto()
    LIVE = auto()
    READY = auto()
    MODELS = auto()
    MODEL = auto()
    MODEL_READY = auto()
    CONFIG = auto()
    STATISTICS = auto()
    INFER = auto()
    GENERATE = auto()
    GENERATE_STREAM = auto()
    INFER_STREAM = auto()
    INDEX = auto()
    LOAD = auto()
    UNLOAD = auto()
    NOT_OFFERED = auto()


class Route(NamedTuple):
    """Where a path leads; model and version "" where it names none."""

    endpoint: Endpoint
    model: str = ""
    version: str = ""


FIXED = {
    (): Endpoint.SERVER,
    ("",): Endpoint.SERVER,
    ("health", "live"): Endpoint.LIVE,
    ("health", "ready"): Endpoint.READY,
    ("models",): Endpoint.MODELS,
    ("models", "stats"): Endpoint.STATISTICS,
    ("repository", "index"): Endpoint.INDEX,
    ("logging",): Endpoint.NOT_OFFERED,
    ("trace", "setting"): Endpoint.NOT_OFFERED,
}
OF_MODELS = {
    ("ready",): Endpoint.MODEL_READY,
    ("config",): Endpoint.CONFIG,
    ("stats",): Endpoint.STATISTICS,
    ("infer",): Endpoint.INFER,
    ("generate",): Endpoint.GENERATE,
    ("generate_stream",): Endpoint.GENERATE_STREAM,
    ("infer_stream",): Endpoint.INFER_STREAM,
    ("trace", "setting"): Endpoint.NOT_OFFERED,
}
OF_THE_REPOSITORY = {"load": Endpoint.LOAD, "unload": Endpoint.UNLOAD}
SHARED_MEMORY = ("systemsharedmemory", "cudasharedmemory")

POST = frozenset(
    {
        Endpoint.INFER,
        Endpoint.GENERATE,
        Endpoint.GENERATE_STREAM,
        Endpoint.INFER_STREAM,
        Endpoint.INDEX,
        Endpoint.LOAD,
        Endpoint.UNLOAD,
    }
)
"""What is posted to; everything else is got."""

STREAMS = ("/generate_stream", "/infer_stream")
"""How the paths end whose answer comes in parts."""


def is_below(target: str) -> bool:
    """Whether a request's target is /v2 or below it."""
    return target.startswith("/v2") and target[3:4] in ("", "/", "?")


def is_stream(target: str) -> bool:
    """Whether the answer comes in parts."""
    return target.endswith(STREAMS) or target.partition("?")[0].endswith(STREAMS)


def route_of(target: str) -> Route:
    """Where a request's target leads, which may have a query. Raises Refused: nowhere."""
    return _remembered(target) if len(target) <= LONGEST_REMEMBERED else _route_of(target)


def _route_of(target: str) -> Route:
    path = target.partition("?")[0]
    # Names of models may have slashes in them, which most clients write as %2F: split first.
    parts = tuple([unquote(part) for part in path.split("/")[2:]])
    endpoint = FIXED.get(parts)
    if endpoint is not None:
        return Route(endpoint)
    if len(parts) > 1 and parts[0] == "models":
        return _route_to_model(parts[1:])
    if len(parts) > 3 and parts[:2] == ("repository", "models") and parts[-1] in OF_THE_REPOSITORY:
        return Route(OF_THE_REPOSITORY[parts[-1]], "/".join(parts[2:-1]))
    if parts[0] in SHARED_MEMORY:
        return Route(Endpoint.NOT_OFFERED)
    raise _nothing_at(path)


def _route_to_model(parts: tuple[str, ...]) -> Route:
    """parts: a model's name, which tritonclient sends with plain slashes, and what follows it."""
    endpoint, name = Endpoint.MODEL, parts
    for length in (2, 1):
        if parts[-length:] in OF_MODELS and len(parts) > length:
            endpoint, name = OF_MODELS[parts[-length:]], parts[:-length]
            break
    version = ""
    if len(name) > 2 and name[-2] == "versions":
        version, name = name[-1], name[:-2]
    return Route(endpoint, "/".join(name), version)


def _nothing_at(path: str) -> Refused:
    message = f"nothing is at {path[:80]}; models are at /v2/models/NAME and /v2/models/NAME/infer"
    return Refused(404, "NotFound", message)


_remembered = lru_cache(maxsize=1024)(_route_of)


def check_method(route: Route, request: Request) -> None:
    """Raises Refused when the path does not take the request's method."""
    if route.endpoint is Endpoint.NOT_OFFERED:
        return
    allowed = ("POST",) if route.endpoint in POST else ("GET", "HEAD")
    if request.method not in allowed:
        if route.endpoint is Endpoint.MODEL and "/" in route.model:
            raise _nothing_at(request.path)
        raise Refused(
            405,
            "MethodNotAllowed",
            f"{request.path[:80]} is asked with {allowed[0]}, not {request.method}",
            headers=((b"allow", ", ".join(allowed).encode()),),
        )
