"""One ModelStreamInfer: its requests run concurrently and are answered in order.

Only models with a stream answer out of order, as Triton's decoupled models do: their answers delay
no other request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from farm.bodies.body import QUICK_BYTES, Body, HeldBody
from farm.bodies.readers import Reads
from farm.bodies.reading import carried_out
from farm.bodies.unpacking import Refused
from farm.call import Hints, Operation, Result
from farm.dispatcher.dispatcher import ResultStream
from farm.errors import INTERNAL_ERROR, FarmError, Unavailable
from farm.grpc.call import Caller, Requests, Write
from farm.http1.request import hints_of
from farm.http1.turns import Turns
from farm.protocols.kserve.dialect import GRPC
from farm.protocols.kserve.endpoint_inference import Inference
from farm.protocols.kserve.grpc.codec import (
    EMPTY_FINAL_RESPONSE,
    encode_stream_error,
    encode_streamed,
    is_quick,
)
from farm.protocols.kserve.request import InferRequest
from farm.protocols.kserve.shared_memory.endpoint_carrier import Carried

logger = logging.getLogger(__name__)

IN_FLIGHT = 512
"""Requests of one stream that run, or wait for their answers to be sent, before reading pauses."""


async def read_infer(
    decode: Callable[[bytes], Any], body: Body, readers: Reads, turns: Turns | None, hints: Hints
) -> Any:
    """Decode a ModelInferRequest, a long one in a reader process. Raises FarmError.

    turns: schedules the decoding of bodies above `QUICK_BYTES` in this process.
    """
    if isinstance(body, HeldBody):
        if not is_quick(body.view()):
            return await carried_out(readers, decode, body, hints=hints)
        body = body.read()
    if len(body) > QUICK_BYTES and turns is not None:
        await turns.wait()
    return decode(body)


class _Turn:
    """Orders the requests of a stream: one has its turn after those before it."""

    def __init__(self, before: _Turn | None) -> None:
        loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = loop.create_future()
        self._before = None if before is None else before._over
        self._passed = False

    async def comes(self) -> None:
        """Wait for this turn, unless it was passed on."""
        if self._before is not None and not self._passed:
            await asyncio.shield(self._before)

    def pass_on(self) -> None:
        """Give the next request its turn as soon as this one's comes; repeated calls do nothing."""
        if self._passed:
            return
        self._passed = True
        if self._before is None:
            self._over.set_result(None)
        else:
            self._before.add_done_callback(lambda _: self._over.set_result(None))


class InferStream:
    """Answers the requests of one stream; after an error the stream continues."""

    def __init__(self, inference: Inference, turns: Turns, write: Write, caller: Caller) -> None:
        """turns: schedules the decoding of long messages."""
        self._inference = inference
        self._turns = turns
        self._write = write
        self._caller = caller
        # The RPC's deadline ends the whole stream, with all that is running.
        self._hints = hints_for(caller._replace(remaining_s=None))
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._answering: set[asyncio.Task[None]] = set()

    async def serve(self, requests: Requests, ending: asyncio.Event) -> None:
        """Serve until the client has sent all requests and received all answers.

        When `ending` is set, finish the running requests and raise Unavailable.
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
        start: _Turn | None = None
        async for body in requests:
            await self._room.acquire()
            turn, start = _Turn(turn), _Turn(start)
            task = asyncio.create_task(self._answer(body, turn, start))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, body: Body, turn: _Turn, start: _Turn) -> None:
        """turn: in the order of answers; start: in that in which requests begin."""
        model = request_id = ""
        try:
            inference = self._inference
            model, request_id, request, raw = await read_infer(
                inference.dialect.decode_streamed, body, inference.readers, self._turns, self._hints
            )
            if isinstance(request, FarmError):
                raise request
            carrying = inference.carried(request, self._caller.is_owner_here, self._hints)
            async with carrying as (request, carried):
                await self._run(request, raw, turn, start, carried)
        except (FarmError, Refused) as error:
            await turn.comes()
            await self._write(encode_stream_error(model, request_id, error))
        except Exception:
            logger.exception("answering a request of a stream")
            mistake = FarmError(INTERNAL_ERROR)
            await turn.comes()
            await self._write(encode_stream_error(model, request_id, mistake))
        finally:
            turn.pass_on()
            start.pass_on()
            self._room.release()

    async def _run(
        self,
        request: InferRequest,
        raw: bool,
        turn: _Turn,
        start: _Turn,
        carried: Carried | None,
    ) -> None:
        inference = self._inference
        prepared = await inference.prepared(request, self._hints, GRPC, streaming=True)
        call, hints = prepared.call, prepared.hints
        if call.step is not None:  # requests of a sequence begin in the order of the stream
            await start.comes()
        start.pass_on()  # the next one goes on after this one is submitted, below

        async def send(result: Result, *, final: bool) -> None:
            message = await inference.encoded(
                prepared, result, encode_streamed, raw, final, raw=raw, carried=carried
            )
            await turn.comes()
            await self._write(message)

        if call.operation is not Operation.STREAM:
            await send(await inference.backend.submit(call, hints), final=True)
            return
        turn.pass_on()
        with closing(ResultStream(inference.backend, call, hints)) as answers:
            async for answer in answers:
                await send(answer, final=False)
        if request.parameters.get(EMPTY_FINAL_RESPONSE):
            await self._write(encode_streamed(prepared.wish, None, raw, True))


def hints_for(caller: Caller) -> Hints:
    """Return the hints in a call's metadata, with the RPC's deadline."""
    hints = hints_of(caller.headers, caller.peer, caller.user, caller.end)
    remaining_s = caller.remaining_s
    if remaining_s is None:
        return hints
    if hints.deadline_s is not None:
        remaining_s = min(remaining_s, hints.deadline_s)
    return replace(hints, deadline_s=remaining_s)
