"""Which number types convert to which, and which array entries fit the target type."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import BFLOAT16, Array


def casts(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether entries of one type are accepted for a tensor of another.

    Integers count as numbers: JSON has no float64, so int64 input to a float64 model is correct.
    Booleans do not. `unfit` checks whether each entry fits.
    """
    if dtype == wanted:
        return True
    if wanted.name == BFLOAT16:
        return dtype.kind in "iuf"
    if wanted.hasobject or dtype.kind not in "iuf":
        return False
    whole = dtype.kind in "iu" and wanted.kind in "iu"
    return whole or np.can_cast(dtype, wanted, "same_kind")


def unfit(array: Array, wanted: np.dtype[Any]) -> str:
    """Return, as text, an entry whose value `wanted` cannot represent; "" if all fit.

    Rounding to fewer digits is allowed; wrapping around or becoming infinite is not. The types must
    pass `casts`.
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


def shown_kind(array: Array) -> str:
    """Return what an array of no numbers is or holds, for a message."""
    if array.dtype.kind in "US":
        return "is text"
    if array.dtype.kind != "O":
        return f"is {array.dtype}"
    if array.ndim == 0 and array.item() is None:
        return "is None, as of a function without `return`"
    first = next((x for x in array.flat if not isinstance(x, int | float | np.number)), None)
    return "holds None" if first is None else f"holds a {type(first).__name__}"


def bytes_array(value: Any) -> Array:
    """Return an array of `bytes`, for a tensor of dtype "bytes", from nested bytes and texts.

    Raises TypeError that names a value of another type.
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
