"""One ModelStreamInfer: requests as they come, answers as they are ready, whatever their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from farm.call import Call, Hints, Operation
from farm.errors import FarmError, Unavailable
from farm.protocols.kserve import InferRequest, Wish
from farm.protocols.kserve_grpc import (
    EMPTY_FINAL_RESPONSE,
    decode,
    encode_stream_error,
    encode_streamed,
    infer_request,
)
from farm.server.answers import Answers
from farm.server.door import INTERNAL_ERROR, Backend
from farm.server.grpc_call import Requests, Write

logger = logging.getLogger(__name__)

IN_FLIGHT = 512
"""Requests of one stream at work, or answered and not yet written, before more are read."""


class Asked(NamedTuple):
    """A request as a call; lead: sizes to show in front of each output's own."""

    call: Call
    hints: Hints
    wish: Wish
    lead: tuple[int, ...]


class MakesCalls(Protocol):
    """Makes a request a call."""

    def __call__(self, request: InferRequest, hints: Hints, *, streaming: bool) -> Awaitable[Asked]:
        """The call, its hints, and what is asked back. Raises FarmError."""


class InferStream:
    """Answers the requests of one stream; an error of one is a message, and the stream goes on."""

    def __init__(self, backend: Backend, call_of: MakesCalls, write: Write, hints: Hints) -> None:
        self._backend = backend
        self._call_of = call_of
        self._write = write
        self._hints = hints
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def serve(self, requests: Requests, ending: asyncio.Event) -> None:
        """Until the client has sent all and has all answers.

        When `ending` is set what runs is finished, and Unavailable raised.
        """
        async with asyncio.TaskGroup() as answers:
            reading = asyncio.create_task(self._read(requests, answers))
            ended = asyncio.create_task(ending.wait())
            try:
                await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                was_read = reading.done()
                reading.cancel()
                ended.cancel()
        if not was_read:
            raise Unavailable("the farm is shutting down")
        reading.result()

    async def _read(self, requests: Requests, answers: asyncio.TaskGroup) -> None:
        async for body in requests:
            await self._room.acquire()
            answers.create_task(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        model = request_id = ""
        try:
            message = decode("inference.ModelInferRequest", body)
            model, request_id = message.model_name, message.id
            await self._run(message)
        except FarmError as error:
            await self._write(encode_stream_error(model, request_id, error))
        except Exception:
            logger.exception("answering a request of a stream")
            mistake = FarmError(INTERNAL_ERROR)
            await self._write(encode_stream_error(model, request_id, mistake))
        finally:
            self._room.release()

    async def _run(self, message: Any) -> None:
        request, raw = infer_request(message)
        call, hints, wish, lead = await self._call_of(request, self._hints, streaming=True)
        if call.operation is not Operation.STREAM:
            result = await self._backend.submit(call, hints)
            await self._write(encode_streamed(wish, result.outputs, raw=raw, final=True, lead=lead))
            return
        with closing(Answers(self._backend, call, hints)) as answers:
            async for answer in answers:
                outputs = answer.outputs
                await self._write(encode_streamed(wish, outputs, raw=raw, final=False, lead=lead))
        if request.parameters.get(EMPTY_FINAL_RESPONSE):
            await self._write(encode_streamed(wish, None, raw=raw, final=True))
