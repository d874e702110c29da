"""The KServe v2 endpoint: every path below /v2 whose answer is sent as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from farm.bodies.body import HEAVY_BYTES, HeldBody
from farm.bodies.readers import Reads
from farm.bodies.reading import Reading, carried_out
from farm.bodies.unpacking import Headers, Refused, too_large
from farm.call import Call, CancelCall, Hints, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.encoding.json_numbers import NonFinite
from farm.errors import INTERNAL_ERROR, FarmError, InvalidInput, UnsupportedFeature
from farm.http.compression import answer_compressed
from farm.http.request import JSON, RETRY_SOON, Answer, Request, result_headers
from farm.protocols.kserve.answers import takes_long
from farm.protocols.kserve.dialect import OPEN, OpenDialect
from farm.protocols.kserve.metadata import model_config, model_metadata, statistics_of
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.request import (
    InferRequest,
    Wish,
    config_of,
    hints_of_parameters,
    uses_regions,
    without_axis,
)
from farm.protocols.kserve.rest.codec import (
    HEADER_LENGTH,
    decode_index,
    decode_object,
    decode_parameters,
    decode_raw,
    encode_error,
    encode_infer,
    error_body,
    has_short_json,
)
from farm.protocols.kserve.rest.generate import decode_generate, encode_generate
from farm.protocols.kserve.rest.paths import RestEndpoint, Route, check_method, route_of
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carrier
from farm.protocols.kserve.shared_memory.regions import Regions, check_owner, refuse_cuda

logger = logging.getLogger(__name__)

OCTETS = b"application/octet-stream"

Encoded = bytes | memoryview | tuple[bytes | memoryview, int | None]
"""The body of an answer; with the length of its JSON if raw tensors follow it."""


class AnswerForm(NamedTuple):
    """The encoder of an answer: `function(wish, result, *rest)`, one of farm's codecs."""

    function: Callable[..., Encoded]
    wish: Wish
    rest: tuple[Any, ...]

    @property
    def is_raw(self) -> bool:
        """Whether no tensor is encoded as JSON."""
        outputs = self.wish.outputs
        return self.function is encode_infer and all(output.binary for output in outputs)


