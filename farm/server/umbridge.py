"""The UM-Bridge door: sockets on one side, `submit` on the other, the codec in between."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Receive, Scope, Send

from farm.call import Call, Result
from farm.errors import FarmError, Unavailable
from farm.protocols.json_numbers import NonFinite
from farm.protocols.umbridge import (
    SHARED_MEMORY,
    Endpoint,
    Question,
    decode_request,
    encode_error,
    encode_info,
    encode_model_info,
    encode_result,
    encode_sizes,
    error_body,
)
from farm.server.door import (
    INTERNAL_ERROR,
    Backend,
    ClientGone,
    Refused,
    answer_json,
    answer_refused,
    header_value,
    headers_of,
    hints_of,
    read_body,
    while_client_waits,
)

logger = logging.getLogger(__name__)

PATHS = frozenset({*Endpoint, *SHARED_MEMORY})
"""The paths this door answers, at the server's root."""

Extra = tuple[tuple[bytes, bytes], ...]
"""Headers beside those that every answer has."""

RETRY_SOON: Extra = ((b"retry-after", b"1"),)


class UmBridgeDoor:
    """Answers the UM-Bridge paths; whatever goes wrong, the body is the protocol's error."""

    def __init__(self, backend: Backend, *, max_body_bytes: int, non_finite: NonFinite) -> None:
        self._backend = backend
        self._max_body_bytes = max_body_bytes
        self._nonfinite = non_finite

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        extra: Extra = ()
        try:
            body, extra = await self._answer(scope, receive)
            status = 200
        except ClientGone:
            return
        except Refused as refused:
            await answer_refused(send, refused)
            return
        except FarmError as error:
            status, body = encode_error(error)
            extra = RETRY_SOON if status == 503 else ()
            if error.detail:
                logger.debug("%s: %s\n%s", scope["path"], error.message, error.detail)
        except asyncio.CancelledError:
            # The server gives up waiting for calls that outlast its shutdown.
            status, body = encode_error(Unavailable("the farm shut down before the call finished"))
        except Exception:
            logger.exception("answering %s", scope["path"])
            status, body = 500, error_body("InternalError", INTERNAL_ERROR)
        await answer_json(send, status, body, headers=extra)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[bytes, Extra]:
        path = scope["path"]
        _check_method(path, scope["method"])
        headers = headers_of(scope)
        body = await read_body(headers, receive, self._max_body_bytes)
        models = self._backend.models()
        request = decode_request(path, body, models)
        if isinstance(request, Call):
            hints = hints_of(scope, headers)
            result = await while_client_waits(self._backend.submit(request, hints), receive)
            return encode_result(request, result, self._nonfinite), result_headers(result)
        if request.endpoint is Endpoint.INFO:
            return encode_info(models), ()
        if request.endpoint is Endpoint.MODEL_INFO:
            return encode_model_info(models[request.model]), ()
        return await while_client_waits(self._sizes(request), receive), ()

    async def _sizes(self, request: Question) -> bytes:
        info = await self._backend.describe(request.model, request.config)
        return encode_sizes(request.endpoint, info)


def _check_method(path: str, method: str) -> None:
    if path in SHARED_MEMORY:
        # Clients that probe for shared memory go on without it, whatever the answer says.
        message = "shared memory is not offered here; the plain paths are"
        raise Refused(400, "UnsupportedFeature", message)
    allowed = ("GET", "HEAD") if path == Endpoint.INFO else ("POST",)
    if method not in allowed:
        message = f"{path} is asked with {allowed[0]}, not {method}"
        allow = [(b"allow", ", ".join(allowed).encode())]
        raise Refused(405, "MethodNotAllowed", message, headers=allow)


def result_headers(result: Result) -> Extra:
    """What a farm adds to an answer: seconds in the model, seconds in the queue, and where."""
    return (
        (b"farm-run-time", b"%.6f" % result.run_time_s),
        (b"farm-queue-time", b"%.6f" % result.queue_time_s),
        (b"farm-worker", header_value(result.worker)),
    )
