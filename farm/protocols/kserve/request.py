"""KServe v2 requests and answers without their encoding, as calls, for HTTP and gRPC.

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

import numpy as np

from farm import errors
from farm.bodies.reading import MANY_TEXTS, is_long, is_long_raw
from farm.call import (
    EMPTY_CONFIG,
    Array,
    Call,
    Hints,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
    canonical_config,
)
from farm.encoding.json_numbers import MOST_CONFIG
from farm.encoding.tensors import check_rows, rows_of, shown, unlike_rows
from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.protocols.kserve.forms import (
    OF_REQUESTS,
    PANDAS,
    check_output,
    class_count_of,
    classified,
    column_shape,
    content_type_of,
    encoded_content,
    names_by_type,
)
from farm.protocols.kserve.shared_memory.places import REGION, Place, place_of
from farm.protocols.kserve.tensors import BYTES, datatype_of
from farm.sequences import SequenceStep, checked_id
from farm.versions import VERSION, as_asked

PRIORITY_LEVELS, DEFAULT_PRIORITY = 200, 100
"""Levels of the parameter `priority`, 1 the most urgent, and the default level."""

Parameters = Mapping[str, Any]
NO_PARAMETERS: Parameters = MappingProxyType({})

ERRORS: Mapping[type[FarmError], int] = MappingProxyType(
    {
        errors.InvalidRequest: 400,
        errors.InvalidInput: 400,
        errors.ModelNotFound: 404,
        errors.UnsupportedFeature: 501,
        errors.ModelFailed: 500,
        errors.InvalidOutput: 500,
        errors.WorkerLost: 500,
        errors.TimeLimitExceeded: 500,
        errors.DeadlineExceeded: 504,
        errors.Cancelled: 503,
        errors.Overloaded: 503,
        errors.Unavailable: 503,
    }
)
"""The HTTP status that answers each error; `farm.grpc.messages.ERRORS` has those of gRPC."""

IN_REGION: Array = np.empty(0, np.uint8)
"""The array of an input that is still in a region of shared memory; a `Carrier` reads it."""


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


class OutputForm(NamedTuple):
    """The form of an output that is not sent as the model returns it.

    classes: number of classes to send instead, 0 for the values; rank: of the output of one
    evaluation; labels: of its entries.
    """

    content_type: str = ""
    classes: int = 0
    rank: int = 0
    labels: tuple[str, ...] = ()


class WishedOutput(NamedTuple):
    """An output of the answer: its position among the model's outputs, and its name and form."""

    position: int
    name: str
    datatype: str
    binary: bool
    """Over HTTP: sent as raw bytes after the JSON."""
    place: Place | None = None
    """The part of a region of shared memory to hold it, instead of the answer."""
    form: OutputForm | None = None


class Wish(NamedTuple):
    """The form of the answer; the model receives none of it."""

    model: str
    id: str | None
    outputs: Sequence[WishedOutput]
    content_type: str = ""
    """Of the request, which the answer repeats."""
    version: str = VERSION
    lead: tuple[int, ...] = ()
    """Sizes to prepend to each output's shape: (1,) if the only row runs without its axis."""


REQUEST_KINDS = (InferInput, RequestedOutput, InferRequest, OutputForm, WishedOutput, Wish, Place)
"""The classes of requests and of requested outputs."""


def call_of(
    request: InferRequest, info: ModelInfo, *, streaming: bool = False
) -> tuple[Call, Wish]:
    """Return the call of a request to the described model, and the form of its answer.

    A batch of one row becomes a single evaluation, which is less work all the way to the model, and
    its answer is shown as one row. info: the description for the config of `config_of`; streaming:
    several answers can be sent, so a model with a stream is asked for its stream. Raises
    InvalidInput, UnsupportedFeature.
    """
    given, step, content_type, config = request.parameters, None, "", EMPTY_CONFIG
    if given or info.sequences is not None:
        step = _step(given, info)
        content_type = content_type_of(given, "the request", OF_REQUESTS)
        config = config_of(given)
    operation = _operation(info, streaming)
    inputs = request.inputs
    if content_type or [tensor for tensor in inputs if "content_type" in tensor.parameters]:
        inputs = _contents(inputs, content_type, info)
    arrays, rows = _arrays(inputs, info)
    if step is not None and rows is not None and rows > 1:
        raise InvalidInput(
            f"inference request to model {info.name!r} must specify batch-size 1 due to "
            f"requirements of sequence batcher; it has {rows} rows"
        )
    lead: tuple[int, ...] = ()
    if rows == 1:
        arrays, rows, lead = tuple([array.reshape(array.shape[1:]) for array in arrays]), None, (1,)
    call = Call(info.name, operation, arrays, config, rows=rows, step=step)
    name, version, _ = as_asked(request.model, info.name)
    return call, Wish(name, request.id, _outputs(request, info), content_type, version, lead)


def _contents(
    given: Sequence[InferInput], content_type: str, info: ModelInfo
) -> Sequence[InferInput]:
    """Return the inputs as the content types of the request and of each mean them."""
    names = names_by_type([tensor.name for tensor in given], content_type, info)
    tensors = {tensor.name: tensor for tensor in info.inputs}
    inputs = []
    for name, got in zip(names, given, strict=True):
        shape, tensor = got.shape, tensors.get(name)
        if tensor and PANDAS in (content_type, got.parameters.get("content_type")):
            shape = column_shape(name, shape, tensor)
        inputs.append(got._replace(name=name, shape=shape, array=got.array.reshape(shape)))
    return inputs


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
        if got.parameters and REGION in got.parameters:
            raise UnsupportedFeature(
                f"input {got.name!r} is in shared memory, which is not offered here; send the data"
            )
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
    binary = bool(request.parameters) and _flag(request.parameters, "binary_data_output", False)
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
        place = place_of(parameters, f"output {name!r}") if parameters else None
        if place is not None and (
            parameters.get("binary_data") or parameters.get("classification")
        ):
            other = "binary_data" if parameters.get("binary_data") else "classification"
            raise InvalidInput(f"output {name!r} can't set both '{REGION}' and '{other}'")
        position = names.index(name)
        datatype = datatype_of(info.outputs[position].dtype)
        flag = _flag(parameters, "binary_data", binary)
        form = _form(parameters, info.outputs[position], datatype) if parameters else None
        if form and form.classes:
            datatype = BYTES
        wished.append(WishedOutput(position, name, datatype, flag, place, form))
    return wished


def _form(parameters: Parameters, tensor: TensorInfo, datatype: str) -> OutputForm | None:
    where = f"output {tensor.name!r}"
    classes = class_count_of(parameters, datatype, where)
    content_type = content_type_of(parameters, where)
    if not (classes or content_type):
        return None
    check_output(content_type, BYTES if classes else datatype, where)
    labels = tensor.labels if classes else ()
    return OutputForm(content_type, classes, len(tensor.shape), labels)


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


def uses_regions(request: InferRequest) -> bool:
    """Whether any tensor of a request is in shared memory, so that it needs a `Carrier`."""
    for tensor in request.inputs:
        if tensor.parameters and REGION in tensor.parameters:
            return True
    return bool(request.outputs) and any(REGION in each.parameters for each in request.outputs)


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


# Answers


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
