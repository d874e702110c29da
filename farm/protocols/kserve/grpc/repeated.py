"""ModelInfer requests that differ from an earlier one only in their numbers, and their answers.

Samplers send one request again and again, with other numbers at its end. The bytes before these are
compared with those of requests that have been read, checked and turned into calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import Call, Hints, ModelInfo, Result
from farm.protocols.kserve.endpoint_inference import Prepared
from farm.protocols.kserve.grpc.codec import start_of_numbers
from farm.protocols.kserve.request import InferRequest

KNOWN, LONGEST = 256, 1024
"""Requests that are kept, and the most bytes of one without its numbers."""

NUMBERS = "iuf"
"""Kinds of arrays whose raw bytes may have any value."""


class Known:
    """A request of one raw input and its answer of one raw output, without their numbers."""

    __slots__ = (
        *("_call", "_dtype", "_head", "_output", "_shape", "_start", "_wish"),
        *("info", "model", "version"),
    )

    def __init__(self, start: int, request: InferRequest, info: ModelInfo, asked: Prepared) -> None:
        """start: where the numbers begin. info: the model that the request names."""
        self.model, self.version, self.info = request.model, request.version, info
        call, _, self._wish = asked
        self._call = Call(call.model, call.operation, rows=call.rows)
        self._dtype, self._shape = call.inputs[0].dtype, call.inputs[0].shape
        self._start = start
        self._output: tuple[Any, tuple[int, ...]] | None = None  # type and shape, once known
        self._head = b""

    def prepared(self, body: bytes, hints: Hints) -> Prepared:
        """Return the request with the numbers at the end of `body`."""
        array = np.frombuffer(body[self._start :], self._dtype)
        if array.shape != self._shape:
            array = array.reshape(self._shape)
        call = self._call
        call = Call(call.model, call.operation, (array,), rows=call.rows)
        return Prepared(call, hints, self._wish)

    def answer(self, result: Result) -> bytes | None:
        """Return the answer, if only its numbers differ from those of one that was kept."""
        outputs = result.outputs
        if not outputs or outputs[1:] or result.reused:
            return None
        array = outputs[0]
        return self._head + array.tobytes() if (array.dtype, array.shape) == self._output else None

    def keep(self, result: Result, answer: bytes) -> None:
        """Keep an answer without its numbers."""
        outputs = result.outputs
        if self._output or len(outputs) != 1 or result.reused:
            return
        array = outputs[0]
        numbers = array.tobytes() if array.dtype.kind in NUMBERS else b""
        if numbers and answer.endswith(numbers):
            self._output = array.dtype, array.shape
            self._head = answer[: -len(numbers)]


class RepeatedRequests:
    """The requests that were answered lately, by their bytes."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}  # where the numbers began, by the size of the request
        self._known: dict[tuple[int, bytes], Known] = {}  # by the size, and the bytes before them

    def find(self, body: bytes) -> Known | None:
        """Return what is kept of a request that differs from this one in its numbers."""
        size = len(body)
        if size not in self._starts:
            return None
        return self._known.get((size, body[: self._starts[size]]))

    def keep(
        self, body: bytes, request: InferRequest, info: ModelInfo, asked: Prepared
    ) -> Known | None:
        """Keep a request if others may be like it, and return what is kept."""
        tensor = request.inputs[0] if len(request.inputs) == 1 else None
        if (
            tensor is None
            or request.parameters
            or request.id is not None
            or tensor.parameters
            or tensor.array.dtype.kind not in NUMBERS
            or any(output.parameters for output in request.outputs)
        ):
            return None
        start = start_of_numbers(body, tensor.array.tobytes())
        if not 0 < start <= LONGEST:
            return None
        if len(self._known) >= KNOWN:
            self._known.clear()
            self._starts.clear()
        self._starts[len(body)] = start
        known = self._known[len(body), body[:start]] = Known(start, request, info, asked)
        return known
