"""Arrays in farm's own messages: small ones in frame 0, large ones as frames of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.call import Array

INLINE_BYTES = 32 * 1024
"""Arrays up to this size travel inside frame 0: copying costs less than a frame of their own."""

MOST_DIMENSIONS = 32

_FLOAT64 = np.dtype("<f8")
_DTYPES = {
    dtype.str: dtype
    for code in "?bhiqBHIQefdFD"
    for dtype in (np.dtype(f"<{code}"), np.dtype(f">{code}"))
}
"""Types of entries that travel: plain numbers of a size that all machines agree on."""

Buffer = bytes | bytearray | memoryview


class ArrayWriter:
    """Collects the arrays of one message and says where each lies: [dtype, shape, at].

    inline: the bytes of the small ones, each at `at`; large: the others, `at` being -k for the
    k-th, counted from 1.
    """

    __slots__ = ("inline", "large", "length")

    def __init__(self) -> None:
        self.inline: list[bytes] = []
        self.length = 0
        self.large: list[Array] = []

    def put(self, array: Array) -> list[Any]:
        """Put an array. Raises TypeError when it is none of plain numbers."""
        dtype = array.dtype.str
        if dtype not in _DTYPES:
            raise TypeError(f"arrays of {array.dtype} do not travel; float64 does")
        nbytes = array.nbytes
        if nbytes > INLINE_BYTES:
            self.large.append(np.ascontiguousarray(array).reshape(-1))
            return [dtype, array.shape, -len(self.large)]
        at = self.length
        self.inline.append(array.tobytes())
        if nbytes % 8:
            self.inline.append(bytes(-nbytes % 8))
            nbytes += -nbytes % 8
        self.length = at + nbytes
        return [dtype, array.shape, at]

    def put_column(self, arrays: Sequence[Array]) -> list[Any]:
        """Put alike arrays, as `form_of` allows them, one after the other."""
        at = self.length
        first = arrays[0]
        nbytes = len(arrays) * first.nbytes
        self.inline.extend([array.tobytes() for array in arrays])
        if nbytes % 8:
            self.inline.append(bytes(-nbytes % 8))
            nbytes += -nbytes % 8
        self.length = at + nbytes
        return [first.dtype.str, first.shape, at]


def array_at(frames: Sequence[Buffer], inline_at: int, where: Any) -> Array:
    """The array that `where` describes, without copying; it may be written to if its frame may.

    inline_at: where in frame 0 small arrays begin. Raises what malformed data leads to: ValueError,
    TypeError, LookupError, OverflowError.
    """
    text, shape, at = where
    dtype = _FLOAT64 if text == "<f8" else _DTYPES[text]
    if len(shape) == 1:
        count = shape[0]
    elif len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"an array of {len(shape)} dimensions; at most {MOST_DIMENSIONS} travel")
    else:
        count = math.prod(shape)
    if count <= 0:
        if count == 0:
            return np.empty(shape, dtype)
        raise ValueError(f"an array of shape {shape}")
    if at < 0:
        return np.frombuffer(frames[-at], dtype).reshape(shape)
    array = np.frombuffer(frames[0], dtype, count, inline_at + at)
    return array if len(shape) == 1 else array.reshape(shape)


def column_at(frames: Sequence[Buffer], inline_at: int, where: Any, count: int) -> list[Array]:
    """`count` alike arrays that lie in a row, the first of which `where` describes."""
    text, shape, at = where
    if not 1 <= len(shape) <= MOST_DIMENSIONS or at < 0 or count * math.prod(shape) <= 0:
        raise ValueError(f"a column of {count} arrays of {len(shape)} dimensions that cannot be")
    return list(array_at(frames, inline_at, [text, [count, *shape], at]))


Form = list[tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of each of several arrays."""


def form_of(arrays: Sequence[Array]) -> Form | None:
    """The form of arrays that can be put as columns, which are small and not empty; else None."""
    for array in arrays:
        if not (array.ndim and 0 < array.nbytes <= INLINE_BYTES and array.dtype.str in _DTYPES):
            return None
    return [(array.shape, array.dtype) for array in arrays] or None


def have_form(arrays: Sequence[Array], form: Form) -> bool:
    """Whether arrays have a form."""
    if len(arrays) != len(form):
        return False
    for array, (shape, dtype) in zip(arrays, form, strict=True):
        if array.shape != shape or array.dtype != dtype:
            return False
    return True
