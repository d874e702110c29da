"""Tensors of clients: their shapes, and their values in error messages."""

from __future__ import annotations

import math
from typing import Any

from farm.call import Array
from farm.errors import InvalidInput


def shaped(flat: Array, shape: tuple[int, ...], where: str) -> Array:
    """Return `flat` in this shape, which `checked_shape` returned.

    Raises InvalidInput if it does not fit.
    """
    count = math.prod(shape)
    if flat.size != count:
        raise InvalidInput(
            f"{where} has {flat.size} elements; its shape {shown(list(shape))} has {count}"
        )
    try:
        return flat.reshape(shape)
    except ValueError:  # zero elements, and other sizes that are too large
        raise InvalidInput(f"shape of {where} is too large: {shown(list(shape))}") from None


def shown(value: Any) -> str:
    """Return a client's value for an error message, shortened."""
    if isinstance(value, str | bytes | list | tuple):
        value = value[:80]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
