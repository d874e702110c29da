"""Many points in one request, answered line by line as they finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.errors import FarmError, Overloaded
from farm.protocols.points import Form, encode_error_line, encode_result_line
from farm.server.answers import Answers, StartsCalls
from farm.server.asgi import ClientGone, send_more, while_client_waits
from farm.server.readers import READS_HERE, Reads
from farm.server.reading import carried_out, is_long

IN_FLIGHT = 4096
"""Points of one request that are in the farm at once: enough for the largest farm to be busy, and
far below what a queue holds, so that a million points leave room for others."""

STARTED_AT_ONCE = 32
"""Points that begin in one turn of the loop, so that other callers have theirs in between."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""How long a point waits before it asks a full queue again: doubling from the first."""


Line = bytes | memoryview
"""A line of the answer; a view where it was written elsewhere."""


class Submits(StartsCalls, Protocol):
    """What a stream needs of whatever runs calls."""

    async def submit(self, call: Call, hints: Hints) -> Result:
        """The call's result; raises FarmError. Cancelling takes the call back if it still waits."""


class AnyPoints(Protocol):
    """The points of a request, wherever it was read."""

    @property
    def form(self) -> Form:
        """The form of the answer's lines."""

    def __len__(self) -> int: ...

    def call(self, index: int, info: ModelInfo) -> Call:
        """The call for one point. Raises InvalidInput."""


class PointStream(Response):
    """The answer to a request for many points; sends each line as soon as its point is done.

    Nobody is told that a queue is full: the points wait here. When the client hangs up, every
    point that still waits is taken back.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self,
        backend: Submits,
        points: AnyPoints,
        info: ModelInfo,
        hints: Hints,
        *,
        in_flight: int,
        readers: Reads = READS_HERE,
    ) -> None:
        super().__init__()
        self._readers = readers
        self._backend = backend
        self._points = points
        self._info = info
        self._hints = hints
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send every line."""
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await while_client_waits(self._send_lines(send), receive)
        except ClientGone:
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_lines(self, send: Send) -> None:
        unfinished = len(self._points)
        todo = iter(range(unfinished))
        # Bounded: a client that reads slowly slows its own points down.
        lines: asyncio.Queue[Line | None] = asyncio.Queue(self._in_flight)
        async with asyncio.TaskGroup() as group:
            for number in range(min(unfinished, self._in_flight)):
                group.create_task(self._work_off(todo, lines))
                if number % STARTED_AT_ONCE == STARTED_AT_ONCE - 1:
                    await asyncio.sleep(0)
            while unfinished:
                ready = [await lines.get()]
                while not lines.empty():
                    ready.append(lines.get_nowait())
                unfinished -= ready.count(None)
                short = [line for line in ready if isinstance(line, bytes)]
                await send_more(send, b"".join(short))
                for line in ready:
                    if isinstance(line, memoryview):
                        await send_more(send, line)

    async def _work_off(self, todo: Iterator[int], lines: asyncio.Queue[Line | None]) -> None:
        """Put the lines of each point, and None behind the last."""
        for index in todo:
            async with aclosing(self._lines(index)) as of_point:
                async for line in of_point:
                    await lines.put(line)
            await lines.put(None)

    async def _lines(self, index: int) -> AsyncGenerator[Line]:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                call = self._points.call(index, self._info)
                if call.operation is Operation.STREAM:
                    with closing(Answers(self._backend, call, self._hints)) as answers:
                        async for answer in answers:
                            yield await self._line(index, answer)
                    result = answers.end
                    assert result is not None, "they have ended without an error"
                else:
                    result = await self._backend.submit(call, self._hints)
                yield await self._line(index, result)
                return
            except Overloaded:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except FarmError as error:
                yield encode_error_line(index, error)
                return

    async def _line(self, index: int, result: Result) -> Line:
        """The line of an answer; a long one is written elsewhere. Raises InvalidOutput."""
        about = (self._points.form, index, self._info, result)
        if not is_long(result):
            return encode_result_line(*about)
        client = self._hints.client
        line: Line = await carried_out(self._readers, encode_result_line, *about, client=client)
        return line
