"""The UM-Bridge endpoint: decodes requests, runs their calls and encodes the answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import Reading, is_long
from farm.bodies.unpacking import Extra, Refused, wrong_method
from farm.call import Call, CancelCall, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import Dispatcher
from farm.encoding.errors import ERRORS
from farm.encoding.json_numbers import NonFinite
from farm.errors import INTERNAL_ERROR, FarmError, ModelNotFound
from farm.http1.request import Answer, Request, json_error, result_headers
from farm.protocols.interface import Endpoints, Site
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
    """Answers the UM-Bridge paths."""

    error_form = staticmethod(json_error)
    headers: Extra = ()
    """Headers of every answer at these paths, also of the connection's own errors."""

    def __init__(
        self, backend: Dispatcher, *, non_finite: NonFinite, readers: Reads = READS_HERE
    ) -> None:
        self._backend = backend
        self._models = backend.models()
        self._non_finite = non_finite
        self._readers = readers

    def __call__(self, request: Request, answer: Answer, known: int = -1) -> CancelCall | None:
        """Answer a request, at once or when its call ends. Raises Refused.

        known: the number of models when it last waited for more; -1: it has not.
        """
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
                lambda error: self._fail(error, request, answer, known),
            )
            about = (request.path, body, dict(models))
            return reading.begin(self._readers, decode_request, *about, hints=request.hints())
        except FarmError as error:
            return self._fail(error, request, answer, known)

    def _fail(
        self, error: Exception, request: Request, answer: Answer, known: int
    ) -> CancelCall | None:
        """Answer with an error, or ask again once more models are known if the model may come."""
        if isinstance(error, ModelNotFound):
            first, count = self._backend.first_worker, len(self._models)
            if first.expected.incomplete and known < count:
                return self._ask_again(request, answer, count)
            error = first.unknown(error.message)
        _answer_error(error, request, answer)
        return None

    def _ask_again(self, request: Request, answer: Answer, count: int) -> CancelCall:
        """Ask again once more than `count` models are known."""
        undo: CancelCall | None = None

        def again() -> None:
            nonlocal undo
            undo = self(request, answer, count)

        def cancel() -> None:
            if undo is not None:
                undo()

        first = self._backend.first_worker
        undo = first.when_known(again, lambda: len(self._models) > count)
        return cancel

    def _go(self, asked: Question | Call, request: Request, answer: Answer) -> CancelCall | None:
        if isinstance(asked, Call):
            call = asked
        elif (known := self._known(asked)) is not None:
            answer(200, known)
            return None
        else:
            call = Call(asked.model, Operation.DESCRIBE, config=asked.config)
        hints = request.hints()

        def done(outcome: Result | FarmError) -> None:
            try:
                if isinstance(outcome, FarmError):
                    _answer_error(outcome, request, answer)
                elif isinstance(asked, Question):
                    assert outcome.info is not None, "a worker answers describe with an info"
                    answer(200, encode_sizes(asked.endpoint, outcome.info))
                elif is_long(outcome):
                    write(outcome)
                else:
                    body = encode_result(call, outcome, self._non_finite)
                    answer(200, body, result_headers(outcome))
            except Exception as error:
                _answer_error(error, request, answer)

        def write(result: Result) -> None:
            writing = Reading(
                lambda body: answer(200, body, result_headers(result)),
                lambda error: _answer_error(error, request, answer),
            )
            about = (replace(call, inputs=(), derivative=None), result, self._non_finite)
            writing.begin(self._readers, encode_result, *about, hints=hints)

        task_id = self._backend.start_call(call, hints, done)
        return partial(self._backend.cancel, task_id)

    def _known(self, asked: Question) -> bytes | None:
        """Return the answer to a question; None: a worker has to be asked."""
        if asked.endpoint is Endpoint.INFO:
            return encode_info(self._models)
        if asked.endpoint is Endpoint.MODEL_INFO:
            return encode_model_info(self._models[asked.model])
        info = self._backend.description(asked.model, asked.config)
        return None if info is None else encode_sizes(asked.endpoint, info)


def _answer_error(error: Exception, request: Request, answer: Answer) -> None:
    """Answer with an error that was raised here, in a reader or by the model."""
    refused = Refused(500, "InternalError", INTERNAL_ERROR)
    if isinstance(error, FarmError):
        kind, status = ERRORS[type(error)]
        refused = Refused(status, kind, error.message)
        if error.detail:
            logger.debug("%s: %s\n%s", request.path, error.message, error.detail)
    elif isinstance(error, Refused):
        refused = error
    else:
        logger.error("answering %s", request.path, exc_info=error)
    body, content_type = json_error(refused.kind, refused.message)
    answer(refused.status, body, refused.headers, content_type)


def _refusal(path: str, method: str) -> Refused:
    """Return why a path is not asked with this method, or not at all."""
    if path in SHARED_MEMORY:
        # Clients that probe for shared memory continue without it, whatever the answer is.
        message = "shared memory is not offered here; the plain paths are"
        return Refused(400, "UnsupportedFeature", message)
    return wrong_method(path, method, *METHODS[path])
