"""KServe v2 requests without their encoding, and their meaning as calls, for HTTP and gRPC.

A tensor that the model declares with shape (n,) is shown to clients as [-1, n]. In a request, rank
2 is then a batch of rows, and rank 1 a single evaluation, whose answer has no batch axis either.
This holds for every model, whether its evaluate takes batches or not.
Source: Open Inference Protocol, and Triton's protocol extensions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from farm.call import EMPTY_CONFIG, Array, Call, Hints, ModelInfo, Operation, canonical_config
from farm.encoding.json_numbers import MOST_CONFIG
from farm.encoding.rows import check_rows, rows_of, unlike_rows
from farm.encoding.tensors import shown
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
    UnsupportedFeature,
    WorkerLost,
)
from farm.protocols.kserve.tensors import datatype_of
from farm.sequences import SequenceStep, checked_id

VERSION = "1"
"""The only version of every model."""

PRIORITY_LEVELS, DEFAULT_PRIORITY = 200, 100
"""Levels of the parameter `priority`, 1 the most urgent, and the default level."""

Parameters = Mapping[str, Any]
NO_PARAMETERS: Parameters = MappingProxyType({})

ERRORS: Mapping[type[FarmError], int] = MappingProxyType(
    {
        InvalidRequest: 400,
        InvalidInput: 400,
        ModelNotFound: 404,
        UnsupportedFeature: 501,
        ModelFailed: 500,
        InvalidOutput: 500,
        WorkerLost: 500,
        TimeLimitExceeded: 500,
        DeadlineExceeded: 504,
        Cancelled: 503,
        Overloaded: 503,
        Unavailable: 503,
    }
)
"""The HTTP status that answers each error; `farm.grpc.messages.ERRORS` has those of gRPC."""


class InferInput(NamedTuple):
    """A tensor of a request; `array` has this shape and the datatype's numpy type."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: Array
    parameters: Parameters = NO_PARAMETERS


class RequestedOutput(NamedTuple):
    """An output that a request names."""

    name: str
    parameters: Parameters = NO_PARAMETERS


class InferRequest(NamedTuple):
    """A request for inference; version "": any; id None: none was sent; outputs (): all."""

    model: str
    inputs: Sequence[InferInput]
    version: str = ""
    id: str | None = None
    parameters: Parameters = NO_PARAMETERS
    outputs: Sequence[RequestedOutput] = ()


class WishedOutput(NamedTuple):
    """An output of the answer: its position among the model's outputs, and its name and form."""

    position: int
    name: str
    datatype: str
    binary: bool
    """Over HTTP: sent as raw bytes after the JSON."""


class Wish(NamedTuple):
    """The form of the answer; the model receives none of it."""

    model: str
    id: str | None
    outputs: Sequence[WishedOutput]


REQUEST_KINDS = (InferInput, RequestedOutput, InferRequest, WishedOutput, Wish)
"""The classes of requests and of requested outputs."""


def check_version(model: str, version: str) -> None:
    """Raise ModelNotFound for a version that does not exist; "" means the newest."""
    if version not in ("", VERSION):
        raise ModelNotFound(
            f"model {shown(model)} has no version {shown(version)}; it has version {VERSION!r}"
        )


def call_of(
    request: InferRequest, info: ModelInfo, *, streaming: bool = False
) -> tuple[Call, Wish]:
    """Return the call of a request to the described model, and the form of its answer.

    info: the description for the config of `config_of`; streaming: several answers can be sent, so
    a model with a stream is asked for its stream. Raises InvalidInput, UnsupportedFeature.
    """
    step = _step(request.parameters, info)
    operation = _operation(info, streaming)
    arrays, rows = _arrays(request.inputs, info)
    if step is not None and rows is not None and rows > 1:
        raise InvalidInput(
            f"inference request to model {info.name!r} must specify batch-size 1 due to "
            f"requirements of sequence batcher; it has {rows} rows"
        )
    call = Call(info.name, operation, arrays, config_of(request.parameters), rows=rows, step=step)
    return call, Wish(info.name, request.id, _outputs(request, info))


def without_axis(call: Call) -> Call:
    """Return the call of a one-row batch as a single evaluation.

    That is less work all the way to the model; the answer has to be shown as one row then.
    """
    row = [array.reshape(array.shape[1:]) for array in call.inputs]
    return Call(call.model, call.operation, tuple(row), call.config, step=call.step)


def _operation(info: ModelInfo, streaming: bool) -> Operation:
    if streaming and Operation.STREAM in info.operations:
        return Operation.STREAM
    if Operation.EVALUATE in info.operations:
        return Operation.EVALUATE
    if Operation.STREAM in info.operations:
        raise UnsupportedFeature(
            f"model {info.name!r} gives several answers to one request; "
            "ask it by gRPC's ModelStreamInfer or HTTP's generate_stream"
        )
    raise UnsupportedFeature(f"model {info.name!r} does not offer inference: it has no evaluate")


