"""Whether a request is one evaluation or a batch of rows, by the rank of its tensors.

A tensor that the model declares with shape (n,) is announced to clients as [-1, n]. One of rank 2
is then a batch of rows, one of rank 1 a single evaluation, whose answer has no batch axis either.
This holds for every model, whether its evaluate accepts batches or not.
"""

from __future__ import annotations

from collections.abc import Iterable

from farm.call import Array, TensorInfo
from farm.encoding.tensors import shown
from farm.errors import InvalidInput

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
    """Raise InvalidInput for zero rows, and for very many rows without any values.

    Such rows cost a client nothing, since a shape alone declares them.
    """
    if rows is None or (0 < rows <= MOST_EMPTY_ROWS) or any(array.size for array in arrays):
        return
    raise InvalidInput(
        f"the inputs hold no values in {rows} rows; expected 1 to {MOST_EMPTY_ROWS} such rows"
    )


def unlike_rows(given: Iterable[tuple[str, Shape]]) -> InvalidInput:
    """Return the error for inputs, by name and shape, that have different numbers of rows."""
    shapes = ", ".join(f"{name!r} {shown(list(shape))}" for name, shape in given)
    return InvalidInput(
        f"the inputs have the shapes {shapes}; expected a batch axis of the same size for all "
        "or for none"
    )
