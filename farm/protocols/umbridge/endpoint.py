"""The UM-Bridge endpoint: decodes requests, runs their calls and encodes the answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import Reading, is_long
from farm.bodies.unpacking import Refused, wrong_method
from farm.call import Call, CancelCall, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.dispatcher.first_worker import FirstWorker
from farm.encoding.errors import encode_error, error_body
from farm.encoding.json_numbers import NonFinite
from farm.errors import INTERNAL_ERROR, FarmError, ModelNotFound
from farm.http.request import RETRY_SOON, Answer, Request, result_headers
from farm.protocols.site import Endpoints, Site
from farm.protocols.umbridge.codec import (
    SHARED_MEMORY,
    Endpoint,
    Question,
    decode_request,
    encode_info,
    encode_model_info,
    encode_result,
    encode_sizes,
)

logger = logging.getLogger(__name__)

METHODS: Mapping[str, tuple[str, ...]] = {
    path: ("GET", "HEAD") if path is Endpoint.INFO else ("POST",) for path in Endpoint
}
"""How each path is asked."""

PATHS = frozenset({*METHODS, *SHARED_MEMORY})
"""The paths that this handler answers, at the server's root."""


def serve(site: Site) -> Endpoints:
    """Return the protocol's endpoints: its paths at the root of the HTTP server."""
    non_finite = NonFinite(site.settings.non_finite)
    handler = UmBridgeEndpoint(site.backend, non_finite=non_finite, readers=site.readers)
    return Endpoints(paths=dict.fromkeys(map(str, PATHS), handler), waits=_waits)


def _waits(method: str, path: str, models: Mapping[str, ModelInfo]) -> bool:
    """Whether a request waits until the farm knows a model; its own model's name is in the body."""
    return not models and method in METHODS.get(path, ())


class UmBridgeEndpoint:
    """Answers the UM-Bridge paths; the body of every error has the protocol's form."""

    def __init__(
        self, backend: Dispatcher, *, non_finite: NonFinite, readers: Reads = READS_HERE
    ) -> None:
        self._backend = backend
        self._models = backend.models()
        self._non_finite = non_finite
        self._readers = readers

    def __call__(
        self, request: Request, answer: Answer, held: _Held | None = None
    ) -> CancelCall | None:
        """Answer a request, at once or when its call ends; held: it has waited. Raises Refused."""
        if request.method not in METHODS.get(request.path, ()):
            raise _refusal(request.path, request.method)
        models, body = self._models, request.body
        try:
            if not models and request.path != Endpoint.INFO:
                raise self._backend.first_worker.no_model()
            if isinstance(body, bytes):
                return self._go(decode_request(request.path, body, models), request, answer)
            reading = Reading(
                lambda asked: self._go(asked, request, answer),
                lambda error: self._fail(error, request, answer, held),
            )
            about = (request.path, body, dict(models))
            return reading.begin(self._readers, decode_request, *about, hints=request.hints())
        except FarmError as error:
            return self._fail(error, request, answer, held)

    def _fail(
        self, error: Exception, request: Request, answer: Answer, held: _Held | None
    ) -> CancelCall | None:
        """Answer with an error, or ask again once more models are known if the model may come."""
        if not isinstance(error, ModelNotFound):
            _answer_failure(error, request, answer)
            return None
        first, count = self._backend.first_worker, len(self._models)
        if first.expected.incomplete and (held is None or held.count < count):
            held = _Held(count, partial(self, request, answer))
            return held.until(first, lambda: len(self._models) > count)
        _answer_error(first.unknown(error.message), request, answer)
        return None

    def _go(self, asked: Question | Call, request: Request, answer: Answer) -> CancelCall | None:
        if isinstance(asked, Call):
            call, sizes_of = asked, None
        elif asked.endpoint is Endpoint.INFO:
            answer(200, encode_info(self._models))
            return None
        elif asked.endpoint is Endpoint.MODEL_INFO:
            answer(200, encode_model_info(self._models[asked.model]))
            return None
        elif (info := self._backend.description(asked.model, asked.config)) is not None:
            answer(200, encode_sizes(asked.endpoint, info))
            return None
        else:
            call = Call(asked.model, Operation.DESCRIBE, config=asked.config)
            sizes_of = asked.endpoint
        hints = request.hints()

        def done(outcome: Result | FarmError) -> None:
            try:
                if isinstance(outcome, FarmError):
                    _answer_error(outcome, request, answer)
                elif sizes_of is not None:
                    assert outcome.info is not None, "a worker answers describe with an info"
                    answer(200, encode_sizes(sizes_of, outcome.info))
                elif is_long(outcome):
                    write(outcome)
                else:
                    body = encode_result(call, outcome, self._non_finite)
                    answer(200, body, result_headers(outcome))
            except Exception as error:
                _answer_failure(error, request, answer)

        def write(result: Result) -> None:
            writing = Reading(
                lambda body: answer(200, body, result_headers(result)),
                lambda error: _answer_failure(error, request, answer),
            )
            asked = replace(call, inputs=(), derivative=None)
            arguments = (asked, result, self._non_finite)
            writing.begin(self._readers, encode_result, *arguments, hints=hints)

        task_id = self._backend.start_call(call, hints, done)
        return partial(self._backend.cancel, task_id)


class _Held:
    """A request whose model is not among the `count` known ones, but may come."""

    def __init__(self, count: int, ask: Callable[[_Held], CancelCall | None]) -> None:
        self.count = count
        self._ask = ask
        self._undo: CancelCall | None = None

    def until(self, first: FirstWorker, known: Callable[[], bool]) -> CancelCall:
        """Ask again once `known` holds; return the function that cancels whatever is under way."""
        self._undo = first.when_known(self._again, known)
        return self._cancel

    def _again(self) -> None:
        self._undo = self._ask(self)

    def _cancel(self) -> None:
        if self._undo is not None:
            self._undo()


def _answer_failure(error: Exception, request: Request, answer: Answer) -> None:
    """Answer with an error that was raised here or in a reader."""
    if isinstance(error, FarmError):
        _answer_error(error, request, answer)
    elif isinstance(error, Refused):
        answer(error.status, error_body(error.kind, error.message), error.headers)
    else:
        logger.error("answering %s", request.path, exc_info=error)
        answer(500, error_body("InternalError", INTERNAL_ERROR))


def _answer_error(error: FarmError, request: Request, answer: Answer) -> None:
    status, body = encode_error(error)
    if error.detail:
        logger.debug("%s: %s\n%s", request.path, error.message, error.detail)
    answer(status, body, RETRY_SOON if status == 503 else ())


def _refusal(path: str, method: str) -> Refused:
    """Return why a path is not asked with this method, or not at all."""
    if path in SHARED_MEMORY:
        # Clients that probe for shared memory continue without it, whatever the answer is.
        message = "shared memory is not offered here; the plain paths are"
        return Refused(400, "UnsupportedFeature", message)
    return wrong_method(path, method, *METHODS[path])