def _arrays(given: Sequence[InferInput], info: ModelInfo) -> tuple[tuple[Array, ...], int | None]:
    """Return the inputs in the model's order, and the number of rows; None: no batch axis."""
    by_name = {tensor.name: tensor for tensor in given}
    if len(given) != len(info.inputs) or len(by_name) != len(given):
        raise _wrong_inputs(given, info)
    arrays = []
    rows: int | None = None
    first = True
    for tensor in info.inputs:
        got = by_name.get(tensor.name)
        if got is None:
            raise _wrong_inputs(given, info)
        datatype = datatype_of(tensor.dtype)
        if got.datatype != datatype:
            raise InvalidInput(
                f"input {got.name!r} has datatype {got.datatype}; "
                f"model {info.name!r} expects {datatype}"
            )
        those = rows_of(got.name, got.shape, tensor, info.name)
        if not first and those != rows:
            raise unlike_rows((tensor.name, tensor.shape) for tensor in given)
        rows, first = those, False
        arrays.append(got.array)
    check_rows(rows, arrays)
    return tuple(arrays), rows


def _wrong_inputs(given: Sequence[InferInput], info: ModelInfo) -> InvalidInput:
    expected = [tensor.name for tensor in info.inputs]
    names = [tensor.name for tensor in given]
    counts = Counter(names)
    for name in names:
        if name not in expected:
            wrong = f"there is no input {shown(name)}"
            break
        if counts[name] > 1:
            wrong = f"input {name!r} is given more than once"
            break
    else:
        missing = next(name for name in expected if name not in names)
        wrong = f"input {missing!r} is missing"
    return InvalidInput(f"{wrong}; model {info.name!r} expects the inputs {expected}")


def _outputs(request: InferRequest, info: ModelInfo) -> Sequence[WishedOutput]:
    binary = _flag(request.parameters, "binary_data_output", False)
    if not request.outputs:
        return [
            WishedOutput(i, tensor.name, datatype_of(tensor.dtype), binary)
            for i, tensor in enumerate(info.outputs)
        ]
    names = [tensor.name for tensor in info.outputs]
    wished: list[WishedOutput] = []
    for name, parameters in request.outputs:
        if name not in names:
            raise InvalidInput(
                f"there is no output {shown(name)}; model {info.name!r} has the outputs {names}"
            )
        if any(name == other.name for other in wished):
            raise InvalidInput(f"output {name!r} is asked for more than once")
        refuse_shared_memory(parameters)
        if parameters.get("classification"):
            raise UnsupportedFeature("classification of outputs is not offered here")
        position = names.index(name)
        datatype = datatype_of(info.outputs[position].dtype)
        flag = _flag(parameters, "binary_data", binary)
        wished.append(WishedOutput(position, name, datatype, flag))
    return wished


def _step(parameters: Parameters, info: ModelInfo) -> SequenceStep | None:
    """Return the place of a request in a sequence, which a model with a state needs.

    Raises InvalidInput, and UnsupportedFeature for a model without a state.
    """
    if info.sequences is None:
        refuse_sequences(parameters)
        return None
    sequence_id = parameters.get("sequence_id")
    if not sequence_id:
        raise InvalidInput(
            f"inference request to model {info.name!r} must specify a non-zero or non-empty "
            "correlation ID: the parameter sequence_id"
        )
    try:
        checked = checked_id(sequence_id)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"parameter sequence_id is {error}") from None
    start = _flag(parameters, "sequence_start", False)
    return SequenceStep(checked, start, _flag(parameters, "sequence_end", False))


def refuse_sequences(parameters: Parameters) -> None:
    """Raise UnsupportedFeature for a request that belongs to a sequence.

    An id of 0 or "" means that it does not (Triton's sequence extension).
    """
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if parameters.get(name):
            raise UnsupportedFeature(
                f"parameter {name} is {shown(parameters[name])}: this model keeps no state for "
                "sequences of requests, since any worker may run any request; leave it out"
            )


def refuse_shared_memory(parameters: Parameters) -> None:
    """Raise UnsupportedFeature for a tensor in shared memory."""
    if "shared_memory_region" in parameters:
        raise UnsupportedFeature("shared memory is not offered here; send the data itself")


def _flag(parameters: Parameters, name: str, default: bool) -> bool:
    value = parameters.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise InvalidInput(f"parameter {name} is {shown(value)}; expected true or false")
    return value


def config_of(parameters: Parameters) -> str:
    """Return the model's config from the parameter `farm_config`, which holds JSON text.

    Raises InvalidInput if it is not the text of a JSON object.
    """
    text = parameters.get("farm_config")
    if text is None:
        return EMPTY_CONFIG
    try:
        if type(text) is not str:
            raise TypeError(f"it is {shown(text)}")
        if len(text) > MOST_CONFIG:
            raise ValueError(f"it has {len(text)} characters; expected {MOST_CONFIG} at most")
        return canonical_config(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"parameter farm_config is not a JSON object written as a string: {error}"
        ) from None


def hints_of_parameters(parameters: Parameters, hints: Hints) -> Hints:
    """Return `hints` with a request's parameters `priority` and `timeout` applied.

    priority: 1 is the most urgent, larger is less so, 0 means none; timeout: microseconds in the
    queue, 0 for no limit. Raises InvalidInput.
    """
    if "priority" not in parameters and "timeout" not in parameters:
        return hints
    level = _whole(parameters, "priority")
    timeout_us = _whole(parameters, "timeout")
    if level:
        hints = replace(hints, priority=DEFAULT_PRIORITY - min(level, PRIORITY_LEVELS))
    if timeout_us:
        hints = replace(hints, start_within_s=timeout_us / 1e6)
    return hints


def _whole(parameters: Parameters, name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value < 2**64:
        raise InvalidInput(
            f"parameter {name} is {shown(value)}; expected a whole number, 0 or more"
        )
    return value
