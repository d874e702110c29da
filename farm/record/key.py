"""Keys of evaluations: equal for calls that ask a model for the same thing, bit for bit.

A key is a hash of model, version, operation, config, derivative arguments, and bytes, type and
shape of all inputs. -0.0 counts as 0.0, as no solver should tell them apart; all other bits count.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from farm.call import Array, Call, Derivative, ModelInfo, TensorInfo, numpy_dtype
from farm.model import shape_of

KEY_BYTES = 16

_LENGTH = struct.Struct("<I")
_FLOAT64 = np.dtype(np.float64)


# Casts and sums of odd numbers, such as signalling NaN, warn otherwise.
@np.errstate(all="ignore")
def keys_of(call: Call, info: ModelInfo | None, version: str) -> list[bytes]:
    """Return the key of each row of a call; of a call without rows, its only key.

    info: the description of the model for the call's config. Flat inputs and those in the declared
    shape then have the same key, and so have inputs of other types that hold the same numbers.
    """
    wrt = call.derivative
    indices = None if wrt is None else (wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2)
    head = _head(call.model, version, call.operation.value, call.config, indices)
    tensors = None if info is None else info.inputs
    if call.rows is None:
        of_row = head.copy()
        for i, array in enumerate(call.inputs):
            tensor = None if tensors is None else tensors[i]
            shaped = _shaped(array, tensor, None)
            of_row.update(_form(shaped.dtype, shaped.shape))
            of_row.update(raw(shaped))
        if wrt is not None:
            _add_vectors(of_row, wrt)
        return [of_row.digest()]
    columns = [
        _column(array, None if tensors is None else tensors[i], call.rows)
        for i, array in enumerate(call.inputs)
    ]
    keys = []
    for row in zip(*columns, strict=True) if columns else [()] * call.rows:
        of_row = head.copy()
        for form, data in row:
            of_row.update(form)
            of_row.update(data)
        keys.append(of_row.digest())
    return keys


@lru_cache(maxsize=1024)
def _head(
    model: str, version: str, operation: str, config: str, indices: tuple[int, int, int] | None
) -> blake2b:
    """Return a hash of the parts that many calls share; callers copy it."""
    text = json.dumps([model, version, operation, config, indices]).encode()
    return blake2b(_LENGTH.pack(len(text)) + text, digest_size=KEY_BYTES)


def _shaped(array: Array, tensor: TensorInfo | None, rows: int | None) -> Array:
    if tensor is None:
        return array
    try:
        if array.dtype is not _FLOAT64 or tensor.dtype != "float64":
            array = array.astype(numpy_dtype(tensor.dtype), copy=False)
        if array.shape != tensor.shape or rows is not None:
            array = array.reshape(shape_of(array, tensor, rows))
    except (ValueError, TypeError, AssertionError):
        pass  # it does not fit: the description is not that of the call's config
    return array


@lru_cache(maxsize=1024)
def _form(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    text = f"{dtype.name}{list(shape)}".encode()
    return _LENGTH.pack(len(text)) + text


def raw(array: Array) -> bytes:
    """Return the bytes of an array's entries as keys have them: in C order, without -0.0.

    An array of bytes objects gives each with its length.
    """
    kind = array.dtype.kind
    if kind == "O":
        return b"".join([_LENGTH.pack(len(entry)) + bytes(entry) for entry in array.flat])
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if kind in "fcV":
        array = array + array.dtype.type(0)  # -0.0 + 0.0 is 0.0
    return array.tobytes()


def _column(array: Array, tensor: TensorInfo | None, rows: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield form and bytes of each row of one input."""
    shaped = _shaped(array, tensor, rows)
    form = _form(shaped.dtype, shaped.shape[1:])
    if shaped.dtype.hasobject:
        yield from ((form, raw(shaped[row, ...])) for row in range(rows))
        return
    data = raw(shaped)
    size = len(data) // rows
    for first in range(0, size * rows, size) if size else [0] * rows:
        yield form, data[first : first + size]


def _add_vectors(to: blake2b, wrt: Derivative) -> None:
    vectors: Sequence[Array | None] = (wrt.sens, wrt.vec)
    for vector in vectors:
        if vector is None:
            to.update(_LENGTH.pack(0))
            continue
        numbers = np.asarray(vector, dtype=np.float64).reshape(-1)
        to.update(_form(numbers.dtype, numbers.shape))
        to.update(raw(numbers))
