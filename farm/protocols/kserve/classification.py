"""Triton's classification extension: the best entries of an output in place of its values.

Each is a text `value:index[:label]`, with the value as C++'s `std::to_string` writes it: six
decimals of a float, all digits of an integer. Source: Triton's classification extension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farm.call import Array
from farm.encoding.tensors import shown
from farm.errors import InvalidInput
from farm.protocols.kserve.tensors import BYTES

CLASSIFICATION = "classification"
NOT_NUMBERS = (BYTES, "BOOL")


def class_count_of(parameters: Mapping[str, Any], datatype: str, where: str) -> int:
    """Return how many classes a requested output should have; 0: it is not to be classified.

    Raises InvalidInput for other values than whole numbers, and for outputs that are not numbers.
    """
    count = parameters.get(CLASSIFICATION)
    if count is None:
        return 0
    if type(count) is not int or not 0 <= count < 2**64:
        raise InvalidInput(
            f"parameter classification of {where} is {shown(count)}; expected the number of "
            "classes, from 1, or 0 for the output itself"
        )
    if count and datatype in NOT_NUMBERS:
        raise InvalidInput(
            f"{where} is {datatype}: classification is for numbers; leave the parameter out"
        )
    return count


def classified(array: Array, rank: int, count: int, labels: Sequence[str] = ()) -> Array:
    """Return the classes of an output, best first, as BYTES: (classes,) or (rows, classes).

    rank: of the output without a batch axis; indices count its entries, row-major. count: how many
    classes, at most as many as there are entries. Of equal entries the first is better, and NaN is
    worse than any number.
    """
    rows = array.shape[:1] if array.ndim > rank else ()
    entries = array.size // max(1, rows[0] if rows else 1)
    values = array.reshape(rows[0] if rows else 1, entries)
    if values.dtype.kind not in "iu":
        values = values.astype(np.float64)  # holds every FP16, BF16 and FP32
    # Descending order of a stable ascending sort: ~x is the opposite order of integers, without
    # an overflow, and NaN is last among floats.
    keys = ~values if values.dtype.kind in "iu" else -values
    best = np.argsort(keys, axis=1, kind="stable")[:, :count]
    chosen = np.take_along_axis(values, best, axis=1)
    texts = np.empty(best.size, object)
    form = "%d:%d" if values.dtype.kind in "iu" else "%f:%d"
    for i, (value, index) in enumerate(
        zip(chosen.reshape(-1).tolist(), best.reshape(-1).tolist(), strict=True)
    ):
        text = form % (value, index)
        texts[i] = (f"{text}:{labels[index]}" if index < len(labels) else text).encode()
    return texts.reshape(*rows, best.shape[1])
