"""Decodes lines into calls, and encodes results as lines; pure.

A request is the model's name and the numbers of its inputs, one after another. The answer is the
numbers of its outputs, or `error: ` and the reason. A name alone is answered with the sizes of
inputs and outputs: `3 -> 1`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from farm.call import Array, Call, ModelInfo, Operation, Result
from farm.errors import FarmError, InvalidInput


def decode(line: str, info: ModelInfo) -> Call:
    """Return the call that a line requests. Raises InvalidInput."""
    _, *words = line.split()
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError as error:
        raise InvalidInput(f"{line.strip()!r} has a word that is not a number: {error}") from None
    sizes = [tensor.size for tensor in info.inputs]
    if numbers.size != sum(sizes):
        raise InvalidInput(f"{info.name} takes {sum(sizes)} numbers, got {numbers.size}")
    starts = np.cumsum(sizes)[:-1]
    return Call(info.name, Operation.EVALUATE, tuple(np.split(numbers, starts)))


def encode(outcome: Result | FarmError) -> bytes:
    """Return the line for an outcome."""
    if isinstance(outcome, FarmError):
        return f"error: {' '.join(str(outcome).split())}\n".encode()
    return encode_numbers(outcome.outputs)


def encode_numbers(arrays: Iterable[Array]) -> bytes:
    """Return a line with all numbers of the arrays, with every digit."""
    return (" ".join(repr(float(x)) for array in arrays for x in array.ravel()) + "\n").encode()


def encode_sizes(info: ModelInfo) -> bytes:
    """Return the line that describes a model."""
    inputs, outputs = ([tensor.size for tensor in side] for side in (info.inputs, info.outputs))
    return f"{' '.join(map(str, inputs))} -> {' '.join(map(str, outputs))}\n".encode()
