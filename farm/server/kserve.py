"""The KServe v2 door: every path below /v2 that answers as a whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
    has_short_json,
)
from farm.protocols.kserve_metadata import model_config, model_metadata, server_metadata
from farm.server.body import HEAVY_BYTES, HeldBody
from farm.server.door import (
    INTERNAL_ERROR,
    JSON,
    Answer,
    Backend,
    Refused,
    Request,
    TakeBack,
    hints_of,
    too_large,
)
from farm.server.kserve_paths import Endpoint, Route, check_method, route_of
from farm.server.kserve_repository import Repository
from farm.server.kserve_statistics import statistics_of
from farm.server.packing import answer_packed
from farm.server.readers import READS_HERE, Reads
from farm.server.reading import Reading, is_long, is_long_raw
from farm.server.umbridge import RETRY_SOON, result_headers

logger = logging.getLogger(__name__)

OCTETS = b"application/octet-stream"

Encoded = bytes | memoryview | tuple[bytes | memoryview, int | None]
"""The body of an answer, perhaps with the length of its JSON when raw tensors are behind that."""


class Form(NamedTuple):
    """How an answer is written: `function(wish, result, *rest)`, a codec of farm's."""

    function: Callable[..., Encoded]
    wish: Wish
    rest: tuple[Any, ...]

    @property
    def is_raw(self) -> bool:
        """Whether no tensor is written as JSON."""
        return self.function is encode_infer and all(o.binary for o in self.wish.outputs)


class KServeDoor:
    """Answers paths below /v2; whatever goes wrong, the body is the protocol's error."""

    def __init__(
        self,
        backend: Backend,
        repository: Repository,
        *,
        non_finite: NonFinite,
        readers: Reads = READS_HERE,
    ) -> None:
        self._backend = backend
        self._readers = readers
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

        def form(wish: Wish, lead: tuple[int, ...]) -> Form:
            return Form(encode_infer, wish, (self._non_finite, lead))

        def go(asked: InferRequest) -> TakeBack:
            return self._run(asked, info, request, answer, form)

        body: bytes | HeldBody | memoryview = request.body
        if isinstance(body, HeldBody):
            if body.encoding or not has_short_json(body.view(), length, HEAVY_BYTES):
                about = (route.model, route.version, body, length)
                return self._read(request, answer, go, decode_infer, *about)
            body = body.view()
        return go(decode_infer(route.model, route.version, body, length))

    def _generate(self, route: Route, request: Request, answer: Answer) -> TakeBack:
        info = self._repository.model(route.model, route.version)
        if Operation.STREAM in info.operations and Operation.EVALUATE not in info.operations:
            message = f"model {info.name!r} gives several answers: ask it by generate_stream"
            raise Refused(400, "InvalidInput", message)

        def form(wish: Wish, lead: tuple[int, ...]) -> Form:
            return Form(encode_generate, wish, (self._non_finite,))

        def go(asked: InferRequest) -> TakeBack:
            return self._run(asked, info, request, answer, form)

        if isinstance(request.body, HeldBody):
            about = (route.model, route.version, request.body, info)
            return self._read(request, answer, go, decode_generate, *about)
        return go(decode_generate(route.model, route.version, request.body, info))

    def _read(
        self,
        request: Request,
        answer: Answer,
        go: Callable[[InferRequest], TakeBack],
        decode: Callable[..., InferRequest],
        *about: Any,
    ) -> TakeBack:
        """Have a long request read elsewhere, and go on with it."""
        client = hints_of(request.headers, request.peer, request.user).client
        reading = Reading(go, lambda error: answer_failure(error, request, answer))
        return reading.begin(self._readers, decode, *about, client=client)

    def _run(
        self,
        asked: InferRequest,
        info: ModelInfo,
        request: Request,
        answer: Answer,
        form: Callable[[Wish, tuple[int, ...]], Form],
    ) -> TakeBack:
        hints = hints_of(request.headers, request.peer, request.user)
        run = _Run(self._backend, self._readers, request, answer)

        def go(info: ModelInfo) -> None:
            call, wish = call_of(asked, info)
            if call.rows == 1:
                run.start(without_axis(call), hints, form(wish, (1,)))
            else:
                run.start(call, hints, form(wish, ()))

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
        return orjson.dumps(self._repository.index(ready_only=decode_index(_short_body(request))))

    def _load(self, route: Route, request: Request) -> bytes:
        self._repository.load(route.model, decode_parameters(_short_body(request)))
        return b""

    def _unload(self, route: Route, request: Request) -> bytes:
        decode_parameters(_short_body(request))
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

    __slots__ = ("_answer", "_backend", "_readers", "_request", "_task_id")

    def __init__(self, backend: Backend, readers: Reads, request: Request, answer: Answer) -> None:
        self._backend = backend
        self._readers = readers
        self._request = request
        self._answer = answer

    def take_back(self) -> None:
        """Nobody waits any more."""
        self._backend.cancel(self._task_id)

    def start(self, call: Call, hints: Hints, form: Form) -> None:
        """Run the call; its answer goes out in this form. Raises FarmError."""

        def done(outcome: Result | FarmError) -> None:
            try:
                if isinstance(outcome, FarmError):
                    raise outcome
                if is_long(outcome) and (not form.is_raw or is_long_raw(outcome)):
                    self._write(outcome, form, hints.client)
                else:
                    self._send(form.function(form.wish, outcome, *form.rest), outcome)
            except Exception as error:
                answer_failure(error, self._request, self._answer)

        self._task_id = self._backend.start_call(call, hints, done)

    def _write(self, result: Result, form: Form, client: str) -> None:
        """Have a long answer written elsewhere, and send it."""
        writing = Reading(
            lambda encoded: self._send(encoded, result),
            lambda error: answer_failure(error, self._request, self._answer),
        )
        arguments = (form.wish, result, *form.rest)
        writing.begin(self._readers, form.function, *arguments, client=client)

    def _send(self, encoded: Encoded, result: Result) -> None:
        body, json_length = encoded if isinstance(encoded, tuple) else (encoded, None)
        extra = result_headers(result)
        if json_length is None:
            answer_packed(self._request, self._answer, body, extra, JSON)
        else:
            extra += ((b"Inference-Header-Content-Length", b"%d" % json_length),)
            answer_packed(self._request, self._answer, body, extra, OCTETS)

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
            except Exception as error:
                answer_failure(error, self._request, self._answer)

        call = Call(model, Operation.DESCRIBE, config=config)
        self._task_id = self._backend.start_call(call, hints, done)


def _short_body(request: Request) -> bytes:
    """The body of a request that has nothing long to say. Raises Refused."""
    if isinstance(request.body, HeldBody):
        raise too_large(HEAVY_BYTES)
    return request.body


def answer_failure(error: Exception, request: Request, answer: Answer) -> None:
    """Answer with whatever was raised, here or in a reader, in the protocol's form."""
    if isinstance(error, FarmError):
        answer_error(error, request, answer)
    elif isinstance(error, Refused):
        answer(error.status, error_body(error.message), error.headers)
    else:
        logger.error("answering %s", request.path, exc_info=error)
        answer(500, error_body(INTERNAL_ERROR))


def answer_error(error: FarmError, request: Request, answer: Answer) -> None:
    """Send the protocol's error."""
    status, body = encode_error(error)
    if error.detail:
        logger.debug("%s: %s\n%s", request.path, error.message, error.detail)
    answer(status, body, RETRY_SOON if status == 503 else ())
