"""The KServe v2 door: every path below /v2 that answers as a whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

import orjson

from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.errors import FarmError, UnsupportedFeature
from farm.protocols.json_numbers import NonFinite
from farm.protocols.kserve import (
    InferRequest,
    Wish,
    call_of,
    config_of,
    hints_of_parameters,
    without_axis,
)
from farm.protocols.kserve_generate import decode_generate, encode_generate
from farm.protocols.kserve_json import (
    HEADER_LENGTH,
    decode_index,
    decode_infer,
    decode_parameters,
    encode_error,
    encode_infer,
    error_body,
)
from farm.protocols.kserve_metadata import model_config, model_metadata, server_metadata
from farm.server.door import (
    INTERNAL_ERROR,
    JSON,
    Answer,
    Backend,
    Refused,
    Request,
    TakeBack,
    hints_of,
)
from farm.server.kserve_paths import Endpoint, Route, check_method, route_of
from farm.server.kserve_repository import Repository
from farm.server.kserve_statistics import statistics_of
from farm.server.packing import answer_packed
from farm.server.umbridge import RETRY_SOON, result_headers

logger = logging.getLogger(__name__)

OCTETS = b"application/octet-stream"

Encoded = tuple[bytes, int | None]
Encode = Callable[[Result], Encoded]
"""The body of an answer, and the length of its JSON when raw tensors are behind that."""


class KServeDoor:
    """Answers paths below /v2; whatever goes wrong, the body is the protocol's error."""

    def __init__(self, backend: Backend, repository: Repository, *, non_finite: NonFinite) -> None:
        self._backend = backend
        self._repository = repository
        self._non_finite = non_finite
        self._handlers: Mapping[Endpoint, Callable[[Route, Request], bytes]] = MappingProxyType(
            {
                Endpoint.SERVER: lambda route, request: orjson.dumps(server_metadata()),
                Endpoint.LIVE: lambda route, request: b'{"live":true}',
                Endpoint.READY: self._ready,
                Endpoint.MODELS: self._models,
                Endpoint.MODEL: self._model,
                Endpoint.MODEL_READY: self._model_ready,
                Endpoint.CONFIG: self._config,
                Endpoint.STATISTICS: self._statistics,
                Endpoint.INDEX: self._index,
                Endpoint.LOAD: self._load,
                Endpoint.UNLOAD: self._unload,
                Endpoint.NOT_OFFERED: self._not_offered,
                Endpoint.GENERATE_STREAM: self._oddly_written,
                Endpoint.INFER_STREAM: self._oddly_written,
            }
        )

    def __call__(self, request: Request, answer: Answer) -> TakeBack | None:
        """Answer one request, now or when its call is done. Raises Refused."""
        route = route_of(request.path)
        check_method(route, request)
        try:
            if route.endpoint is Endpoint.INFER:
                return self._infer(route, request, answer)
            if route.endpoint is Endpoint.GENERATE:
                return self._generate(route, request, answer)
            body = self._handlers[route.endpoint](route, request)
        except FarmError as error:
            answer_error(error, request, answer)
        else:
            # Never compressed: tritonclient's http.aio asks for it and does not undo it here.
            answer(200, body)
        return None

    def error_body(self, kind: str, message: str) -> bytes:
        """The body of a refusal that is made before or instead of asking this door."""
        return error_body(message)

    # What runs a model

    def _infer(self, route: Route, request: Request, answer: Answer) -> TakeBack:
        info = self._repository.model(route.model, route.version)
        length = request.headers.get(HEADER_LENGTH)
        asked = decode_infer(route.model, route.version, request.body, length)

        def encoder(wish: Wish, lead: tuple[int, ...]) -> Encode:
            return lambda result: encode_infer(wish, result, self._non_finite, lead=lead)

        return self._run(asked, info, request, answer, encoder)

    def _generate(self, route: Route, request: Request, answer: Answer) -> TakeBack:
        info = self._repository.model(route.model, route.version)
        if Operation.STREAM in info.operations and Operation.EVALUATE not in info.operations:
            message = f"model {info.name!r} gives several answers: ask it by generate_stream"
            raise Refused(400, "InvalidInput", message)
        asked = decode_generate(route.model, route.version, request.body, info)

        def encoder(wish: Wish, lead: tuple[int, ...]) -> Encode:
            return lambda result: (encode_generate(wish, result, self._non_finite), None)

        return self._run(asked, info, request, answer, encoder)

    def _run(
        self,
        asked: InferRequest,
        info: ModelInfo,
        request: Request,
        answer: Answer,
        encoder: Callable[[Wish, tuple[int, ...]], Encode],
    ) -> TakeBack:
        hints = hints_of(request.headers, request.peer, request.user)
        run = _Run(self._backend, request, answer)

        def go(info: ModelInfo) -> None:
            call, wish = call_of(asked, info)
            if call.rows == 1:
                run.start(without_axis(call), hints, encoder(wish, (1,)))
            else:
                run.start(call, hints, encoder(wish, ()))

        if not asked.parameters:
            go(info)
            return run.take_back
        hints = hints_of_parameters(asked.parameters, hints)
        run.when_described(info.name, config_of(asked.parameters), hints, go)
        return run.take_back

    # What is known without running one

    def _ready(self, route: Route, request: Request) -> bytes:
        if not self._repository.all_ready():
            raise Refused(400, "NotReady", "not every model is ready: see /v2/repository/index")
        return b'{"ready":true}'

    def _models(self, route: Route, request: Request) -> bytes:
        return orjson.dumps({"models": list(self._repository.models())})

    def _model(self, route: Route, request: Request) -> bytes:
        return orjson.dumps(model_metadata(self._repository.model(route.model, route.version)))

    def _model_ready(self, route: Route, request: Request) -> bytes:
        info = self._repository.model(route.model, route.version)
        return orjson.dumps({"name": info.name, "ready": True})

    def _config(self, route: Route, request: Request) -> bytes:
        return orjson.dumps(model_config(self._repository.model(route.model, route.version)))

    def _statistics(self, route: Route, request: Request) -> bytes:
        names = list(self._repository.models())
        if route.model:
            names = [self._repository.model(route.model, route.version).name]
        return orjson.dumps(statistics_of(names, self._backend.statistics()))

    def _index(self, route: Route, request: Request) -> bytes:
        return orjson.dumps(self._repository.index(ready_only=decode_index(request.body)))

    def _load(self, route: Route, request: Request) -> bytes:
        self._repository.load(route.model, decode_parameters(request.body))
        return b""

    def _unload(self, route: Route, request: Request) -> bytes:
        decode_parameters(request.body)
        self._repository.unload(route.model)
        return b""

    def _oddly_written(self, route: Route, request: Request) -> bytes:
        raise Refused(404, "NotFound", f"{request.path[:80]}: write the end without %, please")

    def _not_offered(self, route: Route, request: Request) -> bytes:
        raise UnsupportedFeature(
            f"{request.path[:80]}: shared memory, logging and trace settings are not offered here"
        )


