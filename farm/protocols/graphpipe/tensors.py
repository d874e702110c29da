"""GraphPipe's tensors in flatbuffers, with their checks, for server and client half.

Data are little-endian and row-major. Declared sizes are multiplied as unbounded integers and
compared with the received bytes, so that a sender's declaration alone allocates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from farm.call import BYTES, Array, TensorInfo, numpy_dtype
from farm.encoding.tensors import shaped, shown
from farm.protocols.graphpipe.flatbuffer import FlatTable
from farm.protocols.graphpipe.flatbuffer_writer import Int64s, TableToWrite, UInt8

TYPES: tuple[tuple[str, str], ...] = (
    ("Null", ""),
    ("Uint8", "uint8"),
    ("Int8", "int8"),
    ("Uint16", "uint16"),
    ("Int16", "int16"),
    ("Uint32", "uint32"),
    ("Int32", "int32"),
    ("Uint64", "uint64"),
    ("Int64", "int64"),
    ("Float16", "float16"),
    ("Float32", "float32"),
    ("Float64", "float64"),
    ("String", BYTES),
)
"""GraphPipe's name and farm's `TensorInfo.dtype` of each type, indexed by its number."""

NUMBERS: Mapping[str, int] = MappingProxyType(
    {dtype: number for number, (_, dtype) in enumerate(TYPES) if dtype}
)
"""The number of each dtype."""

MOST_DIMENSIONS = 32
"""Dimensions that every version of numpy supports."""

SHARED_BYTES = 16 * 2**20
"""Tensors may share data in a message; counted separately, they may exceed the message's size by at
most this many bytes."""


class TypeCode(IntEnum):
    """The error codes in `Error.code` of an answer."""

    MALFORMED = 1
    REQUEST_TYPE = 2
    COUNT = 3
    TYPE = 4
    SHAPE = 5
    INPUT = 6
    OUTPUT = 7
    TOO_LARGE = 8
    MODEL = 9
    OVERLOADED = 10
    TIMEOUT = 11


class GraphpipeFault(Exception):
    """A request has an error that has a code of its own."""

    def __init__(self, code: TypeCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def shape_of(got: FlatTable, where: str) -> tuple[int, ...]:
    """Return the shape of a Tensor. Raises Fault if it is not valid."""
    try:
        shape = got.int64s(1, most=MOST_DIMENSIONS)
    except ValueError as error:
        raise GraphpipeFault(TypeCode.SHAPE, f"shape of {where} has {error}") from None
    if min(shape, default=0) < 0:
        raise GraphpipeFault(
            TypeCode.SHAPE, f"shape of {where} is {shown(list(shape))}; expected sizes >= 0"
        )
    return shape


def array_of(
    got: FlatTable, dtype: str, shape: tuple[int, ...], where: str, most_bytes: int
) -> Array:
    """Return the values of a Tensor: a view of the message, or an array of `bytes`.

    most_bytes: limit of the values' size; each string counts eight more. Raises InvalidRequest,
    InvalidInput or Fault.
    """
    count = math.prod(shape)
    if got.vector(2, 1)[1] and got.vector(3, 4)[1]:
        raise GraphpipeFault(TypeCode.TYPE, f"{where} has both data and string_val; expected one")
    if dtype == BYTES:
        _, length = got.vector(3, 4)
        if length != count:
            raise GraphpipeFault(
                TypeCode.SHAPE,
                f"{where} has {length} strings; its shape {shown(list(shape))} has {count}",
            )
        try:
            strings = got.strings(3, most_bytes=most_bytes)
        except ValueError as error:
            raise GraphpipeFault(TypeCode.TOO_LARGE, f"{where}: {error}") from None
        flat = np.empty(count, object)
        flat[:] = strings
        return shaped(flat, shape, where)
    fixed = wire_dtype(dtype)
    start, length = got.vector(2, 1)
    if length != count * fixed.itemsize:
        raise GraphpipeFault(
            TypeCode.SHAPE,
            f"{where} has {length} bytes; expected {count * fixed.itemsize}: "
            f"{shown(list(shape))} of {dtype}",
        )
    if length > most_bytes:
        raise GraphpipeFault(
            TypeCode.TOO_LARGE, f"{where}: the tensors share more than {SHARED_BYTES} bytes"
        )
    if not count:
        return shaped(np.empty(0, fixed), shape, where)
    return np.frombuffer(got.buffer, fixed, count, start).reshape(shape)


@lru_cache
def wire_dtype(dtype: str) -> np.dtype[Any]:
    """Return the type of numbers in messages: little-endian."""
    return numpy_dtype(dtype).newbyteorder("<")


def size_of(array: Array) -> int:
    """Return the size of an array from `array_of`, in bytes, as `most_bytes` counts it."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype.hasobject else 0)


def number_of(tensor: TensorInfo) -> int:
    """Return the number of a tensor's type. Raises Fault if GraphPipe does not have it."""
    number = NUMBERS.get(tensor.dtype)
    if number is None:
        known = ", ".join(NUMBERS)
        message = f"tensor {tensor.name!r} is {tensor.dtype}; GraphPipe has {known}"
        raise GraphpipeFault(TypeCode.TYPE, message)
    return number


def type_name(number: int) -> str:
    """Return a type's name and number, as messages show them."""
    return f"{TYPES[number][0]} ({number})" if number < len(TYPES) else f"{number}"


def tensor_record(array: Array, tensor: TensorInfo) -> TableToWrite:
    """Return the Tensor of an array; rank 0 becomes shape [1], which all clients can read."""
    number, shape = UInt8(number_of(tensor)), Int64s(array.shape or (1,))
    if tensor.dtype == BYTES:
        return TableToWrite([number, shape, None, array.reshape(-1).tolist()])
    return TableToWrite([number, shape, np.asarray(array, numpy_dtype(tensor.dtype))])
