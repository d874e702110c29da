"""The paths below /v2, and the methods that they accept."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from farm.bodies.unpacking import Refused, wrong_method
from farm.http.request import Request
from farm.protocols.kserve.versions import is_known

LONGEST_REMEMBERED = 512
"""Longer paths, in characters, are not cached."""


class RestEndpoint(Enum):
    """The endpoints of the paths."""

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
    REGION_STATUS = auto()
    REGION_REGISTER = auto()
    REGION_UNREGISTER = auto()
    CUDA_STATUS = auto()
    CUDA_REGISTER = auto()
    CUDA_UNREGISTER = auto()
    NOT_OFFERED = auto()


class Route(NamedTuple):
    """The endpoint of a path; model and version are "" if the path names none.

    model: of the paths of shared memory, the region.
    """

    endpoint: RestEndpoint
    model: str = ""
    version: str = ""


FIXED = {
    (): RestEndpoint.SERVER,
    ("",): RestEndpoint.SERVER,
    ("health", "live"): RestEndpoint.LIVE,
    ("health", "ready"): RestEndpoint.READY,
    ("models",): RestEndpoint.MODELS,
    ("models", "stats"): RestEndpoint.STATISTICS,
    ("repository", "index"): RestEndpoint.INDEX,
    ("logging",): RestEndpoint.NOT_OFFERED,
    ("trace", "setting"): RestEndpoint.NOT_OFFERED,
}
OF_MODELS = {
    ("ready",): RestEndpoint.MODEL_READY,
    ("config",): RestEndpoint.CONFIG,
    ("stats",): RestEndpoint.STATISTICS,
    ("infer",): RestEndpoint.INFER,
    ("generate",): RestEndpoint.GENERATE,
    ("generate_stream",): RestEndpoint.GENERATE_STREAM,
    ("infer_stream",): RestEndpoint.INFER_STREAM,
    ("trace", "setting"): RestEndpoint.NOT_OFFERED,
}
OF_THE_REPOSITORY = {"load": RestEndpoint.LOAD, "unload": RestEndpoint.UNLOAD}
OF_REGIONS = {
    ("systemsharedmemory", "status"): RestEndpoint.REGION_STATUS,
    ("systemsharedmemory", "register"): RestEndpoint.REGION_REGISTER,
    ("systemsharedmemory", "unregister"): RestEndpoint.REGION_UNREGISTER,
    ("cudasharedmemory", "status"): RestEndpoint.CUDA_STATUS,
    ("cudasharedmemory", "register"): RestEndpoint.CUDA_REGISTER,
    ("cudasharedmemory", "unregister"): RestEndpoint.CUDA_UNREGISTER,
}

POST = frozenset(
    {
        RestEndpoint.INFER,
        RestEndpoint.GENERATE,
        RestEndpoint.GENERATE_STREAM,
        RestEndpoint.INFER_STREAM,
        RestEndpoint.INDEX,
        RestEndpoint.LOAD,
        RestEndpoint.UNLOAD,
        RestEndpoint.REGION_REGISTER,
        RestEndpoint.REGION_UNREGISTER,
        RestEndpoint.CUDA_REGISTER,
        RestEndpoint.CUDA_UNREGISTER,
    }
)
"""The endpoints that take POST; all others take GET."""

NEED_MODEL = frozenset(
    {
        ("POST", RestEndpoint.INFER),
        ("POST", RestEndpoint.GENERATE),
        ("GET", RestEndpoint.MODEL),
        ("GET", RestEndpoint.CONFIG),
    }
)
"""The requests that wait while the farm knows no model; questions about readiness do not."""

STREAMS = ("/generate_stream", "/infer_stream")
"""Ends of the paths whose answers are streamed."""


def is_below(target: str) -> bool:
    """Whether a request's target is /v2 or below it."""
    return target.startswith("/v2") and target[3:4] in ("", "/", "?")


def needs_model(method: str, target: str, models: Collection[str]) -> bool:
    """Whether a request needs a model beside these, and its answer is sent as a whole."""
    if not is_below(target):
        return False
    try:
        route = route_of(target)
    except Refused:
        return False
    return (method, route.endpoint) in NEED_MODEL and not is_known(route.model, models)


def is_stream(target: str) -> bool:
    """Whether the answer at this target is streamed."""
    return target.endswith(STREAMS) or target.partition("?")[0].endswith(STREAMS)


def route_of(target: str) -> Route:
    """Return the route of a request's target, which may have a query. Raises Refused if none."""
    return _remembered(target) if len(target) <= LONGEST_REMEMBERED else _route_of(target)


def _route_of(target: str) -> Route:
    path = target.partition("?")[0]
    # Names of models may contain slashes, which most clients send as %2F: split before unquoting.
    parts = tuple([unquote(part) for part in path.split("/")[2:]])
    endpoint = FIXED.get(parts)
    if endpoint is not None:
        return Route(endpoint)
    if len(parts) > 1 and parts[0] == "models":
        return _route_to_model(parts[1:])
    if len(parts) > 3 and parts[:2] == ("repository", "models") and parts[-1] in OF_THE_REPOSITORY:
        return Route(OF_THE_REPOSITORY[parts[-1]], "/".join(parts[2:-1]))
    if (parts[0], parts[-1]) in OF_REGIONS:
        of_region = OF_REGIONS[parts[0], parts[-1]]
        if len(parts) == 2:
            return Route(of_region)
        if len(parts) > 3 and parts[1] == "region":
            return Route(of_region, "/".join(parts[2:-1]))
    raise _nothing_at(path)


def _route_to_model(parts: tuple[str, ...]) -> Route:
    """parts: a model's name, whose slashes tritonclient does not quote, and the path's rest."""
    endpoint, name = RestEndpoint.MODEL, parts
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
    """Raise Refused if the path does not accept the request's method."""
    if route.endpoint is RestEndpoint.NOT_OFFERED:
        return
    allowed = ("POST",) if route.endpoint in POST else ("GET", "HEAD")
    if request.method not in allowed:
        if route.endpoint is RestEndpoint.MODEL and "/" in route.model:
            raise _nothing_at(request.path)
        raise wrong_method(request.path[:80], request.method, *allowed)
