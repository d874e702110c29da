"""KServe v2 tensors: datatypes, shapes, and the raw bytes of HTTP's binary form and gRPC.

Raw bytes are little-endian and row-major without padding; a BOOL is a byte 0 or 1, and an element
of BYTES is its length as a uint32 and then its bytes. Declared sizes alone allocate nothing: they
are multiplied as unbounded integers and compared with the received bytes.
Source: Open Inference Protocol, "Tensor Data"; Triton's binary tensor data extension.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from farm.call import BFLOAT16, Array, numpy_dtype
from farm.encoding.tensors import shaped, shown
from farm.errors import InvalidInput, UnsupportedFeature

BF16, BYTES = "BF16", "BYTES"

DATATYPES: Mapping[str, str] = MappingProxyType(
    {
        "BOOL": "bool",
        "UINT8": "uint8",
        "UINT16": "uint16",
        "UINT32": "uint32",
        "UINT64": "uint64",
        "INT8": "int8",
        "INT16": "int16",
        "INT32": "int32",
        "INT64": "int64",
        "FP16": "float16",
        "FP32": "float32",
        "FP64": "float64",
        BF16: BFLOAT16,
        BYTES: "bytes",
    }
)
"""KServe's name of each datatype, with farm's `TensorInfo.dtype`."""

DTYPES: Mapping[str, str] = MappingProxyType({farm: kserve for kserve, farm in DATATYPES.items()})
"""farm's `TensorInfo.dtype`, with KServe's name."""

LARGEST_SIZE = 2**63 - 1
MOST_DIMENSIONS = 32
"""Dimensions that every version of numpy supports."""

_FIXED: dict[str, np.dtype[Any]] = {
    kserve: np.dtype(farm) if sys.byteorder == "little" else np.dtype(farm).newbyteorder("<")
    for kserve, farm in DATATYPES.items()
    if kserve not in (BF16, BYTES)
}
_LENGTH = struct.Struct("<I")

Raw = bytes | memoryview


def datatype_of(dtype: str) -> str:
    """Return KServe's name for a tensor's `dtype`.

    Raises UnsupportedFeature for types that KServe does not have, such as complex numbers.
    """
    try:
        return DTYPES[dtype]
    except KeyError:
        known = ", ".join(DTYPES)
        raise UnsupportedFeature(
            f"KServe v2 has no datatype for tensors of {dtype}; it has them for {known}"
        ) from None


def numpy_type(datatype: Any, where: str) -> np.dtype[Any]:
    """Return the numpy type of a KServe datatype: object for BYTES, that of ml_dtypes for BF16.

    Raises InvalidInput for an unknown datatype, UnsupportedFeature for BF16 without ml_dtypes.
    """
    fixed = _FIXED.get(datatype) if type(datatype) is str else None
    if fixed is not None:
        return fixed
    if datatype == BYTES:
        return np.dtype(object)
    if datatype == BF16:
        try:
            return numpy_dtype(BFLOAT16)
        except TypeError as error:
            raise UnsupportedFeature(str(error)) from None
    raise InvalidInput(
        f"datatype of {where} is {shown(datatype)}; expected one of {', '.join(DATATYPES)}"
    )


def checked_shape(shape: Iterable[Any], where: str) -> tuple[int, ...]:
    """Return the shape as a tuple. Raises InvalidInput for sizes other than 0 to 2^63-1."""
    sizes = tuple(shape)
    if len(sizes) > MOST_DIMENSIONS:
        raise InvalidInput(
            f"shape of {where} has {len(sizes)} dimensions; expected {MOST_DIMENSIONS} at most"
        )
    for size in sizes:
        if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
            raise InvalidInput(
                f"shape of {where} holds {shown(size)}; expected whole numbers from 0 to 2^63-1"
            )
    return sizes


def raw_array(data: Raw, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Return the tensor in raw bytes: a read-only view of them, a copy only for BYTES.

    shape: from `checked_shape`. Raises InvalidInput with the expected and actual length.
    """
    dtype = numpy_type(datatype, where)
    count = math.prod(shape)
    if dtype.hasobject:
        elements = np.empty(_few(count, len(data) // _LENGTH.size, where), object)
        elements[:] = split_bytes(data, count, where)
        return shaped(elements, shape, where)
    if len(data) != count * dtype.itemsize:
        raise InvalidInput(
            f"{where} has {len(data)} bytes; expected {count * dtype.itemsize}: "
            f"{count} of {datatype} in shape {shown(list(shape))}"
        )
    flat = np.frombuffer(data, dtype)
    if datatype == "BOOL" and count and flat.view(np.uint8).max() > 1:
        raise InvalidInput(f"{where} holds bytes other than 0 and 1; expected BOOL")
    return flat.reshape(shape) if count else shaped(flat, shape, where)


def _few(count: int, most: int, where: str) -> int:
    if count > most:
        raise InvalidInput(
            f"{where} has {count} elements of BYTES by its shape; "
            f"the bytes sent hold {most} lengths at most"
        )
    return count


def split_bytes(data: Raw, count: int, where: str) -> list[bytes]:
    """Return the `count` elements of a raw BYTES tensor. Raises InvalidInput."""
    elements, position, end = [], 0, len(data)
    for i in range(count):
        start = position + _LENGTH.size
        if start > end:
            raise InvalidInput(f"{where} ends after {i} elements of BYTES; expected {count}")
        position = start + _LENGTH.unpack_from(data, position)[0]
        if position > end:
            raise InvalidInput(
                f"element {i} of {where} is {position - start} bytes long by its length, "
                f"{end - start} bytes are left"
            )
        elements.append(bytes(data[start:position]))
    if position != end:
        raise InvalidInput(f"{where} has {end - position} bytes after its {count} elements")
    return elements


def raw_bytes(array: Array) -> bytes:
    """Return the raw form of a tensor; objects become BYTES. Raises InvalidInput for others."""
    if array.dtype.hasobject:
        parts = []
        for element in array.reshape(-1):
            if type(element) is not bytes:
                element = bytes_of(element)
            parts.append(_LENGTH.pack(len(element)))
            parts.append(element)
        return b"".join(parts)
    return _little_endian(array).tobytes()


def raw_view(array: Array) -> Raw:
    """Return what `raw_bytes` does, but without a copy of numbers that lie in that order."""
    if array.dtype.hasobject:
        return raw_bytes(array)
    return np.ascontiguousarray(_little_endian(array)).reshape(-1).view(np.uint8).data


def _little_endian(array: Array) -> Array:
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("<"))
    return array


def bytes_of(element: Any) -> bytes:
    """Return an element of a BYTES tensor: text becomes UTF-8. Raises InvalidInput."""
    if isinstance(element, bytes | bytearray | np.bytes_):
        return bytes(element)
    if isinstance(element, str):
        try:
            return element.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{shown(element)} is not text: half a surrogate pair") from None
    raise InvalidInput(f"{shown(element)} is an element of a BYTES tensor; expected bytes or text")
