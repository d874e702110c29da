"""Requests that differ from one before in their numbers only, read without following an offset.

Clients send the same message over and over with other numbers in it. To read one through takes
about a fifth of the front door's time for a small call; to see that it is like the last one, two
comparisons of bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from farm.call import EMPTY_CONFIG, Array, Call, ModelInfo, Operation
from farm.errors import FarmError
from farm.protocols.graphpipe import SMALL_BYTES, Wish, call_of, decode_request
from farm.protocols.graphpipe_tensors import Fault

KEPT = 256
"""Kinds of messages that are remembered."""

LONGEST = 2 * SMALL_BYTES
"""Messages up to this length are remembered."""


class Repeated:
    """What messages of one tensor with numbers were found to say, by model and length."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], _Known] = {}

    def call_of(self, body: bytes, info: ModelInfo) -> tuple[Call, Wish] | None:
        """What `graphpipe.call_of` gives for this request; None: it has to be asked."""
        known = self._known.get((info.name, len(body)))
        if (
            known is None
            or known.info is not info
            or not body.startswith(known.head)
            or not body.endswith(known.tail)
        ):
            return None
        array = np.frombuffer(body, known.dtype, known.size, len(known.head)).reshape(known.shape)
        return Call(info.name, Operation.EVALUATE, (array,), rows=known.rows), known.wish

    def keep(self, body: bytes, info: ModelInfo, call: Call, wish: Wish) -> None:
        """Remember what this request was found to say, if the next one may be like it.

        A builder of flatbuffers gives numbers bytes of their own. Whether this one did is tried
        with other bytes, of which no offset, size, type or text can be made.
        """
        if call.config != EMPTY_CONFIG or len(call.inputs) != 1:
            return
        array = call.inputs[0]
        if array.dtype.hasobject or not 0 < array.nbytes <= SMALL_BYTES or len(body) > LONGEST:
            return
        start = _address(array) - _address(np.frombuffer(body, np.uint8))
        head, tail = body[:start], body[start + array.nbytes :]
        other = head + b"\xff" * array.nbytes + tail
        try:
            request = decode_request(other)
            if request is None:
                return
            again, same_wish = call_of(request, info)
        except (FarmError, Fault):
            return
        (there,) = again.inputs
        if (
            _address(there) - _address(np.frombuffer(other, np.uint8)) != start
            or (there.shape, again.rows, again.config) != (array.shape, call.rows, call.config)
            or list(same_wish) != list(wish)
        ):
            return
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[info.name, len(body)] = _Known(
            info, head, tail, array.dtype, array.size, array.shape, call.rows, wish
        )


class _Known(NamedTuple):
    """What is before and behind the numbers, and what they are."""

    info: ModelInfo
    head: bytes
    tail: bytes
    dtype: np.dtype[Any]
    size: int
    shape: tuple[int, ...]
    rows: int | None
    wish: Wish


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
