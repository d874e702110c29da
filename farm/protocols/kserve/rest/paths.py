"""The paths below /v2, and the methods that they accept."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from farm.bodies.unpacking import Refused, wrong_method
from farm.http1.request import Request
from farm.versions import is_known

LONGEST_REMEMBERED = 512
"""Longer paths, in characters, are not cached."""


GET, POST, ANY = ("GET", "HEAD"), ("POST",), ()
"""Methods that a path accepts; ANY: its endpoint refuses all in the same way."""


def _regions(kind: str, verb: str) -> tuple[str, str]:
    """Return the paths for all regions of shared memory of a kind, and for one of them."""
    return f"{kind}sharedmemory/{verb}", f"{kind}sharedmemory/region/*/{verb}"


class RestEndpoint(Enum):
    """The endpoints, each with its methods and its paths behind /v2/.

    A `*` in a path is a name, which may contain slashes; of two paths with one, the first applies.
    """

    SERVER = GET, ""
    LIVE = GET, "health/live"
    READY = GET, "health/ready"
    MODELS = GET, "models"
    NOT_OFFERED = ANY, "models/*/trace/setting", "logging", "trace/setting"
    MODEL_READY = GET, "models/*/ready"
    CONFIG = GET, "models/*/config"
    STATISTICS = GET, "models/*/stats", "models/stats"
    INFER = POST, "models/*/infer"
    GENERATE = POST, "models/*/generate"
    GENERATE_STREAM = POST, "models/*/generate_stream"
    INFER_STREAM = POST, "models/*/infer_stream"
    MODEL = GET, "models/*"
    INDEX = POST, "repository/index"
    LOAD = POST, "repository/models/*/load"
    UNLOAD = POST, "repository/models/*/unload"
    REGION_STATUS = GET, *_regions("system", "status")
    REGION_REGISTER = POST, *_regions("system", "register")
    REGION_UNREGISTER = POST, *_regions("system", "unregister")
    CUDA_STATUS = GET, *_regions("cuda", "status")
    CUDA_REGISTER = POST, *_regions("cuda", "register")
    CUDA_UNREGISTER = POST, *_regions("cuda", "unregister")


class Route(NamedTuple):
    """The endpoint of a path; model and version are "" if the path names none.

    model: of the paths of shared memory, the region.
    """

    endpoint: RestEndpoint
    model: str = ""
    version: str = ""


METHODS: dict[RestEndpoint, tuple[str, ...]] = {each: each.value[0] for each in RestEndpoint}
PATHS = [(path, endpoint) for endpoint in RestEndpoint for path in endpoint.value[1:]]
FIXED = {tuple(path.split("/")): endpoint for path, endpoint in PATHS if "*" not in path}
NAMED = tuple(
    (tuple(before.split("/")[:-1]), tuple(after.split("/")[1:]), endpoint)
    for before, star, after, endpoint in ((*path.partition("*"), e) for path, e in PATHS)
    if star
)
"""The parts before and after a name, and the endpoint."""

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
    parts = tuple([unquote(part) for part in path.split("/")[2:]]) or ("",)
    if parts in FIXED:
        return Route(FIXED[parts])
    for before, after, endpoint in NAMED:
        start, end = len(before), len(parts) - len(after)
        if start < end and parts[:start] == before and parts[end:] == after:
            name = parts[start:end]
            if before == ("models",):
                return Route(endpoint, *name_and_version(name))
            return Route(endpoint, "/".join(name))
    raise _nothing_at(path)


def name_and_version(parts: tuple[str, ...]) -> tuple[str, str]:
    """Return a model's name, whose slashes tritonclient does not quote, and its version or ""."""
    if len(parts) > 2 and parts[-2] == "versions":
        return "/".join(parts[:-2]), parts[-1]
    return "/".join(parts), ""


def _nothing_at(path: str) -> Refused:
    message = f"nothing is at {path[:80]}; models are at /v2/models/NAME and /v2/models/NAME/infer"
    return Refused(404, "NotFound", message)


_remembered = lru_cache(maxsize=1024)(_route_of)


def check_method(route: Route, request: Request) -> None:
    """Raise Refused if the path does not accept the request's method."""
    allowed = METHODS[route.endpoint]
    if request.method not in allowed and allowed:
        if route.endpoint is RestEndpoint.MODEL and "/" in route.model:
            raise _nothing_at(request.path)
        raise wrong_method(request.path[:80], request.method, *allowed)
