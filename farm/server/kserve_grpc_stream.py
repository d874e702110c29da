"""One ModelStreamInfer: its requests run side by side, and are answered in their order.

Only a model with a stream answers whenever it likes, as Triton's decoupled models do: its answers
keep no other request waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from farm.call import Call, Hints, Operation, Result
from farm.errors import FarmError, Unavailable
from farm.protocols.kserve import InferRequest, Wish
from farm.protocols.kserve_grpc import (
    EMPTY_FINAL_RESPONSE,
    decode_streamed,
    encode_stream_error,
    encode_streamed,
    is_quick,
)
from farm.server.answers import Answers
from farm.server.body import QUICK_BYTES, Body, HeldBody
from farm.server.door import INTERNAL_ERROR, Backend
from farm.server.grpc_call import Requests, Write
from farm.server.readers import READS_HERE, Reads
from farm.server.reading import carried_out, is_long, is_long_raw
from farm.server.turns import Turns

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


async def read_infer(
    decode: Callable[[bytes], Any], body: Body, readers: Reads, turns: Turns | None, client: str
) -> Any:
    """Decode a ModelInferRequest, a long one in a reader process. Raises FarmError.

    turns: schedules the decoding of bodies above `QUICK_BYTES` in this process.
    """
    if isinstance(body, HeldBody):
        if not is_quick(body.view()):
            return await carried_out(readers, decode, body, client=client)
        body = body.read()
    if len(body) > QUICK_BYTES and turns is not None:
        await turns.wait()
    return decode(body)


class _Turn:
    """When a request of a stream may be answered: once those before it have been."""

    def __init__(self, before: _Turn | None) -> None:
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = loop.create_future()
        self._before = None if before is None else before._over
        self._passed = False

    async def comes(self) -> None:
        """Wait for it, unless it was passed on."""
        if self._before is not None and not self._passed:
            await asyncio.shield(self._before)

    def pass_on(self) -> None:
        """Let the next one have its turn as soon as this one's would have come; again: nothing."""
        if self._passed:
            return
        self._passed = True
        if self._before is None:
            self._over.set_result(None)
        else:
            self._before.add_done_callback(lambda _: self._over.set_result(None))


class InferStream:
    """Answers the requests of one stream; an error of one is a message, and the stream goes on."""

    def __init__(
        self,
        backend: Backend,
        call_of: MakesCalls,
        write: Write,
        hints: Hints,
        readers: Reads = READS_HERE,
        turns: Turns | None = None,
    ) -> None:
        """turns: at which long messages are read."""
        self._readers = readers
        self._turns = turns
        self._backend = backend
        self._call_of = call_of
        self._write = write
        self._hints = hints
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._answering: set[asyncio.Task[None]] = set()

    async def serve(self, requests: Requests, ending: asyncio.Event) -> None:
        """Until the client has sent all and has all answers.

        When `ending` is set what runs is finished, and Unavailable raised.
        """
        # No TaskGroup: after a cancellation its exception refers back to it, and only the garbage
        # collector would free the client's messages.
        reading = asyncio.create_task(self._read(requests))
        ended = asyncio.create_task(ending.wait())
        try:
            await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
            was_read = reading.done()
            reading.cancel()
            while self._answering:
                await asyncio.wait(self._answering)
        finally:
            for task in (reading, ended, *self._answering):
                task.cancel()
        if not was_read:
            raise Unavailable("the farm is shutting down")
        reading.result()

    async def _read(self, requests: Requests) -> None:
        turn: _Turn | None = None
        async for body in requests:
            await self._room.acquire()
            turn = _Turn(turn)
            task = asyncio.create_task(self._answer(body, turn))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, body: Body, turn: _Turn) -> None:
        model = request_id = ""
        try:
            model, request_id, request, raw = await read_infer(
                decode_streamed, body, self._readers, self._turns, self._hints.client
            )
            if isinstance(request, FarmError):
                raise request
            await self._run(request, raw, turn)
        except FarmError as error:
            await turn.comes()
            await self._write(encode_stream_error(model, request_id, error))
        except Exception:
            logger.exception("answering a request of a stream")
            mistake = FarmError(INTERNAL_ERROR)
            await turn.comes()
            await self._write(encode_stream_error(model, request_id, mistake))
        finally:
            turn.pass_on()
            self._room.release()

    async def _run(self, request: InferRequest, raw: bool, turn: _Turn) -> None:
        call, hints, wish, lead = await self._call_of(request, self._hints, streaming=True)
        if call.operation is not Operation.STREAM:
            result = await self._backend.submit(call, hints)
            await self._send(turn, wish, result, raw, True, lead)
            return
        turn.pass_on()
        with closing(Answers(self._backend, call, hints)) as answers:
            async for answer in answers:
                await self._send(turn, wish, answer, raw, False, lead)
        if request.parameters.get(EMPTY_FINAL_RESPONSE):
            await self._write(encode_streamed(wish, None, raw=raw, final=True))

    async def _send(
        self,
        turn: _Turn,
        wish: Wish,
        result: Result,
        raw: bool,
        final: bool,
        lead: tuple[int, ...],
    ) -> None:
        """Send an answer when its turn comes; a long one is written elsewhere before."""
        about = (wish, result.outputs, raw, final, lead)
        if (is_long_raw if raw else is_long)(result):
            client = self._hints.client
            message = await carried_out(self._readers, encode_streamed, *about, client=client)
        else:
            message = encode_streamed(*about)
        await turn.comes()
        await self._write(message)
