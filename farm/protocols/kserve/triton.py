"""Triton's names and its texts for requests that do not fit a model.

Source: NVIDIA Triton Inference Server, `src/infer_request.cc` and `src/model.cc` of its core, whose
order of checks decides which fault of a request is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from farm.call import ModelInfo
from farm.protocols.kserve.request import InferRequest
from farm.protocols.kserve.tensors import BYTES, DATATYPES, datatype_of, numpy_type

SERVER_NAME = "triton"

FOLLOWED_VERSION = "2.73.0"
"""The version of Triton whose protocol, texts and codes farm follows."""

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Triton's extensions in its order; of these, farm lists the ones that it has."""

UNKNOWN_MODEL = "Request for unknown model:"

REFUSALS: Mapping[str, str] = MappingProxyType(
    {"NotFound": "Not Found", "MethodNotAllowed": "Method Not Allowed"}
)
"""Texts for refused HTTP requests, by the kind of refusal."""

LONGEST_NAME = 200
"""Characters of a client's name that a text repeats."""


def cut(name: str) -> str:
    """Return a client's name for a text, shortened."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def of_request(request_id: str | None) -> str:
    """Return the words with which most texts about a request begin."""
    return f"[request id: {cut(request_id) if request_id else '<id_unknown>'}] "


class Sent(NamedTuple):
    """An input as it was sent. size: of its data, in elements or else in bytes."""

    name: str
    datatype: str
    shape: Sequence[int]
    size: int
    in_elements: bool = False


def sizes_fault(request_id: str | None, model: str, inputs: Iterable[Sent]) -> str:
    """Return the text for the first input with too many or too few numbers, or "".

    For BYTES and unknown datatypes, farm's own texts say more.
    """
    for name, datatype, shape, size, in_elements in inputs:
        if datatype == BYTES or datatype not in DATATYPES:
            continue
        itemsize = numpy_type(datatype, "").itemsize
        expected, actual = math.prod(shape) * itemsize, size * itemsize if in_elements else size
        if expected != actual:
            return (
                f"{of_request(request_id)}input byte size mismatch for input '{cut(name)}' for "
                f"model '{cut(model)}'. Expected {expected}, got {actual}"
            )
    return ""


def repeated(kind: str, names: Iterable[str], request_id: str | None) -> str:
    """Return the text for a name that occurs twice among the inputs or outputs, or ""."""
    seen = set()
    for name in names:
        if name in seen:
            return f"{of_request(request_id)}{kind} '{cut(name)}' already exists in request"
        seen.add(name)
    return ""


def fault_of(request: InferRequest, info: ModelInfo) -> str:
    """Return Triton's text for the first fault of a request, or "" if Triton has none for it."""
    return (
        repeated("input", (tensor.name for tensor in request.inputs), request.id)
        or repeated("output", (output.name for output in request.outputs), request.id)
        or _outputs_fault(request, info)
        or _count_fault(request, info)
        or _batch_fault(request, info)
        or _tensors_fault(request, info)
    )


def _outputs_fault(request: InferRequest, info: ModelInfo) -> str:
    names = {tensor.name for tensor in info.outputs}
    for output in request.outputs:
        if output.name not in names:
            return f"unexpected inference output '{cut(output.name)}' for model '{info.name}'"
    return ""


def _count_fault(request: InferRequest, info: ModelInfo) -> str:
    given = [tensor.name for tensor in request.inputs]
    if len(given) == len(info.inputs):
        return ""
    missing = [tensor.name for tensor in info.inputs if tensor.name not in given]
    return (
        f"{of_request(request.id)}expected {len(info.inputs)} inputs but got {len(given)} inputs "
        f"for model '{info.name}'. Got input(s) [{_quoted(given[:20])}], but missing required "
        f"input(s) [{_quoted(missing)}]. Please provide all required input(s)."
    )


def _quoted(names: Sequence[str]) -> str:
    return ",".join(f"'{cut(name)}'" for name in names)


def _batch_fault(request: InferRequest, info: ModelInfo) -> str:
    expected = {tensor.name: tensor for tensor in info.inputs}
    sizes = set()
    for tensor in request.inputs:
        if tensor.name not in expected:
            return f"unexpected inference input '{cut(tensor.name)}' for model '{info.name}'"
        if len(tensor.shape) == len(expected[tensor.name].shape) + 1:
            sizes.add(tensor.shape[0])
        if len(sizes) > 1:
            return (
                f"{of_request(request.id)}input '{tensor.name}' batch size does not match other "
                f"inputs for '{info.name}'"
            )
    return ""


def _tensors_fault(request: InferRequest, info: ModelInfo) -> str:
    expected = {tensor.name: tensor for tensor in info.inputs}
    axes = {len(tensor.shape) - len(expected[tensor.name].shape) for tensor in request.inputs}
    axis = 0 if axes == {0} else 1  # farm takes inputs without a batch axis, too
    for tensor in request.inputs:
        declared = expected[tensor.name]
        datatype = datatype_of(declared.dtype)
        if tensor.datatype != datatype:
            return (
                f"{of_request(request.id)}inference input '{tensor.name}' data-type is "
                f"'{tensor.datatype}', but model '{info.name}' expects '{datatype}'"
            )
        sizes = zip(declared.shape, tensor.shape[axis:], strict=False)
        if len(tensor.shape) != len(declared.shape) + axis or any(
            size not in (-1, given) for size, given in sizes
        ):
            return (
                f"{of_request(request.id)}unexpected shape for input '{tensor.name}' for model "
                f"'{info.name}'. Expected {_dims((-1, *declared.shape))}, got "
                f"{_dims(tensor.shape)}."
            )
    return ""


def _dims(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape[:32]))}]"
