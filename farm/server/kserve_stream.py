"""KServe answers that come in parts: generate_stream and infer_stream, as server-sent events.

A model that streams sends an event for each answer; any other sends one. What goes wrong before the
first answer has a status of its own; after it, an event with `error` is the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from starlette.types import Receive, Scope, Send

from farm.call import Call, Hints, Result
from farm.errors import FarmError
from farm.protocols.json_numbers import NonFinite
from farm.protocols.kserve import Wish, call_of, config_of, hints_of_parameters
from farm.protocols.kserve_generate import decode_generate, encode_generate, error_event, event
from farm.protocols.kserve_json import (
    HEADER_LENGTH,
    decode_infer,
    encode_error,
    encode_infer,
    error_body,
)
from farm.server.answers import Answers
from farm.server.asgi import (
    USER,
    ClientGone,
    answer_json,
    headers_of,
    peer_of,
    read_body,
    while_client_waits,
)
from farm.server.door import Backend, Refused, Request, hints_of
from farm.server.kserve_paths import Endpoint, Route, check_method, route_of
from farm.server.kserve_repository import Repository
from farm.server.umbridge import RETRY_SOON

EVENTS = b"text/event-stream; charset=utf-8"

Encode = Callable[[Result], bytes]


class KServeStreams:
    """The ASGI application of the paths whose answers come in parts."""

    def __init__(
        self,
        backend: Backend,
        repository: Repository,
        *,
        non_finite: NonFinite,
    ) -> None:
        self._backend = backend
        self._repository = repository
        self._non_finite = non_finite

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            call, hints, encode = await self._asked(scope, receive)
            with closing(Answers(self._backend, call, hints)) as answers:
                await while_client_waits(_send_events(answers, encode, send), receive)
        except ClientGone:
            pass
        except Refused as refused:
            body = self.error_body(refused.kind, refused.message)
            await answer_json(send, refused.status, body, headers=refused.headers)
        except FarmError as error:
            status, body = encode_error(error)
            headers = RETRY_SOON if status == 503 else ()
            await answer_json(send, status, body, headers=headers)

    def error_body(self, kind: str, message: str) -> bytes:
        """The body of an answer to a request that is refused, in the protocol's form."""
        return error_body(message)

    async def _asked(self, scope: Scope, receive: Receive) -> tuple[Call, Hints, Encode]:
        target = scope["raw_path"].decode("latin-1")
        target = "/" + target.lstrip("/")
        route = route_of(target)
        headers = headers_of(scope)
        peer, user = peer_of(scope), scope[USER]
        check_method(route, Request(scope["method"], target, headers, b"", peer, user))
        body = await read_body(receive)
        info = self._repository.model(route.model, route.version)
        if route.endpoint is Endpoint.GENERATE_STREAM:
            asked = decode_generate(route.model, route.version, body, info)
        else:
            asked = decode_infer(route.model, route.version, body, headers.get(HEADER_LENGTH))
        hints = hints_of_parameters(asked.parameters, hints_of(headers, peer, user))
        info = await self._backend.describe(info.name, config_of(asked.parameters))
        call, wish = call_of(asked, info, streaming=True)
        return call, hints, self._encoder(route, wish)

    def _encoder(self, route: Route, wish: Wish) -> Encode:
        if route.endpoint is Endpoint.GENERATE_STREAM:
            return lambda result: event(encode_generate(wish, result, self._non_finite))
        # Events are text: raw tensors have no place in them.
        in_json = wish._replace(outputs=[o._replace(binary=False) for o in wish.outputs])
        return lambda result: event(encode_infer(in_json, result, self._non_finite)[0])


async def _send_events(answers: Answers, encode: Encode, send: Send) -> None:
    """Send an event for each answer. Raises FarmError for what goes wrong before the first."""
    begun = False
    try:
        async for result in answers:
            data = encode(result)
            if not begun:
                await _begin(send)
                begun = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
    except FarmError as error:
        if not begun:
            raise
        last = error_event(error)
        await send({"type": "http.response.body", "body": last, "more_body": True})
    if not begun:
        await _begin(send)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _begin(send: Send) -> None:
    headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
