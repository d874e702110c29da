"""Tensors of clients: their shapes, batches of rows, and their values in error messages.

A tensor that the model declares with shape (n,) is announced to clients as [-1, n]. One of rank 2
is then a batch of rows, one of rank 1 a single evaluation, whose answer has no batch axis either.
This holds for every model, whether its evaluate accepts batches or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from farm.call import Array, ModelInfo, TensorInfo
from farm.errors import InvalidInput, shortened

LONGEST_ANSWER = 1 << 30
"""Most bytes of an answer whose size the model leaves open: as of a request, `max_body_bytes`."""
ROOM_BYTES = 1 << 20
"""Bytes of an answer besides its numbers: names, and texts of errors."""
NUMBER_BYTES = 32
"""Bytes of one number as text, which has at most 24 digits, and what separates it."""


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
    return shortened(repr(value), 80)


def longest_answer(info: ModelInfo, rows: int | None = None) -> int:
    """Return the bytes that a server's answer to a call may have, in whatever protocol.

    info: the model that is called. rows: of the call.
    """
    tensors = (*info.inputs, *info.outputs)  # derivatives may be as long as an input
    if any(n < 0 for tensor in tensors for n in tensor.shape) or any(
        tensor.dtype == "bytes" for tensor in tensors
    ):
        return LONGEST_ANSWER
    entries = sum(math.prod(tensor.shape) for tensor in tensors) * (rows or 1)
    return min(LONGEST_ANSWER, ROOM_BYTES + NUMBER_BYTES * entries)


Shape = tuple[int, ...]

MOST_EMPTY_ROWS = 1024


def rows_of(name: str, shape: Shape, tensor: TensorInfo, model: str) -> int | None:
    """Return the rows of an input of this shape for a model's tensor; None: no batch axis.

    name: the input's name in the request. Raises InvalidInput if the shape does not fit.
    """
    expected = tensor.shape
    surplus = len(shape) - len(expected)
    if surplus in (0, 1) and (
        shape[surplus:] == expected
        or all(want in (-1, size) for want, size in zip(expected, shape[surplus:], strict=True))
    ):
        return shape[0] if surplus else None
    one, batch = list(expected), [-1, *expected]
    raise InvalidInput(
        f"input {name!r} has shape {shown(list(shape))}; model {model!r} expects "
        f"{one}, or {batch} for a batch"
    )


def check_rows(rows: int | None, arrays: Iterable[Array]) -> None:
    """Raise InvalidInput for very many rows without any values.

    Such rows cost a client nothing, since a shape alone declares them.
    """
    if rows is None or rows <= MOST_EMPTY_ROWS or any(array.size for array in arrays):
        return
    raise InvalidInput(
        f"the inputs hold no values in {rows} rows; expected at most {MOST_EMPTY_ROWS} such rows"
    )


def unlike_rows(given: Iterable[tuple[str, Shape]]) -> InvalidInput:
    """Return the error for inputs, by name and shape, that have different numbers of rows."""
    shapes = ", ".join(f"{name!r} {shown(list(shape))}" for name, shape in given)
    return InvalidInput(
        f"the inputs have the shapes {shapes}; expected a batch axis of the same size for all "
        "or for none"
    )
