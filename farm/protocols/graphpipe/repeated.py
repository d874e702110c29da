"""Recognises requests that differ from an earlier one only in their numbers.

Clients send the same message over and over with other numbers. Two comparisons of bytes detect
this without following an offset. Reading a request of one small tensor completely takes 20 µs, a
fifth of the front door's time for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from farm.call import EMPTY_CONFIG, Call, ModelInfo, Operation
from farm.errors import FarmError
from farm.protocols.graphpipe.codec import SMALL_BYTES, Wish, call_of, decode_request
from farm.protocols.graphpipe.tensors import GraphpipeFault

KEPT = 256
"""Maximum number of remembered messages; then all are forgotten."""

LONGEST = 2 * SMALL_BYTES
"""Maximum length of a remembered message, in bytes."""


class _Meaning(NamedTuple):
    """The meaning of a request with one tensor, except its numbers; start: their position."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int | None
    config: str
    wish: tuple[int, ...]


class Repeated:
    """The meanings of earlier messages with one numeric tensor, by model and length."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[ModelInfo, bytes, bytes, _Meaning]] = {}

    def call_of(self, body: bytes, info: ModelInfo) -> tuple[Call, Wish] | None:
        """Return the same as `codec.call_of` for this request; None if it is not recognised."""
        known = self._known.get((info.name, len(body)))
        if known is None:
            return None
        described, head, tail, meaning = known
        if described is not info or not (body.startswith(head) and body.endswith(tail)):
            return None
        numbers = memoryview(body)[len(head) : len(body) - len(tail)]
        array = np.frombuffer(numbers, meaning.dtype).reshape(meaning.shape)
        return Call(info.name, Operation.EVALUATE, (array,), rows=meaning.rows), meaning.wish

    def keep(self, body: bytes, info: ModelInfo, call: Call, wish: Wish) -> None:
        """Remember the meaning of this request if its numbers can be replaced.

        Builders of flatbuffers normally store numbers in bytes that nothing else uses. To check
        this, the method replaces the numbers by bytes that are invalid in an offset, size, type or
        text: the message must keep its meaning.
        """
        if call.config != EMPTY_CONFIG or len(call.inputs) != 1 or len(body) > LONGEST:
            return
        size = call.inputs[0].nbytes
        if call.inputs[0].dtype.hasobject or not 0 < size <= SMALL_BYTES:
            return
        meaning = _meaning(body, call, wish)
        head, tail = body[: meaning.start], body[meaning.start + size :]
        other = head + b"\xff" * size + tail
        try:
            request = decode_request(other)
            if request is None or _meaning(other, *call_of(request, info)) != meaning:
                return
        except (FarmError, GraphpipeFault):
            return
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[info.name, len(body)] = info, head, tail, meaning


def _meaning(body: bytes, call: Call, wish: Wish) -> _Meaning:
    (array,) = call.inputs
    start = array.ctypes.data - np.frombuffer(body, np.uint8).ctypes.data
    return _Meaning(start, array.dtype, array.shape, call.rows, call.config, tuple(wish))