class KServeEndpoint:
    """Answers requests below /v2; the body of every error has the protocol's form."""

    def __init__(
        self,
        backend: Dispatcher,
        repository: Repository,
        non_finite: NonFinite,
        readers: Reads,
        carrier: Carrier,
        dialect: OpenDialect = OPEN,
    ) -> None:
        self._backend = backend
        self._dialect = dialect
        self._readers = readers
        self._repository = repository
        self._non_finite = non_finite
        self._carrier = carrier
        self._carrying: set[asyncio.Task[None]] = set()
        self._handlers: Mapping[RestEndpoint, Callable[[Route, Request], bytes]] = MappingProxyType(
            {
                RestEndpoint.SERVER: lambda route, request: orjson.dumps(dialect.server_metadata()),
                RestEndpoint.LIVE: lambda route, request: b'{"live":true}',
                RestEndpoint.READY: self._ready,
                RestEndpoint.MODELS: self._models,
                RestEndpoint.MODEL: self._model,
                RestEndpoint.MODEL_READY: self._model_ready,
                RestEndpoint.CONFIG: self._config,
                RestEndpoint.STATISTICS: self._statistics,
                RestEndpoint.INDEX: self._index,
                RestEndpoint.LOAD: self._load,
                RestEndpoint.UNLOAD: self._unload,
                RestEndpoint.NOT_OFFERED: self._not_offered,
                RestEndpoint.GENERATE_STREAM: self._oddly_written,
                RestEndpoint.INFER_STREAM: self._oddly_written,
                **region_handlers(carrier.regions),
            }
        )

    def __call__(self, request: Request, answer: Answer) -> CancelCall | None:
        """Answer a request, at once or when its call ends. Raises Refused."""
        route = route_of(request.path)
        check_method(route, request)
        try:
            if route.endpoint is RestEndpoint.INFER:
                return self._infer(route, request, answer)
            if route.endpoint is RestEndpoint.GENERATE:
                return self._generate(route, request, answer)
            body = self._handlers[route.endpoint](route, request)
        except FarmError as error:
            answer_error(error, request, answer)
        else:
            # Never compressed: tritonclient's http.aio accepts compression but does not decompress
            # here.
            answer(200, body)
        return None

    def is_raw(self, headers: Headers) -> bool:
        """Whether a body is raw tensors after some JSON."""
        return HEADER_LENGTH in headers

    def error_form(self, kind: str, message: str) -> tuple[bytes, bytes]:
        """Return body and content type of an error that is raised outside this handler."""
        return error_body(self._dialect.refusal(kind, message)), JSON

    # Paths that run a model

    def _infer(self, route: Route, request: Request, answer: Answer) -> CancelCall:
        info = self._repository.model(route.model, route.version)
        length = request.headers.get(HEADER_LENGTH)

        def form(wish: Wish, lead: tuple[int, ...]) -> AnswerForm:
            return AnswerForm(encode_infer, wish, (self._non_finite, lead))

        def go(asked: InferRequest) -> CancelCall:
            if uses_regions(asked):
                return self._run_in_regions(asked, info, request, answer)
            return self._run(asked, info, request, answer, form)

        raw = length is not None and length.strip() == b"0"
        decode: Callable[..., InferRequest] = decode_raw if raw else self._dialect.decode_rest
        last = info if raw else length
        body: bytes | HeldBody | memoryview = request.body
        if isinstance(body, HeldBody):
            if body.encoding or not (raw or has_short_json(body.view(), length, HEAVY_BYTES)):
                about = (route.model, route.version, body, last)
                return self._read(request, answer, go, decode, *about)
            body = body.view()
        return go(decode(route.model, route.version, body, last))

    def _generate(self, route: Route, request: Request, answer: Answer) -> CancelCall:
        info = self._repository.model(route.model, route.version)
        if Operation.STREAM in info.operations and Operation.EVALUATE not in info.operations:
            message = f"model {info.name!r} gives several answers: ask it by generate_stream"
            raise Refused(400, "InvalidInput", message)

        def form(wish: Wish, lead: tuple[int, ...]) -> AnswerForm:
            return AnswerForm(encode_generate, wish, (self._non_finite,))

        def go(asked: InferRequest) -> CancelCall:
            return self._run(asked, info, request, answer, form)

        if isinstance(request.body, HeldBody):
            about = (route.model, route.version, request.body, info)
            return self._read(request, answer, go, decode_generate, *about)
        return go(decode_generate(route.model, route.version, request.body, info))

    def _read(
        self,
        request: Request,
        answer: Answer,
        go: Callable[[Any], CancelCall],
        decode: Callable[..., Any],
        *about: Any,
    ) -> CancelCall:
        """Decode a long request in a reader process, then call `go` with it."""
        hints = request.hints()
        reading = Reading(go, lambda error: answer_failure(error, request, answer))
        return reading.begin(self._readers, decode, *about, hints=hints)

    def _run(
        self,
        asked: InferRequest,
        info: ModelInfo,
        request: Request,
        answer: Answer,
        form: Callable[[Wish, tuple[int, ...]], AnswerForm],
    ) -> CancelCall:
        hints = request.hints()
        run = _KServeRun(self._backend, self._readers, request, answer)

        def go(info: ModelInfo) -> None:
            call, wish = self._dialect.call_of(asked, info)
            if call.rows == 1:
                run.start(without_axis(call), hints, form(wish, (1,)))
            else:
                run.start(call, hints, form(wish, ()))

        if not asked.parameters:
            go(info)
            return run.cancel
        hints = hints_of_parameters(asked.parameters, hints)
        run.when_described(info.name, config_of(asked.parameters), hints, go)
        return run.cancel

    def _run_in_regions(
        self, asked: InferRequest, info: ModelInfo, request: Request, answer: Answer
    ) -> CancelCall:
        """Run a request with tensors in shared memory."""
        task = asyncio.get_running_loop().create_task(self._carry(asked, info, request, answer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return lambda: (task.cancel(), None)[1]

    async def _carry(
        self, asked: InferRequest, info: ModelInfo, request: Request, answer: Answer
    ) -> None:
        try:
            hints = request.hints()
            hints = hints_of_parameters(asked.parameters, hints)
            is_owner = request.is_owner_here()
            async with self._carrier.carried(asked, is_owner, hints) as carried:
                config = config_of(asked.parameters)
                info = await self._backend.describe(info.name, config)
                call, wish = self._dialect.call_of(carried.request, info)
                lead: tuple[int, ...] = ()
                if call.rows == 1:
                    call, lead = without_axis(call), (1,)
                result = await self._backend.submit(call, hints)
                wish, result = await carried.put(wish, result, lead)
                about = (wish, result, self._non_finite, lead)
                if takes_long(wish, result, raw=False):
                    encoded = await carried_out(self._readers, encode_infer, *about, hints=hints)
                else:
                    encoded = encode_infer(*about)
                send_encoded(encoded, result, request, answer)
        except Exception as error:
            answer_failure(error, request, answer)

    # Paths that run no model

    def _ready(self, route: Route, request: Request) -> bytes:
        if not self._repository.all_ready():
            raise Refused(400, "NotReady", "not every model is ready: see /v2/repository/index")
        return b'{"ready":true}'

    def _models(self, route: Route, request: Request) -> bytes:
        return orjson.dumps({"models": self._repository.names()})

    def _model(self, route: Route, request: Request) -> bytes:
        info = self._repository.model(route.model, route.version)
        versions = self._repository.versions(route.model)
        return orjson.dumps(model_metadata(info, route.model, versions))

    def _model_ready(self, route: Route, request: Request) -> bytes:
        self._repository.model(route.model, route.version)
        return orjson.dumps({"name": route.model, "ready": True})

    def _config(self, route: Route, request: Request) -> bytes:
        info = self._repository.model(route.model, route.version)
        return orjson.dumps(model_config(info, route.model, reuses=self._repository.reuses))

    def _statistics(self, route: Route, request: Request) -> bytes:
        models = self._repository.numbered(route.model, route.version)
        return orjson.dumps(statistics_of(models, self._backend.statistics()))

    def _index(self, route: Route, request: Request) -> bytes:
        return orjson.dumps(self._repository.index(ready_only=decode_index(_short_body(request))))

    def _load(self, route: Route, request: Request) -> bytes:
        self._repository.load(route.model, decode_parameters(_short_body(request)))
        return b""

    def _unload(self, route: Route, request: Request) -> bytes:
        self._repository.unload(route.model, decode_parameters(_short_body(request)))
        return b""

    def _oddly_written(self, route: Route, request: Request) -> bytes:
        raise Refused(404, "NotFound", f"{request.path[:80]}: write its last part without %")

    def _not_offered(self, route: Route, request: Request) -> bytes:
        raise UnsupportedFeature(
            f"{request.path[:80]}: logging and trace settings are not offered here"
        )


class _KServeRun:
    """One call; before it a describe call if the description for the config is unknown."""

    __slots__ = ("_answer", "_backend", "_readers", "_request", "_task_id")

    def __init__(
        self, backend: Dispatcher, readers: Reads, request: Request, answer: Answer
    ) -> None:
        self._backend = backend
        self._readers = readers
        self._request = request
        self._answer = answer

    def cancel(self) -> None:
        """Cancel the call: the client has left."""
        self._backend.cancel(self._task_id)

    def start(self, call: Call, hints: Hints, form: AnswerForm) -> None:
        """Run the call and answer in the given form. Raises FarmError."""

        def done(outcome: Result | FarmError) -> None:
            try:
                if isinstance(outcome, FarmError):
                    raise outcome
                if takes_long(form.wish, outcome, raw=form.is_raw):
                    self._write(outcome, form, hints)
                else:
                    self._send(form.function(form.wish, outcome, *form.rest), outcome)
            except Exception as error:
                answer_failure(error, self._request, self._answer)

        self._task_id = self._backend.start_call(call, hints, done)

    def _write(self, result: Result, form: AnswerForm, hints: Hints) -> None:
        """Encode a long answer in a reader process, then send it."""
        writing = Reading(
            lambda encoded: self._send(encoded, result),
            lambda error: answer_failure(error, self._request, self._answer),
        )
        arguments = (form.wish, result, *form.rest)
        writing.begin(self._readers, form.function, *arguments, hints=hints)

    def _send(self, encoded: Encoded, result: Result) -> None:
        send_encoded(encoded, result, self._request, self._answer)

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


def send_encoded(encoded: Encoded, result: Result, request: Request, answer: Answer) -> None:
    """Answer with an encoded result."""
    body, json_length = encoded if isinstance(encoded, tuple) else (encoded, None)
    extra = result_headers(result)
    if json_length is None:
        answer_compressed(request, answer, body, extra, JSON)
    else:
        extra += ((b"Inference-Header-Content-Length", b"%d" % json_length),)
        answer_compressed(request, answer, body, extra, OCTETS)


def _short_body(request: Request) -> bytes:
    """Return the body of a request that has to be short. Raises Refused."""
    if isinstance(request.body, HeldBody):
        raise too_large(HEAVY_BYTES)
    return request.body


def answer_failure(error: Exception, request: Request, answer: Answer) -> None:
    """Answer in the protocol's form with an error that was raised here or in a reader."""
    if isinstance(error, FarmError):
        answer_error(error, request, answer)
    elif isinstance(error, Refused):
        answer(error.status, error_body(error.message), error.headers)
    else:
        logger.error("answering %s", request.path, exc_info=error)
        answer(500, error_body(INTERNAL_ERROR))


def answer_error(error: FarmError, request: Request, answer: Answer) -> None:
    """Answer with the protocol's error."""
    status, body = encode_error(error)
    if error.detail:
        logger.debug("%s: %s\n%s", request.path, error.message, error.detail)
    answer(status, body, RETRY_SOON if status == 503 else ())


NO_REGIONS = b"[]"


def region_handlers(regions: Regions) -> Mapping[RestEndpoint, Callable[[Route, Request], bytes]]:
    """Return the handlers of the paths; those of CUDA shared memory know no region."""

    def status(route: Route, request: Request) -> bytes:
        check_owner(request.is_owner_here())
        return orjson.dumps(regions.status(route.model))

    def register(route: Route, request: Request) -> bytes:
        check_owner(request.is_owner_here())
        if isinstance(request.body, HeldBody):
            raise too_large(HEAVY_BYTES)
        message = decode_object(request.body)
        for member in ("key", "byte_size"):
            if member not in message:
                raise InvalidInput(f"Shared memory register request has no '{member}' field")
        key, size = message["key"], message["byte_size"]
        regions.register(route.model, key, message.get("offset", 0), size)
        return b""

    def unregister(route: Route, request: Request) -> bytes:
        check_owner(request.is_owner_here())
        regions.unregister(route.model)
        return b""

    def refuse(route: Route, request: Request) -> bytes:
        raise refuse_cuda()

    return MappingProxyType(
        {
            RestEndpoint.REGION_STATUS: status,
            RestEndpoint.REGION_REGISTER: register,
            RestEndpoint.REGION_UNREGISTER: unregister,
            RestEndpoint.CUDA_STATUS: lambda route, request: NO_REGIONS,
            RestEndpoint.CUDA_REGISTER: refuse,
            # Nothing is registered; clients unregister all of both kinds before they begin.
            RestEndpoint.CUDA_UNREGISTER: lambda route, request: b"",
        }
    )
