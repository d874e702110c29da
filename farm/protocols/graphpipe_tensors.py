"""GraphPipe's tensors in flatbuffers, and what can be wrong with them, for both halves.

Data are little-endian and row-major; sizes are multiplied as Python's unbounded integers and
compared with what was sent, so that nothing is made by what a sender declares.
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
from farm.protocols.flatbuffer import Table
from farm.protocols.flatbuffer_writer import Int64s, Record, UInt8
from farm.protocols.kserve_tensors import shaped, shown

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
"""GraphPipe's name and farm's `TensorInfo.dtype` of each type, by its number."""

NUMBERS: Mapping[str, int] = MappingProxyType(
    {dtype: number for number, (_, dtype) in enumerate(TYPES) if dtype}
)
"""The number of each dtype."""

MOST_DIMENSIONS = 32
"""As many as every numpy can have."""

SHARED_BYTES = 16 * 2**20
"""Tensors may share what they hold; shared or not, all together are no larger than the message and
this."""


class Code(IntEnum):
    """What went wrong, as an answer's `Error.code`."""

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


class Fault(Exception):
    """A request is wrong in a way that has a code of its own."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def shape_of(got: Table, where: str) -> tuple[int, ...]:
    """The shape of a Tensor. Raises Fault when it cannot be one."""
    try:
        shape = got.int64s(1, most=MOST_DIMENSIONS)
    except ValueError as error:
        raise Fault(Code.SHAPE, f"shape of {where} has {error}") from None
    if min(shape, default=0) < 0:
        raise Fault(Code.SHAPE, f"shape of {where} is {shown(list(shape))}; expected sizes >= 0")
    return shape


def array_of(got: Table, dtype: str, shape: tuple[int, ...], where: str, most_bytes: int) -> Array:
    """The values of a Tensor: a view of the message, or an array of `bytes`.

    most_bytes: of the values, strings with eight for each. Raises InvalidRequest, InvalidInput or
    Fault.
    """
    count = math.prod(shape)
    if dtype == BYTES:
        _, length = got.vector(3, 4)
        if length != count:
            raise Fault(
                Code.SHAPE,
                f"{where} has {length} strings; its shape {shown(list(shape))} has {count}",
            )
        try:
            strings = got.strings(3, most_bytes=most_bytes)
        except ValueError as error:
            raise Fault(Code.TOO_LARGE, f"{where}: {error}") from None
        flat = np.empty(count, object)
        flat[:] = strings
        return shaped(flat, shape, where)
    fixed = wire_dtype(dtype)
    start, length = got.vector(2, 1)
    if length != count * fixed.itemsize:
        raise Fault(
            Code.SHAPE,
            f"{where} has {length} bytes; expected {count * fixed.itemsize}: "
            f"{shown(list(shape))} of {dtype}",
        )
    if length > most_bytes:
        raise Fault(Code.TOO_LARGE, f"{where}: the tensors share more than {SHARED_BYTES} bytes")
    if not count:
        return shaped(np.empty(0, fixed), shape, where)
    return np.frombuffer(got.buffer, fixed, count, start).reshape(shape)


@lru_cache
def wire_dtype(dtype: str) -> np.dtype[Any]:
    """The type of numbers in messages: little-endian."""
    return numpy_dtype(dtype).newbyteorder("<")


def size_of(array: Array) -> int:
    """The bytes of the values that `array_of` gave, as it counts them."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype.hasobject else 0)


def number_of(tensor: TensorInfo) -> int:
    """The number of a tensor's type. Raises Fault when GraphPipe has none for it."""
    number = NUMBERS.get(tensor.dtype)
    if number is None:
        known = ", ".join(NUMBERS)
        message = f"tensor {tensor.name!r} is {tensor.dtype}; GraphPipe has {known}"
        raise Fault(Code.TYPE, message)
    return number


def type_name(number: int) -> str:
    """A type's name and number, as messages show it."""
    return f"{TYPES[number][0]} ({number})" if number < len(TYPES) else f"{number}"


def tensor_record(array: Array, tensor: TensorInfo) -> Record:
    """A Tensor to be written; one of rank 0 goes out as [1], which all clients can read."""
    number, shape = UInt8(number_of(tensor)), Int64s(array.shape or (1,))
    if tensor.dtype == BYTES:
        return Record([number, shape, None, array.reshape(-1).tolist()])
    return Record([number, shape, np.asarray(array, numpy_dtype(tensor.dtype))])
