"""The KServe v2 endpoint: every path below /v2 whose answer is sent as a whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from farm.bodies.body import HEAVY_BYTES, HeldBody
from farm.bodies.reading import Reading
from farm.bodies.unpacking import Headers, Refused, too_large
from farm.call import CancelCall, ModelInfo, Operation, Result
from farm.encoding.json_numbers import NonFinite
from farm.errors import INTERNAL_ERROR, FarmError, InvalidInput, UnsupportedFeature
from farm.http1.compression import answer_compressed
from farm.http1.request import JSON, Answer, Request, result_headers
from farm.protocols.kserve.endpoint_inference import Inference, InferenceRun
from farm.protocols.kserve.request import InferRequest, uses_regions
from farm.protocols.kserve.rest.codec import (
    HEADER_LENGTH,
    decode_object,
    decode_raw,
    encode_error,
    encode_infer,
    error_body,
    has_short_json,
    parameters_in,
    ready_only,
)
from farm.protocols.kserve.rest.generate import decode_generate, encode_generate
from farm.protocols.kserve.rest.paths import RestEndpoint, Route, check_method, route_of
from farm.protocols.kserve.shared_memory.regions import Regions, check_owner, refuse_cuda

logger = logging.getLogger(__name__)

OCTETS = b"application/octet-stream"

Encoded = bytes | memoryview | tuple[bytes | memoryview, int | None]
"""The body of an answer; with the length of its JSON if raw tensors follow it."""


class KServeEndpoint:
    """Answers requests below /v2; the body of every error has the protocol's form."""

    def __init__(self, inference: Inference, non_finite: NonFinite) -> None:
        self._inference = inference
        self._repository = inference.repository
        self._dialect = inference.dialect
        self._non_finite = non_finite
        self._in_tasks: set[asyncio.Task[None]] = set()
        repository = inference.repository
        self._handlers: Mapping[RestEndpoint, Callable[[Route, Request], Any]] = {
            RestEndpoint.SERVER: lambda route, request: inference.dialect.server_metadata(),
            RestEndpoint.LIVE: lambda route, request: {"live": True},
            RestEndpoint.READY: self._ready,
            RestEndpoint.MODELS: lambda route, request: {"models": repository.names()},
            RestEndpoint.MODEL: lambda route, request: repository.metadata(*route[1:]),
            RestEndpoint.MODEL_READY: self._model_ready,
            RestEndpoint.CONFIG: lambda route, request: repository.config(*route[1:]),
            RestEndpoint.STATISTICS: lambda route, request: inference.statistics(*route[1:]),
            RestEndpoint.INDEX: lambda route, request: repository.index(
                ready_only=ready_only(_object_in(request))
            ),
            RestEndpoint.LOAD: lambda route, request: repository.load(
                route.model, parameters_in(_object_in(request))
            ),
            RestEndpoint.UNLOAD: lambda route, request: repository.unload(
                route.model, parameters_in(_object_in(request))
            ),
            RestEndpoint.REGION_STATUS: lambda route, request: self._regions(request).status(
                route.model
            ),
            RestEndpoint.REGION_REGISTER: self._register,
            RestEndpoint.REGION_UNREGISTER: lambda route, request: self._regions(
                request
            ).unregister(route.model),
            RestEndpoint.CUDA_STATUS: lambda route, request: [],
            RestEndpoint.CUDA_REGISTER: self._refuse_cuda,
            # Nothing is registered; clients unregister all of both kinds before they begin.
            RestEndpoint.CUDA_UNREGISTER: lambda route, request: None,
            RestEndpoint.NOT_OFFERED: self._not_offered,
            RestEndpoint.GENERATE_STREAM: self._oddly_written,
            RestEndpoint.INFER_STREAM: self._oddly_written,
        }
        """What answers the paths that run no model, as JSON data; None: with an empty body."""

    def __call__(self, request: Request, answer: Answer) -> CancelCall | None:
        """Answer a request, at once or when its call ends. Raises Refused."""
        route = self._route(request)
        try:
            if route.endpoint is RestEndpoint.INFER:
                return self._infer(route, request, answer)
            if route.endpoint is RestEndpoint.GENERATE:
                return self._generate(route, request, answer)
            told = self._told(route, request)
            body = b"" if told is None else orjson.dumps(told)
        except FarmError as error:
            answer_error(error, request, answer)
        else:
            # Never compressed: tritonclient's http.aio accepts compression but does not decompress
            # here.
            answer(200, body)
        return None

    def _route(self, request: Request) -> Route:
        """Return the route of a request. Raises Refused."""
        route = route_of(request.path)
        check_method(route, request)
        return route

    def _told(self, route: Route, request: Request) -> Any:
        """Return the answer to a request that runs no model, as JSON data. Raises FarmError."""
        return self._handlers[route.endpoint](route, request)

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
        is_bare = length is not None and length.strip() == b"0"
        decode: Callable[..., InferRequest] = decode_raw if is_bare else self._dialect.decode_rest
        last = info if is_bare else length
        body: bytes | HeldBody | memoryview = request.body
        rest = (self._non_finite,)
        if isinstance(body, HeldBody):
            if body.encoding or not (is_bare or has_short_json(body.view(), length, HEAVY_BYTES)):
                run = partial(self._run, info, request, answer, encode_infer, rest)
                about = (route.model, route.version, body, last)
                return self._decoded(request, answer, run, decode, *about)
            body = body.view()
        asked = decode(route.model, route.version, body, last)
        return self._run(info, request, answer, encode_infer, rest, asked)

    def _generate(self, route: Route, request: Request, answer: Answer) -> CancelCall:
        info = self._repository.model(route.model, route.version)
        if Operation.STREAM in info.operations and Operation.EVALUATE not in info.operations:
            message = f"model {info.name!r} gives several answers: ask it by generate_stream"
            raise Refused(400, "InvalidInput", message)
        run = partial(self._run, info, request, answer, encode_generate, (self._non_finite,))
        about = (route.model, route.version, request.body, info)
        return self._decoded(request, answer, run, decode_generate, *about)

    def _decoded(
        self,
        request: Request,
        answer: Answer,
        go: Callable[[Any], CancelCall],
        decode: Callable[..., Any],
        *about: Any,
    ) -> CancelCall:
        """Decode a request, a long one in a reader process, and call `go` with it."""
        if not isinstance(request.body, HeldBody):
            return go(decode(*about))
        reading = Reading(go, lambda error: answer_failure(error, request, answer))
        return reading.begin(self._inference.readers, decode, *about, hints=request.hints())

    def _run(
        self,
        info: ModelInfo,
        request: Request,
        answer: Answer,
        encode: Callable[..., Any],
        rest: tuple[Any, ...],
        asked: InferRequest,
    ) -> CancelCall:
        """Run a request, and encode its answer with `encode(wish, result, *rest)`."""
        if not uses_regions(asked):
            prepared = self._inference.prepared_now(asked, request.hints(), info)
            if prepared is not None:
                outputs = prepared.wish.outputs
                raw = encode is encode_infer and all(output.binary for output in outputs)
                form = (encode, rest, raw)
                return _HttpRun(self._inference, prepared, form, (request, answer)).cancel
        answering = self._answer(request, answer, encode, rest, asked)
        task = asyncio.get_running_loop().create_task(answering)
        self._in_tasks.add(task)
        task.add_done_callback(self._in_tasks.discard)
        return lambda: (task.cancel(), None)[1]

    async def _answer(
        self,
        request: Request,
        answer: Answer,
        encode: Callable[..., Any],
        rest: tuple[Any, ...],
        asked: InferRequest,
    ) -> None:
        """Answer a request that has to wait for its model's description, or uses regions."""
        inference = self._inference
        try:
            hints = request.hints()
            async with inference.carried(asked, request.is_owner_here, hints) as (asked, carried):
                prepared = await inference.prepared(asked, hints)
                result = await inference.backend.submit(prepared.call, prepared.hints)
                encoded = await inference.encoded(prepared, result, encode, *rest, carried=carried)
                send_encoded(encoded, result, request, answer)
        except Exception as error:
            answer_failure(error, request, answer)

    # Paths that run no model

    def _ready(self, route: Route, request: Request) -> dict[str, Any]:
        if not self._repository.all_ready():
            raise Refused(400, "NotReady", "not every model is ready: see /v2/repository/index")
        return {"ready": True}

    def _model_ready(self, route: Route, request: Request) -> dict[str, Any]:
        self._repository.model(route.model, route.version)
        return {"name": route.model, "ready": True}

    def _regions(self, request: Request) -> Regions:
        """Return the regions of shared memory. Raises Refused if the client is another user."""
        check_owner(request.is_owner_here())
        return self._inference.carrier.regions

    def _register(self, route: Route, request: Request) -> None:
        regions, message = self._regions(request), _object_in(request)
        for member in ("key", "byte_size"):
            if member not in message:
                raise InvalidInput(f"Shared memory register request has no '{member}' field")
        key, size = message["key"], message["byte_size"]
        regions.register(route.model, key, message.get("offset", 0), size)

    def _refuse_cuda(self, route: Route, request: Request) -> None:
        raise refuse_cuda()

    def _oddly_written(self, route: Route, request: Request) -> None:
        raise Refused(404, "NotFound", f"{request.path[:80]}: write its last part without %")

    def _not_offered(self, route: Route, request: Request) -> None:
        raise UnsupportedFeature(
            f"{request.path[:80]}: logging and trace settings are not offered here"
        )


class _HttpRun(InferenceRun):
    """A call and the encoding of its answer to an HTTP request."""

    __slots__ = ()

    def send(self, result: Result, encoded: Encoded) -> None:
        """Send the answer."""
        send_encoded(encoded, result, *self._reply)

    def fail(self, error: Exception) -> None:
        """Answer with an error of any kind."""
        answer_failure(error, *self._reply)


def send_encoded(encoded: Encoded, result: Result, request: Request, answer: Answer) -> None:
    """Answer with an encoded result."""
    body, json_length = encoded if isinstance(encoded, tuple) else (encoded, None)
    extra = result_headers(result)
    if json_length is None:
        answer_compressed(request, answer, body, extra, JSON)
    else:
        extra += ((b"Inference-Header-Content-Length", b"%d" % json_length),)
        answer_compressed(request, answer, body, extra, OCTETS)


def _object_in(request: Request) -> dict[str, Any]:
    """Return the body of a request that has to be short. Raises Refused, InvalidRequest."""
    if isinstance(request.body, HeldBody):
        raise too_large(HEAVY_BYTES)
    return decode_object(request.body)


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
    answer(status, body)
