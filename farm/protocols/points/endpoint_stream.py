"""Many points in one request, answered line by line as they finish."""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from farm.bodies.readers import READS_HERE, Reads
from farm.bodies.reading import carried_out, is_long
from farm.call import Call, Hints, ModelInfo, Operation, Result
from farm.dispatcher.dispatcher import MOST_WAITING_BYTES, Dispatcher, bytes_of
from farm.errors import FarmError, Overloaded
from farm.http1.asgi import ClientGone, send_more, while_client_waits
from farm.model import check_call
from farm.protocols.points.batches import ReadPoints
from farm.protocols.points.codec import Points, encode_error_line, encode_result_line
from farm.scheduler.state import TaskId

IN_FLIGHT = 4096
"""Points of one request that are in the farm at once: enough to keep the largest farm busy, and far
below the size of a queue, so that a million points leave room for others."""

POINTS_A_RUN = 256
"""Points that are combined into one run of rows at once: about two milliseconds."""

POINTS_A_STEP = 4
"""Points that take as long to decode as one part of a call whose rows are arrays already."""

LINES_AT_ONCE = 128
"""Lines that are sent before other callers have their turn."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Waiting times before a request retries a full queue: doubling from the first."""

Line = bytes | memoryview
"""A line of the answer; a memoryview if a reader process has encoded it."""


AnyPoints = Points | ReadPoints
"""The points of a request, decoded in this process or in a reader."""


class PointRows:
    """Points as rows: consecutive ones of a model without batches may run as one task.

    outcomes: outcomes to send, with the numbers of their points. news: set while there are some,
    and when no more follow (is_over).
    """

    is_one_call = are_callers = False
    rows_a_step = POINTS_A_STEP

    def __init__(self, points: AnyPoints, info: ModelInfo, *, in_flight: int) -> None:
        self.outcomes: deque[tuple[int, Result | FarmError]] = deque()
        self.news = asyncio.Event()
        self.is_over = False
        self.config = points.config
        self.row_bytes = 8 * sum([max(1, tensor.size) for tensor in info.inputs])
        self._points = points
        self._info = info
        self._in_flight = in_flight
        self._bytes = 0  # of the outcomes
        # Outputs of one run have one shape.
        plain = points.form.operation is Operation.EVALUATE
        self._in_runs = plain and not any(tensor.varies for tensor in info.outputs)

    def __len__(self) -> int:
        return len(self._points)

    def is_wanted(self, first: int, end: int) -> bool:
        """Return that all points are wanted: they are cancelled together."""
        return True

    def most_open(self) -> int:
        """Bounded, so that a client that reads slowly only delays its own points."""
        return self._in_flight - len(self.outcomes)

    def part(self, first: int, most: int) -> Call:
        """Return the call of a point, or of it and the following points of the same form."""
        call = self._call(first)
        if most == 1 or self._info.max_batch > 1 or not self._in_runs:
            return call
        run = [call.inputs]
        forms = [(array.shape, array.dtype) for array in call.inputs]
        for index in range(first + 1, min(first + min(most, POINTS_A_RUN), len(self))):
            try:
                inputs = self._call(index).inputs
            except FarmError:
                break  # reported when its turn comes
            if [(array.shape, array.dtype) for array in inputs] != forms:
                break
            run.append(inputs)
        if len(run) == 1:
            return call
        columns = tuple([np.stack(column) for column in zip(*run, strict=True)])
        return Call(call.model, call.operation, columns, call.config, rows=len(run))

    def _call(self, index: int) -> Call:
        call = self._points.call(index, self._info)
        check_call(call, self._info)
        return call

    def done(self, first: int, end: int, result: Result) -> None:
        """Keep outcomes until they are read. Raises Overloaded if they have too many bytes."""
        waiting = self._bytes + bytes_of(result)
        if result.more and waiting > MOST_WAITING_BYTES and self.outcomes:
            raise Overloaded("the model answers faster than the client reads; ask for less")
        if end == first + 1:
            self._put(first, result)
            return
        count = end - first
        for number in range(count):
            outputs = tuple([output[number] for output in result.outputs])
            run_time_s = result.run_time_s / count
            self._put(
                first + number,
                Result(
                    outputs,
                    run_time_s,
                    worker=result.worker,
                    queue_time_s=result.queue_time_s,
                    copied=result.copied,
                    reused=result.reused,
                ),
            )

    def failed(self, first: int, end: int, error: FarmError) -> bool:
        """Fail these points only; the others continue."""
        for index in range(first, end):
            self._put(index, error)
        return True

    def finished(self) -> None:
        """No more outcomes follow."""
        self.is_over = True
        self.news.set()

    def _put(self, index: int, outcome: Result | FarmError) -> None:
        self._bytes += bytes_of(outcome)
        self.outcomes.append((index, outcome))
        self.news.set()

    def take(self, most: int) -> list[tuple[int, Result | FarmError]]:
        """Remove and return the next outcomes, which makes room for others."""
        taken = [self.outcomes.popleft() for _ in range(min(most, len(self.outcomes)))]
        self._bytes -= sum([bytes_of(outcome) for _, outcome in taken])
        if not self.outcomes and not self.is_over:
            self.news.clear()
        return taken


class PointStream(Response):
    """The answer to a request for many points; sends each line as soon as its point is done.

    While the queue is full, the points wait here and the client gets no error. When the client
    disconnects, all waiting points are cancelled.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self,
        backend: Dispatcher,
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
        """Send all lines."""
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await while_client_waits(self._send_lines(send), receive)
        except ClientGone:
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_lines(self, send: Send) -> None:
        rows = PointRows(self._points, self._info, in_flight=self._in_flight)
        call_id = await self._started(rows)
        if call_id is None:
            rows.finished()
        try:
            while not rows.is_over or rows.outcomes:
                await rows.news.wait()
                lines = [await self._line(*each) for each in rows.take(LINES_AT_ONCE)]
                if call_id is not None:
                    self._backend.feeder.more(call_id)
                await send_more(send, b"".join([line for line in lines if isinstance(line, bytes)]))
                for line in lines:
                    if isinstance(line, memoryview):
                        await send_more(send, line)
                await asyncio.sleep(0)
        finally:
            if call_id is not None:
                self._backend.cancel(call_id)

    async def _started(self, rows: PointRows) -> TaskId | None:
        """Submit the points as soon as the farm has room; None: it accepts none of them."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                operation = self._points.form.operation
                return self._backend.start_rows(rows, self._info.name, operation, self._hints)
            except Overloaded:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except FarmError as error:
                rows.failed(0, len(rows), error)
                return None

    async def _line(self, index: int, outcome: Result | FarmError) -> Line:
        """Return the line of an outcome; a reader process encodes a long one."""
        try:
            if isinstance(outcome, FarmError):
                raise outcome
            about = (self._points.form, index, self._info, outcome)
            if not is_long(outcome):
                return encode_result_line(*about)
            line: Line = await carried_out(
                self._readers, encode_result_line, *about, hints=self._hints
            )
            return line
        except FarmError as error:
            return encode_error_line(index, error)
