"""The endpoint of KServe's V1 protocol: the same models below /v1, in JSON."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

from farm.bodies.unpacking import Headers, Refused, wrong_method
from farm.call import CancelCall
from farm.errors import UnsupportedFeature
from farm.http1.request import Answer, Request
from farm.protocols.kserve.request import InferRequest
from farm.protocols.kserve.rest.endpoint import KServeEndpoint
from farm.protocols.kserve.rest.paths import GET, POST, RestEndpoint, Route, name_and_version
from farm.protocols.kserve.rest.v1 import decode_predict, encode_predict
from farm.versions import is_known

VERBS = {
    "predict": RestEndpoint.INFER,
    "explain": RestEndpoint.NOT_OFFERED,
    "classify": RestEndpoint.NOT_OFFERED,
    "regress": RestEndpoint.NOT_OFFERED,
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
    return route.endpoint is RestEndpoint.INFER and not is_known(route.model, models)


def v1_route_of(method: str, target: str) -> Route:
    """Return the route of a request's target, which may have a query. Raises Refused if none."""
    path = target.partition("?")[0]
    # Names of models may contain slashes, which most clients send as %2F: split before unquoting.
    parts = [unquote(part) for part in path.split("/")[2:]]
    if parts == ["models"]:
        _check_method(method, GET, path)
        return Route(RestEndpoint.MODELS)
    if len(parts) < 2 or parts[0] != "models" or not parts[1]:
        raise _nothing_at(path)
    last, _, verb = parts[-1].rpartition(":")
    if last and verb in VERBS:
        _check_method(method, POST, path)
        return Route(VERBS[verb], *name_and_version((*parts[1:-1], last)))
    if method == "POST" and last:
        raise _nothing_at(path)
    _check_method(method, GET, path)
    return Route(RestEndpoint.MODEL_READY, *name_and_version(tuple(parts[1:])))


def _check_method(method: str, allowed: tuple[str, ...], path: str) -> None:
    if method not in allowed:
        raise wrong_method(path[:80], method, *allowed)


def _nothing_at(path: str) -> Refused:
    message = f"nothing is at {path[:80]}; models are at /v1/models and /v1/models/NAME:predict"
    return Refused(404, "NotFound", message)


class KServeV1Endpoint(KServeEndpoint):
    """Answers requests below /v1; calls run as those of V2 do, and share their batches."""

    def _route(self, request: Request) -> Route:
        return v1_route_of(request.method, request.path)

    def is_raw(self, headers: Headers) -> bool:
        """Whether a body is raw tensors: none is in V1."""
        return False

    def _infer(self, route: Route, request: Request, answer: Answer) -> CancelCall:
        info = self._repository.model(route.model, route.version)

        def go(decoded: tuple[InferRequest, bool]) -> CancelCall:
            asked, by_row = decoded
            rest = (self._non_finite, by_row, not info.inputs)
            return self._run(info, request, answer, encode_predict, rest, asked)

        about = (route.model, route.version, request.body, info)
        return self._decoded(request, answer, go, decode_predict, *about)

    def _told(self, route: Route, request: Request) -> Any:
        if route.endpoint is RestEndpoint.NOT_OFFERED:
            raise UnsupportedFeature(
                f"{request.path[:80]}: explain, classify and regress are not offered here; "
                "use predict"
            )
        told = super()._told(route, request)
        if route.model and not self._repository.is_ready(route.model, route.version):
            message = f"model {route.model!r} is not ready: no worker has it, and none is expected"
            raise Refused(503, "NotReady", message)
        return told
