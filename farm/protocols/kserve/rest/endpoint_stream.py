"""KServe's streamed answers: generate_stream and infer_stream, as server-sent events.

A model with a stream sends an event for each answer; any other sends one. An error before the first
answer has a status of its own; after it, an event with `error` ends the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from typing import Any

from starlette.types import Receive, Scope, Send

from farm.bodies.body import HeldBody
from farm.bodies.reading import carried_out
from farm.bodies.unpacking import Extra, Refused
from farm.dispatcher.dispatcher import ResultStream
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError
from farm.http1.asgi import (
    IS_OWNER_HERE,
    ClientGone,
    answer_json,
    headers_of,
    hints_in,
    read_body,
    send_more,
    while_client_waits,
)
from farm.http1.request import JSON, Request, reused_header
from farm.protocols.kserve.endpoint_inference import Inference, Prepared
from farm.protocols.kserve.request import InferRequest
from farm.protocols.kserve.rest.codec import HEADER_LENGTH, encode_error, error_body
from farm.protocols.kserve.rest.generate import (
    decode_generate,
    error_event,
    generate_event,
    infer_event,
)
from farm.protocols.kserve.rest.paths import RestEndpoint, Route, check_method, route_of
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carried

EVENTS = b"text/event-stream; charset=utf-8"


class KServeStreams:
    """The ASGI application for the paths whose answers are streamed."""

    def __init__(self, inference: Inference, non_finite: NonFinite) -> None:
        self._inference = inference
        self._non_finite = non_finite

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            async with AsyncExitStack() as until_answered:
                route, prepared, carried = await self._asked(scope, receive, until_answered)
                is_generate = route.endpoint is RestEndpoint.GENERATE_STREAM
                event = generate_event if is_generate else infer_event
                sending = self._send_events(prepared, carried, event, send)
                await while_client_waits(sending, receive)
        except ClientGone:
            pass
        except Refused as refused:
            body, _ = self.error_form(refused.kind, refused.message)
            await answer_json(send, refused.status, body, headers=refused.headers)
        except FarmError as error:
            status, body = encode_error(error)
            await answer_json(send, status, body)

    def error_form(self, kind: str, message: str) -> tuple[bytes, bytes]:
        """Return body and content type of an answer to a refused request."""
        return error_body(self._inference.dialect.refusal(kind, message)), JSON

    async def _asked(
        self, scope: Scope, receive: Receive, until_answered: AsyncExitStack
    ) -> tuple[Route, Prepared, Carried | None]:
        inference = self._inference
        target = "/" + scope["raw_path"].decode("latin-1").lstrip("/")
        route = route_of(target)
        headers = headers_of(scope)
        check_method(route, Request(scope["method"], target, headers, b"", "", ""))
        body = await read_body(receive)
        await inference.repository.known(route.model)
        info = inference.repository.model(route.model, route.version)
        hints = hints_in(scope)
        decode: Callable[..., InferRequest] = inference.dialect.decode_rest
        about: tuple[Any, ...] = (body, headers.get(HEADER_LENGTH))
        if route.endpoint is RestEndpoint.GENERATE_STREAM:
            decode, about = decode_generate, (body, info)
        about = (route.model, route.version, *about)
        if isinstance(body, HeldBody):
            asked = await carried_out(inference.readers, decode, *about, hints=hints)
        else:
            asked = decode(*about)
        carrying = inference.carried(asked, scope[IS_OWNER_HERE], hints)
        asked, carried = await until_answered.enter_async_context(carrying)
        return route, await inference.prepared(asked, hints, streaming=True), carried

    async def _send_events(
        self, prepared: Prepared, carried: Carried | None, event: Callable[..., Any], send: Send
    ) -> None:
        """Send an event for each answer. Raises FarmError for an error before the first."""
        inference, begun = self._inference, False
        try:
            with closing(ResultStream(inference.backend, prepared.call, prepared.hints)) as answers:
                async for result in answers:
                    data = await inference.encoded(
                        prepared, result, event, self._non_finite, carried=carried
                    )
                    if not begun:
                        await _begin(send, reused_header(result))
                        begun = True
                    await send_more(send, data)
        except FarmError as error:
            if not begun:
                raise
            last = error_event(error)
            await send({"type": "http.response.body", "body": last, "more_body": True})
        if not begun:
            await _begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _begin(send: Send, extra: Extra = ()) -> None:
    headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), *extra]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
