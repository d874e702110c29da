"""Which types of numbers are taken for which, and which entries fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import BFLOAT16, Array


def casts(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether entries of one type are taken where a tensor has another.

    Whole numbers are numbers: JSON has no float64, so int64 input to a float64 model is right.
    Whether each entry fits is for `unfit` to say.
    """
    if dtype == wanted:
        return True
    if wanted.name == BFLOAT16:
        return dtype.kind in "iuf"
    if wanted.hasobject or dtype.kind not in "biuf":
        return False
    whole = dtype.kind in "iu" and wanted.kind in "iu"
    return whole or np.can_cast(dtype, wanted, "same_kind")


def unfit(array: Array, wanted: np.dtype[Any]) -> str:
    """An entry that would be another number as `wanted`, as text; "" when all fit.

    Rounding to fewer digits changes no number in this sense; wrapping around, or becoming
    infinite, does. The types must pass `casts`.
    """
    if array.dtype == wanted or not array.size or np.can_cast(array.dtype, wanted, "safe"):
        return ""
    if wanted.kind in "iu":
        low, high, limits = int(array.min()), int(array.max()), np.iinfo(wanted)
        return str(low) if low < limits.min else str(high) if high > limits.max else ""
    with np.errstate(over="ignore"):
        infinite = np.isinf(array.astype(wanted))
    if not infinite.any():
        return ""
    grown = array[infinite & np.isfinite(array)]
    return str(grown[0]) if grown.size else ""


def bytes_array(value: Any) -> Array:
    """An array of `bytes`, as tensors of dtype "bytes" are, from bytes and texts in any nesting.

    Raises TypeError that says what is none.
    """
    array = np.array(value, dtype=object)
    flat = np.empty(array.size, dtype=object)
    for i, item in enumerate(array.reshape(-1)):
        if isinstance(item, str):
            item = item.encode()
        if not isinstance(item, bytes):
            raise TypeError(f"a {type(item).__name__}")
        flat[i] = bytes(item)
    return flat.reshape(array.shape)
