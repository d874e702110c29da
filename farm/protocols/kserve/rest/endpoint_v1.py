"""The endpoint of KServe's V1 protocol: the same models below /v1, in JSON."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import unquote

import orjson

from farm.bodies.body import HeldBody
from farm.bodies.unpacking import Headers, Refused, wrong_method
from farm.call import CancelCall
from farm.errors import FarmError, UnsupportedFeature
from farm.http.request import RETRY_SOON, Answer, Request
from farm.protocols.kserve.request import InferRequest, Wish
from farm.protocols.kserve.rest.endpoint import AnswerForm, KServeEndpoint, answer_error
from farm.protocols.kserve.rest.v1 import decode_predict, encode_predict
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
        raise wrong_method(path[:80], method, *allowed)
    return endpoint


def _nothing_at(path: str) -> Refused:
    message = f"nothing is at {path[:80]}; models are at /v1/models and /v1/models/NAME:predict"
    return Refused(404, "NotFound", message)


class KServeV1Endpoint(KServeEndpoint):
    """Answers requests below /v1; calls run as those of V2 do, and share their batches."""

    def __call__(self, request: Request, answer: Answer) -> CancelCall | None:
        """Answer a request, at once or when its call ends. Raises Refused."""
        route = v1_route_of(request.method, request.path)
        try:
            if route.endpoint is V1Endpoint.PREDICT:
                return self._predict(route, request, answer)
            body = self._answer_to(route, request)
        except FarmError as error:
            answer_error(error, request, answer)
        else:
            answer(200, body)
        return None

    def is_raw(self, headers: Headers) -> bool:
        """Whether a body is raw tensors: none is in V1."""
        return False

    def _predict(self, route: V1Route, request: Request, answer: Answer) -> CancelCall:
        info = self._repository.model(route.model, route.version)

        def go(decoded: tuple[InferRequest, bool]) -> CancelCall:
            asked, by_row = decoded

            def form(wish: Wish, lead: tuple[int, ...]) -> AnswerForm:
                if by_row and not info.inputs:
                    lead = (1,)  # without inputs, nothing but `instances` has the row's axis
                return AnswerForm(encode_predict, wish, (by_row, self._non_finite, lead))

            return self._run(asked, info, request, answer, form)

        if isinstance(request.body, HeldBody):
            about = (route.model, route.version, request.body, info)
            return self._read(request, answer, go, decode_predict, *about)
        return go(decode_predict(route.model, route.version, request.body, info))

    def _answer_to(self, route: V1Route, request: Request) -> bytes:
        if route.endpoint is V1Endpoint.MODELS:
            return orjson.dumps({"models": self._repository.names()})
        if route.endpoint is V1Endpoint.NOT_OFFERED:
            raise UnsupportedFeature(
                f"{request.path[:80]}: explain, classify and regress are not offered here; "
                "use predict"
            )
        self._repository.model(route.model, route.version)
        if not self._repository.is_ready(route.model, route.version):
            message = f"model {route.model!r} is not ready: no worker has it, and none is expected"
            raise Refused(503, "NotReady", message, headers=RETRY_SOON)
        return orjson.dumps({"name": route.model, "ready": True})
