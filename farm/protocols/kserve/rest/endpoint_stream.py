"""KServe's streamed answers: generate_stream and infer_stream, as server-sent events.

A model with a stream sends an event for each answer; any other sends one. An error before the first
answer has a status of its own; after it, an event with `error` ends the stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from typing import Any

from starlette.types import Receive, Scope, Send

from farm.bodies.body import HeldBody
from farm.bodies.readers import Reads
from farm.bodies.reading import carried_out
from farm.bodies.unpacking import Extra, Refused
from farm.call import Call, Hints, Result
from farm.dispatcher.dispatcher import Dispatcher, ResultStream
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError
from farm.http.asgi import (
    IS_OWNER_HERE,
    ClientGone,
    answer_json,
    headers_of,
    hints_in,
    read_body,
    send_more,
    while_client_waits,
)
from farm.http.request import JSON, RETRY_SOON, Request, reused_header
from farm.protocols.kserve.answers import takes_long
from farm.protocols.kserve.dialect import OpenDialect
from farm.protocols.kserve.repository import Repository
from farm.protocols.kserve.request import (
    InferRequest,
    Wish,
    config_of,
    hints_of_parameters,
    uses_regions,
)
from farm.protocols.kserve.rest.codec import HEADER_LENGTH, encode_error, error_body
from farm.protocols.kserve.rest.generate import (
    decode_generate,
    error_event,
    generate_event,
    infer_event,
)
from farm.protocols.kserve.rest.paths import RestEndpoint, Route, check_method, route_of
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carried, Carrier

EVENTS = b"text/event-stream; charset=utf-8"

Encode = Callable[[Result], Awaitable[bytes | memoryview]]


class KServeStreams:
    """The ASGI application for the paths whose answers are streamed."""

    def __init__(
        self,
        backend: Dispatcher,
        repository: Repository,
        non_finite: NonFinite,
        readers: Reads,
        carrier: Carrier,
        dialect: OpenDialect,
    ) -> None:
        self._carrier = carrier
        self._backend = backend
        self._dialect = dialect
        self._readers = readers
        self._repository = repository
        self._non_finite = non_finite

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            async with AsyncExitStack() as until_answered:
                call, hints, encode = await self._asked(scope, receive, until_answered)
                with closing(ResultStream(self._backend, call, hints)) as answers:
                    await while_client_waits(_send_events(answers, encode, send), receive)
        except ClientGone:
            pass
        except Refused as refused:
            body, _ = self.error_form(refused.kind, refused.message)
            await answer_json(send, refused.status, body, headers=refused.headers)
        except FarmError as error:
            status, body = encode_error(error)
            headers = RETRY_SOON if status == 503 else ()
            await answer_json(send, status, body, headers=headers)

    def error_form(self, kind: str, message: str) -> tuple[bytes, bytes]:
        """Return body and content type of an answer to a refused request."""
        return error_body(self._dialect.refusal(kind, message)), JSON

    async def _asked(
        self, scope: Scope, receive: Receive, until_answered: AsyncExitStack
    ) -> tuple[Call, Hints, Encode]:
        target = scope["raw_path"].decode("latin-1")
        target = "/" + target.lstrip("/")
        route = route_of(target)
        headers = headers_of(scope)
        check_method(route, Request(scope["method"], target, headers, b"", "", ""))
        body = await read_body(receive)
        await self._repository.known(route.model)
        info = self._repository.model(route.model, route.version)
        hints = hints_in(scope)
        decode: Callable[..., InferRequest] = self._dialect.decode_rest
        about: tuple[Any, ...] = (body, headers.get(HEADER_LENGTH))
        if route.endpoint is RestEndpoint.GENERATE_STREAM:
            decode, about = decode_generate, (body, info)
        about = (route.model, route.version, *about)
        if isinstance(body, HeldBody):
            asked = await carried_out(self._readers, decode, *about, hints=hints)
        else:
            asked = decode(*about)
        carried = None
        if uses_regions(asked):
            is_owner = scope[IS_OWNER_HERE]()
            carrying = self._carrier.carried(asked, is_owner, hints)
            carried = await until_answered.enter_async_context(carrying)
            asked = carried.request
        hints = hints_of_parameters(asked.parameters, hints)
        info = await self._backend.describe(info.name, config_of(asked.parameters))
        call, wish = self._dialect.call_of(asked, info, streaming=True)
        return call, hints, self._encoder(route, wish, hints, carried)

    def _encoder(self, route: Route, wish: Wish, hints: Hints, carried: Carried | None) -> Encode:
        write = infer_event
        if route.endpoint is RestEndpoint.GENERATE_STREAM:
            write = generate_event

        async def encode(result: Result) -> bytes | memoryview:
            left = wish
            if carried is not None:
                left, result = await carried.put(wish, result)
            about = (left, result, self._non_finite)
            if not takes_long(left, result, raw=False):
                return write(*about)
            data: bytes | memoryview
            data = await carried_out(self._readers, write, *about, hints=hints)
            return data

        return encode


async def _send_events(answers: ResultStream, encode: Encode, send: Send) -> None:
    """Send an event for each answer. Raises FarmError for an error before the first."""
    begun = False
    try:
        async for result in answers:
            data = await encode(result)
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
