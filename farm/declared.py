"""The inputs and outputs that a model declares, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farm.call import TensorInfo, numpy_dtype
from farm.errors import InvalidInput, InvalidOutput

Shape = int | Sequence[int] | TensorInfo
Tensors = Mapping[str, Shape]


def tensors_of(declared: Tensors, what: str) -> tuple[TensorInfo, ...]:
    """Return the inputs or outputs that a model declares. what: "input" or "output".

    Raises InvalidOutput with what was expected.
    """
    if not isinstance(declared, Mapping):
        raise InvalidOutput(
            f"{what}s are declared as {type(declared).__name__}; expected a dict name -> shape"
        )
    tensors = []
    for name, shape in declared.items():
        dtype, unit, description, form = "float64", "", "", ""
        if isinstance(shape, TensorInfo):
            dtype, unit, description = shape.dtype, shape.unit, shape.description
            form = shape.format
            shape = shape.shape
            try:
                numpy_dtype(dtype)
            except TypeError as error:
                raise InvalidOutput(
                    f"{what} {name!r} is declared with {dtype!r}: {error}"
                ) from None
        try:
            sizes = (int(shape),) if isinstance(shape, int) else tuple(int(n) for n in shape)
        except (TypeError, ValueError):
            sizes = (-2,)
        if any(n < -1 for n in sizes):
            raise InvalidOutput(
                f"{what} {name!r} is declared with shape {shape!r}; expected whole numbers >= 0, "
                "or -1 for a size that varies"
            )
        tensors.append(TensorInfo(str(name), sizes, dtype, unit, description, format=form))
    return tuple(tensors)


def labelled(
    outputs: tuple[TensorInfo, ...], labels: Mapping[str, Sequence[str]]
) -> tuple[TensorInfo, ...]:
    """Return the outputs with the names of their entries. Raises InvalidOutput."""
    if not labels:
        return outputs
    names = [tensor.name for tensor in outputs]
    if not isinstance(labels, Mapping) or not set(labels) <= set(names):
        raise InvalidOutput(
            f"labels is {labels!r:.80}; expected a dict from some of the outputs {names} to texts"
        )
    labelled = []
    for tensor in outputs:
        texts = labels.get(tensor.name, ())
        if texts and (isinstance(texts, str) or tensor.size not in (-1, len(texts))):
            raise InvalidOutput(
                f"labels of output {tensor.name!r} are {texts!r:.80}, {len(texts)}; expected "
                f"{tensor.size} texts, one for each entry"
            )
        try:
            labelled.append(replace(tensor, labels=tuple(texts)))
        except (TypeError, ValueError) as error:
            raise InvalidOutput(str(error)) from None
    return tuple(labelled)


def check_keys(config: Mapping[str, Any], known: Collection[str] | None, name: str) -> None:
    """Raise InvalidInput if a config has a key that its model does not know; None: it knows all."""
    if known is not None and (unknown := [key for key in config if key not in known]):
        keys = ", ".join(sorted(known)) or "none"
        raise InvalidInput(
            f"config has the key {unknown[0]!r}, which model {name!r} does not have; "
            f"its keys are: {keys}"
        )