class _Run:
    """One call, or two when a model has to describe itself for the request's config before."""

    __slots__ = ("_answer", "_backend", "_request", "_task_id")

    def __init__(self, backend: Backend, request: Request, answer: Answer) -> None:
        self._backend = backend
        self._request = request
        self._answer = answer

    def take_back(self) -> None:
        """Nobody waits any more."""
        self._backend.cancel(self._task_id)

    def start(self, call: Call, hints: Hints, encode: Encode) -> None:
        """Run the call; its answer goes out in this encoding. Raises FarmError."""

        def done(outcome: Result | FarmError) -> None:
            try:
                if isinstance(outcome, FarmError):
                    raise outcome
                body, json_length = encode(outcome)
                extra = result_headers(outcome)
                if json_length is None:
                    answer_packed(self._request, self._answer, body, extra, JSON)
                else:
                    extra += ((b"Inference-Header-Content-Length", b"%d" % json_length),)
                    answer_packed(self._request, self._answer, body, extra, OCTETS)
            except FarmError as error:
                answer_error(error, self._request, self._answer)
            except Exception:
                self._mistake()

        self._task_id = self._backend.start_call(call, hints, done)

    def when_described(
        self, model: str, config: str, hints: Hints, go: Callable[[ModelInfo], None]
    ) -> None:
        """Call `go` with the model's description for this config. Raises FarmError."""
        info = self._backend.description(model, config)
        if info is not None:
            go(info)
            return

        def done(outcome: Result | FarmError) -> None:
            try:
                if isinstance(outcome, FarmError):
                    raise outcome
                assert outcome.info is not None, "a worker answers describe with an info"
                go(outcome.info)
            except FarmError as error:
                answer_error(error, self._request, self._answer)
            except Exception:
                self._mistake()

        call = Call(model, Operation.DESCRIBE, config=config)
        self._task_id = self._backend.start_call(call, hints, done)

    def _mistake(self) -> None:
        logger.exception("answering %s", self._request.path)
        self._answer(500, error_body(INTERNAL_ERROR))


def answer_error(error: FarmError, request: Request, answer: Answer) -> None:
    """Send the protocol's error."""
    status, body = encode_error(error)
    if error.detail:
        logger.debug("%s: %s\n%s", request.path, error.message, error.detail)
    answer(status, body, RETRY_SOON if status == 503 else ())
