"""Arrays in farm's own messages: small ones in frame 0, large ones as frames of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.call import BFLOAT16, BYTES, Array, numpy_dtype

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
        """Put an array. Raises TypeError when it is none of plain numbers, nor of bytes."""
        dtype = array.dtype.str
        if dtype not in _DTYPES:
            return self._put_special(array)
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

    def _put_special(self, array: Array) -> list[Any]:
        """Put an array as others that can be put: at then says where these are."""
        if array.dtype == object and all(type(item) is bytes for item in array.flat):
            items = array.reshape(-1).tolist()
            lengths = np.fromiter(map(len, items), np.uint32, len(items))
            text = np.frombuffer(b"".join(items), np.uint8)
            return [BYTES, array.shape, [self.put(lengths), self.put(text)]]
        if array.dtype.name == BFLOAT16:
            return [BFLOAT16, array.shape, [self.put(array.view(np.uint16))]]
        raise TypeError(f"arrays of {array.dtype} do not travel; float64 does")

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
    dtype = _FLOAT64 if text == "<f8" else _DTYPES.get(text)
    if dtype is None:
        if text not in (BYTES, BFLOAT16) or any(part[0] not in _DTYPES for part in at):
            raise LookupError(f"an array of {text!r}")
        return _special(text, shape, *[array_at(frames, inline_at, part) for part in at])
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


def _special(text: str, shape: Any, first: Array, second: Array | None = None) -> Array:
    """The array that `_put_special` has put as one or two others."""
    if len(shape) > MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape}")
    if text == BFLOAT16 and second is None and first.dtype == np.uint16:
        return first.view(numpy_dtype(BFLOAT16)).reshape(shape)
    if text != BYTES or second is None or first.dtype != np.uint32 or second.dtype != np.uint8:
        raise ValueError(f"an array of {text!r} in parts that it cannot have")
    ends = np.cumsum(first, dtype=np.int64).tolist()
    if len(ends) != math.prod(shape) or (ends[-1] if ends else 0) != second.size:
        raise ValueError(f"{len(ends)} texts of {second.size} bytes in all for shape {shape}")
    whole = second.tobytes()
    array = np.empty(len(ends), object)
    for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        array[i] = whole[start:end]
    return array.reshape(shape)


def column_at(frames: Sequence[Buffer], inline_at: int, where: Any, count: int) -> list[Array]:
    """`count` alike arrays that lie in a row, the first of which `where` describes."""
    text, shape, at = where
    if not 1 <= len(shape) <= MOST_DIMENSIONS or at < 0 or count * math.prod(shape) <= 0:
        raise ValueError(f"a column of {count} arrays of {len(shape)} dimensions that cannot be")
    return list(array_at(frames, inline_at, [text, [count, *shape], at]))


def column_from(where: Any, first: int) -> Any:
    """Where the arrays of a column lie from the one with number `first` on; malformed as it is."""
    try:
        text, shape, at = where
        return [text, shape, at + first * _DTYPES[text].itemsize * math.prod(shape)]
    except (TypeError, ValueError, LookupError):
        return where


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
