"""Arrays in farm's own messages: small ones in frame 0, large ones by themselves; derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from farm.call import BFLOAT16, BYTES, Array, Buffer, Call, Derivative, Operation, numpy_dtype

INLINE_BYTES = 32 * 1024
"""Arrays up to this size are sent inside frame 0: copying costs less than a separate frame."""

MOST_DIMENSIONS = 32

_FLOAT64 = np.dtype("<f8")
_DTYPES = {
    dtype.str: dtype
    for code in "?bhiqBHIQefdFD"
    for dtype in (np.dtype(f"<{code}"), np.dtype(f">{code}"))
}
"""Supported types of entries: plain numbers of a size that all machines agree on."""


@dataclass(slots=True)
class ArrayWriter:
    """Collects the arrays of one message and returns the place of each: [dtype, shape, at].

    inline: the bytes of the small ones, each at `at`; large: the others, `at` being -k for the
    k-th, counted from 1.
    """

    inline: list[bytes] = field(default_factory=list)
    length: int = 0
    large: list[Array] = field(default_factory=list)

    def put(self, array: Array) -> list[Any]:
        """Add an array. Raises TypeError if its entries are neither plain numbers nor bytes."""
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
        """Add an array as one or two plain ones: `at` then has the places of these."""
        if array.dtype == object and all(type(item) is bytes for item in array.flat):
            items = array.reshape(-1).tolist()
            lengths = np.fromiter(map(len, items), np.uint32, len(items))
            text = np.frombuffer(b"".join(items), np.uint8)
            return [BYTES, array.shape, [self.put(lengths), self.put(text)]]
        if array.dtype.name == BFLOAT16:
            return [BFLOAT16, array.shape, [self.put(array.view(np.uint16))]]
        raise TypeError(f"arrays of {array.dtype} are not supported; float64 is")

    def put_column(self, arrays: Sequence[Array]) -> list[Any]:
        """Add several arrays of one form (see `form_of`), one after the other."""
        first = arrays[0]
        return self._put_equal(first.dtype.str, first.shape, [a.tobytes() for a in arrays])

    def put_rows(self, array: Array) -> list[Any]:
        """Add the rows of an array, each of the form of one in a column (see `form_of`)."""
        return self._put_equal(array.dtype.str, array.shape[1:], [array.tobytes()])

    def _put_equal(self, dtype: str, shape: tuple[int, ...], data: list[bytes]) -> list[Any]:
        at, nbytes = self.length, sum(map(len, data))
        self.inline += data
        if nbytes % 8:
            self.inline.append(bytes(-nbytes % 8))
            nbytes += -nbytes % 8
        self.length = at + nbytes
        return [dtype, shape, at]


def array_at(frames: Sequence[Buffer], inline_at: int, where: Any) -> Array:
    """Return the array that `where` describes, without copying; writable if its frame is.

    inline_at: where small arrays begin in frame 0. Malformed data raises ValueError, TypeError,
    LookupError or OverflowError.
    """
    text, shape, at = where
    dtype = _FLOAT64 if text == "<f8" else _DTYPES.get(text)
    if dtype is None:
        if text not in (BYTES, BFLOAT16) or any(part[0] not in _DTYPES for part in at):
            raise LookupError(f"an array of {text!r}")
        return _special(text, shape, *[array_at(frames, inline_at, part) for part in at])
    dimensions = len(shape)
    if dimensions == 1:
        count = shape[0]
    elif dimensions > MOST_DIMENSIONS:
        raise ValueError(f"an array of {dimensions} dimensions; expected at most {MOST_DIMENSIONS}")
    else:
        count = math.prod(shape)
    if count <= 0:
        if count == 0:
            return np.empty(shape, dtype)
        raise ValueError(f"an array of shape {shape}")
    if at < 0:
        return np.frombuffer(frames[-at], dtype).reshape(shape)
    array = np.frombuffer(frames[0], dtype, count, inline_at + at)
    return array if dimensions == 1 else array.reshape(shape)


def _special(text: str, shape: Any, first: Array, second: Array | None = None) -> Array:
    """Rebuild the array that `_put_special` has stored as one or two others."""
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


def column_at(frames: Sequence[Buffer], inline_at: int, where: Any, count: int) -> Array:
    """Return `count` consecutive arrays of one form, the first of which `where` describes, as one.

    It has one more leading axis. Malformed data raises as in `array_at`.
    """
    text, shape, at = where
    if not 1 <= len(shape) <= MOST_DIMENSIONS or at < 0 or count * math.prod(shape) <= 0:
        raise ValueError(f"a column of {count} arrays of {len(shape)} dimensions that cannot be")
    return array_at(frames, inline_at, [text, [count, *shape], at])


def column_from(where: Any, first: int) -> Any:
    """Return the place of a column's arrays from number `first` on; malformed data is unchanged."""
    try:
        text, shape, at = where
        return [text, shape, at + first * _DTYPES[text].itemsize * math.prod(shape)]
    except (TypeError, ValueError, LookupError):
        return where


Form = list[tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and type of each of several arrays."""


def form_of(arrays: Sequence[Array]) -> Form | None:
    """Return the form of arrays that can be put as columns, small and not empty; else None."""
    for array in arrays:
        if not (array.ndim and 0 < array.nbytes <= INLINE_BYTES and array.dtype.str in _DTYPES):
            return None
    return [(array.shape, array.dtype) for array in arrays] or None


def have_form(arrays: Sequence[Array], form: Form) -> bool:
    """Whether the arrays have this form."""
    if len(arrays) != len(form):
        return False
    for array, (shape, dtype) in zip(arrays, form, strict=True):
        if array.shape != shape or array.dtype != dtype:
            return False
    return True


Wrt = tuple[int, int, int, bool, bool]
"""out_wrt, in_wrt and in_wrt2 of a derivative, and whether it has sens and vec."""


def wrt_of(call: Call) -> Wrt | None:
    """Return what derivative calls of one group share; None for other calls."""
    wrt = call.derivative
    if wrt is None:
        return None
    return wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2, wrt.sens is not None, wrt.vec is not None


def arrays_of(call: Call) -> tuple[Array, ...]:
    """Return the inputs of a call, and after them sens and vec of its derivative."""
    wrt = call.derivative
    if wrt is None:
        return call.inputs
    return (*call.inputs, *[vector for vector in (wrt.sens, wrt.vec) if vector is not None])


def calls_of(
    model: str, operation: Operation, config: str, columns: list[list[Array]], wrt: Sequence[Any]
) -> list[Call]:
    """Return the calls of a group. columns: each array of all calls; wrt: a `Wrt`, or nothing.

    Raises ValueError, TypeError or IndexError if they do not fit together.
    """
    if not wrt:
        return [Call(model, operation, x, config) for x in zip(*columns, strict=True)]
    out_wrt, in_wrt, in_wrt2, has_sens, has_vec = wrt
    for index in (out_wrt, in_wrt, in_wrt2):
        if type(index) is not int:
            raise TypeError(f"expected a whole number, got {index!r}")
    count = len(columns[0])
    vec = columns.pop() if has_vec is True else repeat(None, count)
    sens = columns.pop() if has_sens is True else repeat(None, count)
    inputs = zip(*columns, strict=True) if columns else repeat((), count)
    return [
        Call(model, operation, x, config, Derivative(out_wrt, in_wrt, in_wrt2, s, v))
        for x, s, v in zip(inputs, sens, vec, strict=True)
    ]
