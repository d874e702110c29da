"""Outputs in the form that a request asks for, the same over HTTP and gRPC."""

from __future__ import annotations

from farm.call import Array
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


def only_copies(wish: Wish, raw: bool) -> bool:
    """Whether an answer in raw tensors is no more than copies of the model's outputs."""
    return raw and all(output.form is None for output in wish.outputs)
