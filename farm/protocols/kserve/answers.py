"""Outputs in the form that a request asks for, the same over HTTP and gRPC."""

from __future__ import annotations

from farm.bodies.reading import MANY_TEXTS, is_long, is_long_raw
from farm.call import Array, Result
from farm.protocols.kserve.classification import classified
from farm.protocols.kserve.content_types import encoded_content
from farm.protocols.kserve.request import Wish, WishedOutput


def presented(array: Array, output: WishedOutput) -> Array:
    """Return an output of one evaluation or of rows in its form. Raises InvalidInput."""
    form = output.form
    if form is None:
        return array
    if form.classes:
        array = classified(array, form.rank, form.classes, form.labels)
    return encoded_content(array, form.content_type, f"output {output.name!r}")


def takes_long(wish: Wish, result: Result, *, raw: bool) -> bool:
    """Whether encoding an answer takes long. raw: every output is sent as raw bytes."""
    if not [output for output in wish.outputs if output.form is not None]:
        return is_long_raw(result) if raw else is_long(result)
    return is_long(result) or _classes(wish, result) > MANY_TEXTS


def _classes(wish: Wish, result: Result) -> int:
    """Return the number of classes in an answer."""
    count = 0
    for output in wish.outputs:
        if output.form is not None and output.form.classes:
            array = result.outputs[output.position]
            rows = array.shape[0] if array.ndim > output.form.rank else 1
            count += min(array.size, rows * output.form.classes)
    return count
