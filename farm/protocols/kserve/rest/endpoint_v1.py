"""The endpoint of KServe's V1 protocol: the same models below /v1, in JSON."""

from __future__ import annotations

import orjson

from farm.bodies.body import HeldBody
from farm.bodies.unpacking import Headers, Refused
from farm.dispatcher.backend import CancelCall
from farm.errors import FarmError, UnsupportedFeature
from farm.http.request import RETRY_SOON, Answer, Request
from farm.protocols.kserve.request import InferRequest, Wish
from farm.protocols.kserve.rest.endpoint import AnswerForm, KServeEndpoint, answer_error
from farm.protocols.kserve.rest.v1 import decode_predict, encode_predict
from farm.protocols.kserve.rest.v1_paths import V1Endpoint, V1Route, v1_route_of


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
