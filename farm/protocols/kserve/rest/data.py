"""A KServe v2 tensor's `data` in JSON: flat or nested lists, in exactly the declared datatype.

No conversion silently changes a value: 1.5 and even 1.0 are refused as INT, true as a number, 300
as INT8, 1e300 as FP32, and null always.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson

from farm.call import Array
from farm.encoding.json_numbers import NUMBERS, NonFinite, array_text, kind_of
from farm.encoding.tensors import shaped, shown
from farm.errors import InvalidInput
from farm.protocols.kserve.tensors import BF16, BYTES, bytes_of, numpy_type

_CODES = {
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q"},
    **{"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
}
"""Type codes of the standard library's arrays, which accept only whole numbers in range."""

_INTEGERS, _BOOLS, _TEXTS = frozenset({int}), frozenset({bool}), frozenset({str})


def array_of_data(data: Any, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Return the tensor of a JSON value. shape: from `checked_shape`.

    Raises InvalidInput with the position of the wrong value, UnsupportedFeature as `numpy_type`.
    """
    dtype = numpy_type(datatype, where)
    if type(data) is not list:
        if shape or data is None or isinstance(data, dict):
            raise InvalidInput(f"data of {where} is {kind_of(data)}; expected a list")
        data = [data]
    flat = data if len(shape) == 1 or list not in map(type, data) else flat_of(data, shape, where)
    count = math.prod(shape)
    if len(flat) != count:
        raise InvalidInput(
            f"data of {where} has {len(flat)} elements; its shape {shown(list(shape))} has {count}"
        )
    vector = _vector(flat, datatype, dtype, where)
    return vector.reshape(shape) if count else shaped(vector, shape, where)


def flat_of(data: list[Any], shape: tuple[int, ...], where: str) -> list[Any]:
    """Return the elements of lists nested like `shape`. Raises InvalidInput."""
    level: Sequence[Any] = [data]
    for depth, size in enumerate(shape):
        for part in level:
            if type(part) is not list or len(part) != size:
                what = f"{len(part)} elements" if type(part) is list else kind_of(part)
                raise InvalidInput(
                    f"data of {where} is nested unlike its shape {shown(list(shape))}: {what} "
                    f"at depth {depth}, expected a list of {size}; or give all elements in one list"
                )
        level = list(chain.from_iterable(level))
    return list(level)


def _vector(flat: list[Any], datatype: str, dtype: np.dtype[Any], where: str) -> Array:
    if datatype == "FP64":
        _check(flat, NUMBERS, "number", where)
        return _doubles(flat, where)
    code = _CODES.get(datatype)
    if code is not None:
        _check(flat, _INTEGERS, f"whole number of type {datatype}", where)
        try:
            # The array codes i and q have 4 and 8 bytes on every platform that numpy supports.
            return np.frombuffer(array(code, flat), dtype)
        except OverflowError:
            least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            i = next(i for i, value in enumerate(flat) if not least <= value <= most)
            raise InvalidInput(
                f"data of {where} has {shown(flat[i])} at position {i}; "
                f"expected {least} to {most}, as {datatype} holds"
            ) from None
    if datatype == "BOOL":
        _check(flat, _BOOLS, "true or false", where)
        return np.array(flat, dtype)
    if datatype == BYTES:
        _check(flat, _TEXTS, "string", where)
        elements = np.empty(len(flat), object)
        elements[:] = [bytes_of(text) for text in flat]
        return elements
    _check(flat, NUMBERS, "number", where)
    return _narrowed(_doubles(flat, where), datatype, dtype, where)


def _check(flat: list[Any], types: frozenset[type], expected: str, where: str) -> None:
    if not types.issuperset(map(type, flat)):
        i, wrong = next((i, v) for i, v in enumerate(flat) if type(v) not in types)
        what = shown(wrong) if isinstance(wrong, int | float) else kind_of(wrong)
        raise InvalidInput(f"data of {where} has {what} at position {i}; expected a {expected}")


def _doubles(flat: list[Any], where: str) -> Array:
    try:
        return np.asarray(array("d", flat))
    except OverflowError:
        i = next(i for i, v in enumerate(flat) if abs(v) > sys.float_info.max)
        raise InvalidInput(f"data of {where} has a number too large at position {i}") from None


def _narrowed(values: Array, datatype: str, dtype: np.dtype[Any], where: str) -> Array:
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype)
    wide = narrow.astype(np.float64)
    became = np.isinf(wide) & np.isfinite(values)
    if became.any():
        i = int(np.argmax(became))
        raise InvalidInput(
            f"data of {where} has {values[i]} at position {i}, which is too large for {datatype}"
        )
    return narrow


def data_of_array(array: Array, datatype: str, where: str, non_finite: NonFinite) -> bytes:
    """Return a tensor's `data` as JSON text: one flat list, numbers in the shortest exact decimals.

    Raises InvalidInput for BYTES that are not UTF-8, InvalidOutput as `array_text` does.
    """
    flat = array.reshape(-1)
    if datatype == BYTES:
        return orjson.dumps([_string(bytes_of(element), where) for element in flat])
    if datatype == BF16:
        flat = flat.astype(np.float32)
    return array_text(flat, non_finite, where=where)


def _string(element: bytes, where: str) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{where} holds bytes that are not UTF-8, which JSON cannot say; "
            "ask for it with the parameter binary_data"
        ) from None
