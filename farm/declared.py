"""The inputs and outputs that a model declares, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.call import TensorInfo, numpy_dtype
from farm.errors import InvalidOutput

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
        dtype, unit, description = "float64", "", ""
        if isinstance(shape, TensorInfo):
            dtype, unit, description = shape.dtype, shape.unit, shape.description
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
        tensors.append(TensorInfo(str(name), sizes, dtype, unit, description))
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
