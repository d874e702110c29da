"""Derivative calls in groups: what they share, their arrays, and the calls made of both again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

from farm.call import Array, Call, Derivative, Operation

Wrt = tuple[int, int, int, bool, bool]
"""out_wrt, in_wrt and in_wrt2 of a derivative, and whether it has sens and vec."""


def wrt_of(call: Call) -> Wrt | None:
    """Return what derivative calls of one group share; None if the call is no derivative."""
    wrt = call.derivative
    if wrt is None:
        return None
    return wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2, wrt.sens is not None, wrt.vec is not None


def arrays_of(call: Call) -> tuple[Array, ...]:
    """Return the inputs of a call, and after them sens and vec of its derivative."""
    wrt = call.derivative
    if wrt is None:
        return call.inputs
    return (*call.inputs, *[vector for vector in (wrt.sens, wrt.vec) if vector is not None])


def calls_of(
    model: str, operation: Operation, config: str, columns: list[list[Array]], wrt: Sequence[Any]
) -> list[Call]:
    """Return the calls of a group. columns: each array of all calls; wrt: a `Wrt`, or nothing.

    Raises ValueError, TypeError or IndexError if they do not fit together.
    """
    if not wrt:
        return [Call(model, operation, x, config) for x in zip(*columns, strict=True)]
    out_wrt, in_wrt, in_wrt2, has_sens, has_vec = wrt
    for index in (out_wrt, in_wrt, in_wrt2):
        if type(index) is not int:
            raise TypeError(f"expected a whole number, got {index!r}")
    count = len(columns[0])
    vec = columns.pop() if has_vec is True else repeat(None, count)
    sens = columns.pop() if has_sens is True else repeat(None, count)
    inputs = zip(*columns, strict=True) if columns else repeat((), count)
    return [
        Call(model, operation, x, config, Derivative(out_wrt, in_wrt, in_wrt2, s, v))
        for x, s, v in zip(inputs, sens, vec, strict=True)
    ]
