"""The paths of KServe's V1 protocol, below /v1, and the methods that they accept."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote

from farm.bodies.unpacking import Refused
from farm.protocols.kserve.versions import is_known


class V1Endpoint(Enum):
    """The endpoints of the paths."""

    MODELS = auto()
    READY = auto()
    PREDICT = auto()
    NOT_OFFERED = auto()


class V1Route(NamedTuple):
    """The endpoint of a path; model and version are "" if the path names none."""

    endpoint: V1Endpoint
    model: str = ""
    version: str = ""


VERBS = {
    "predict": V1Endpoint.PREDICT,
    "explain": V1Endpoint.NOT_OFFERED,
    "classify": V1Endpoint.NOT_OFFERED,
    "regress": V1Endpoint.NOT_OFFERED,
}
"""Endings of a model's path after a colon; the last two are TensorFlow Serving's."""


def is_below_v1(target: str) -> bool:
    """Whether a request's target is /v1 or below it."""
    return target.startswith("/v1") and target[3:4] in ("", "/", "?")


def v1_needs_model(method: str, target: str, models: Collection[str]) -> bool:
    """Whether a request needs a model beside these; questions about readiness do not wait."""
    if method != "POST" or not is_below_v1(target):
        return False
    try:
        route = v1_route_of(method, target)
    except Refused:
        return False
    return route.endpoint is V1Endpoint.PREDICT and not is_known(route.model, models)


def v1_route_of(method: str, target: str) -> V1Route:
    """Return the route of a request's target, which may have a query. Raises Refused if none."""
    path = target.partition("?")[0]
    # Names of models may contain slashes, which most clients send as %2F: split before unquoting.
    parts = [unquote(part) for part in path.split("/")[2:]]
    if parts == ["models"]:
        return V1Route(_checked(V1Endpoint.MODELS, method, path))
    if len(parts) < 2 or parts[0] != "models" or not parts[1]:
        raise _nothing_at(path)
    names = parts[1:]
    last, _, verb = names[-1].rpartition(":")
    endpoint = VERBS.get(verb) if last else None
    if endpoint is None:
        if method == "POST" and last:
            raise _nothing_at(path)
        endpoint = V1Endpoint.READY
    else:
        names[-1] = last
    _checked(endpoint, method, path)
    version = ""
    if len(names) > 2 and names[-2] == "versions":
        version, names = names[-1], names[:-2]
    return V1Route(endpoint, "/".join(names), version)


def _checked(endpoint: V1Endpoint, method: str, path: str) -> V1Endpoint:
    allowed = ("GET", "HEAD") if endpoint in (V1Endpoint.MODELS, V1Endpoint.READY) else ("POST",)
    if method not in allowed:
        raise Refused(
            405,
            "MethodNotAllowed",
            f"{path[:80]} is asked with {allowed[0]}, not {method}",
            headers=((b"allow", ", ".join(allowed).encode()),),
        )
    return endpoint


def _nothing_at(path: str) -> Refused:
    message = f"nothing is at {path[:80]}; models are at /v1/models and /v1/models/NAME:predict"
    return Refused(404, "NotFound", message)
