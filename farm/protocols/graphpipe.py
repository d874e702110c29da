"""GraphPipe, server half: flatbuffers to calls, results and descriptions to flatbuffers.

A message is one flatbuffer and names no model. The rank of a tensor says whether it is a batch:
see `rows.py`. A request is read in two steps, as its config may decide what the model's tensors
are; nothing of a tensor is read before its type and shape are known to fit the model's.
The client half is `graphpipe_client.py`. Source: GraphPipe's schema and user guide, Oracle 2018.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson

from farm.call import (
    BYTES,
    EMPTY_CONFIG,
    Array,
    Call,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
    canonical_config,
)
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
from farm.protocols.flatbuffer import Table, root, text_of
from farm.protocols.flatbuffer_writer import Int64, Int64s, Record, UInt8, write
from farm.protocols.graphpipe_tensors import (
    SHARED_BYTES,
    Code,
    Fault,
    array_of,
    number_of,
    shape_of,
    size_of,
    tensor_record,
    type_name,
    wire_dtype,
)
from farm.protocols.json_numbers import MOST_CONFIG
from farm.protocols.kserve_tensors import shown
from farm.protocols.rows import check_rows, rows_of, unlike_rows
from farm.version import __version__

SERVER_NAME = "farm"

INFER, METADATA = 1, 2
"""What a request may be: ids in its union."""

MOST_NAMES = 4096
"""Names of inputs or outputs in a request, beyond two for each tensor of the model."""

ERRORS: Mapping[type[FarmError], Code] = MappingProxyType(
    {
        InvalidRequest: Code.MALFORMED,
        InvalidInput: Code.SHAPE,
        ModelNotFound: Code.OVERLOADED,
        UnsupportedFeature: Code.REQUEST_TYPE,
        ModelFailed: Code.MODEL,
        InvalidOutput: Code.MODEL,
        WorkerLost: Code.MODEL,
        TimeLimitExceeded: Code.TIMEOUT,
        DeadlineExceeded: Code.TIMEOUT,
        Cancelled: Code.OVERLOADED,
        Overloaded: Code.OVERLOADED,
        Unavailable: Code.OVERLOADED,
    }
)
"""The code of each error that says no code itself. A model goes missing once its path was found
only when its last worker leaves."""


class InferRequest(NamedTuple):
    """A request for an evaluation: canonical config, and the rest, which `call_of` reads."""

    config: str
    table: Table


SMALL_BYTES = 32 * 1024
"""Tensors up to this size are worth a shorter way."""

Wish = Sequence[int]
"""The outputs of the answer: positions among the model's, in the order asked for."""


def decode_request(body: bytes | memoryview) -> InferRequest | None:
    """What is asked; None: the metadata. Raises InvalidRequest or Fault."""
    request = root(body)
    kind = request.uint8(0)
    if kind == METADATA:
        return None
    if kind != INFER:
        raise Fault(
            Code.REQUEST_TYPE,
            f"request type {kind}; expected {INFER} (InferRequest) or {METADATA} (MetadataRequest)",
        )
    table = request.table(1)
    if table is None:
        raise InvalidRequest("the request has type InferRequest and none in it")
    return InferRequest(_config(table.text(0)), table)


def _config(text: str) -> str:
    if not text:
        return EMPTY_CONFIG
    try:
        if len(text) > MOST_CONFIG:
            raise ValueError(f"it has {len(text)} characters; expected {MOST_CONFIG} at most")
        config = json.loads(text)
        if type(config) is not dict:
            raise TypeError("it is none")
        return canonical_config(config)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"config {shown(text)} is no JSON object: {error}") from None


def call_of(request: InferRequest, info: ModelInfo) -> tuple[Call, Wish]:
    """The call that the request is, for a model that describes itself so, and what is asked back.

    info: for the request's config. Raises FarmError or Fault.
    """
    if Operation.EVALUATE not in info.operations:
        raise UnsupportedFeature(f"model {info.name!r} cannot be asked here: it has no evaluate")
    arrays, rows = _arrays(request.table, info)
    call = Call(info.name, Operation.EVALUATE, arrays, request.config, rows=rows)
    return call, _wish(request.table, info)


def decode_call(
    body: bytes | memoryview, info: ModelInfo, config: str
) -> tuple[str, Call | None, Wish]:
    """The config of a request, and as `call_of` the rest, if it is the config of `info`.

    Both steps in one, for another process. Raises FarmError or Fault.
    """
    request = decode_request(body)
    if request is None:
        raise Fault(Code.TOO_LARGE, "a request for the metadata is short")
    if request.config != config:
        return request.config, None, ()
    call, wish = call_of(request, info)
    return config, call, tuple(wish)


def _arrays(table: Table, info: ModelInfo) -> tuple[tuple[Array, ...], int | None]:
    """The inputs in the model's order, and the number of rows, None for no batch axis."""
    _, count = table.vector(2, 4)
    expected = [tensor.name for tensor in info.inputs]
    if count != len(expected):
        raise Fault(
            Code.COUNT,
            f"{count} input tensors; model {info.name!r} expects {len(expected)}: {expected}",
        )
    places = _places(table, info)
    arrays: list[Any] = [None] * count
    rows: list[int | None] = [None] * count
    left = len(table.buffer) + SHARED_BYTES
    for place, got in zip(places, table.tables(2), strict=True):
        tensor = info.inputs[place]
        shape = _fitting_shape(got, tensor, info)
        rows[place] = rows_of(tensor.name, shape, tensor, info.name)
        array = arrays[place] = array_of(got, tensor.dtype, shape, f"input {tensor.name!r}", left)
        left -= size_of(array)
    if len(set(rows)) > 1:
        raise unlike_rows(zip(expected, [array.shape for array in arrays], strict=True))
    check_rows(rows[0] if rows else None, arrays)
    return tuple(arrays), rows[0] if rows else None


def _places(table: Table, info: ModelInfo) -> Sequence[int]:
    """For each tensor of the request, which of the model's inputs it is."""
    count = len(info.inputs)
    names = _names(table, 1, "input", info)
    expected = [tensor.name for tensor in info.inputs]
    if not names or names == expected:
        return range(count)
    if len(names) < count:
        raise Fault(Code.COUNT, f"{len(names)} names for {count} input tensors")
    # A batching proxy sends all names once more.
    if not set(names[count:]) <= set(names[:count]):
        raise Fault(
            Code.COUNT, f"names {shown(names)}; beyond the {count} tensors they may only repeat"
        )
    places = [_place(name, i, expected, Code.INPUT, info) for i, name in enumerate(names[:count])]
    if len(set(places)) < count:
        twice = next(place for place in places if places.count(place) > 1)
        raise Fault(Code.INPUT, f"input {expected[twice]!r} is given more than once")
    return places


def _wish(table: Table, info: ModelInfo) -> Wish:
    names = _names(table, 3, "output", info)
    expected = [tensor.name for tensor in info.outputs]
    if not names or names == expected:
        return range(len(expected))
    return [_place(name, i, expected, Code.OUTPUT, info) for i, name in enumerate(names)]


def _names(table: Table, slot: int, what: str, info: ModelInfo) -> list[str]:
    _, count = table.vector(slot, 4)
    if not count:
        return []
    most = MOST_NAMES + 2 * max(len(info.inputs), len(info.outputs))
    if count > most:
        raise Fault(Code.TOO_LARGE, f"{count} names of {what}s; expected {most} at most")
    try:
        names = table.strings(slot, most_bytes=len(table.buffer) + SHARED_BYTES)
    except ValueError as error:
        raise Fault(Code.TOO_LARGE, f"names of {what}s: {error}") from None
    return [text_of(name) for name in names]


def _place(name: str, default: int, expected: list[str], code: Code, info: ModelInfo) -> int:
    """The position of a name; an empty one stands for the tensor at its own."""
    if not name and default < len(expected):
        return default
    try:
        return expected.index(name)
    except ValueError:
        what = code.name.lower()
        message = f"unknown {what} {shown(name)}; model {info.name!r} has the {what}s {expected}"
        raise Fault(code, message) from None


def _fitting_shape(got: Table, tensor: TensorInfo, info: ModelInfo) -> tuple[int, ...]:
    """The shape of a tensor whose type is the model's."""
    wanted, number = number_of(tensor), got.uint8(0)
    if number != wanted:
        raise Fault(
            Code.TYPE,
            f"input {tensor.name!r} has type {type_name(number)}; "
            f"model {info.name!r} expects {type_name(wanted)}",
        )
    return shape_of(got, f"input {tensor.name!r}")


def encode_result(wish: Wish, info: ModelInfo, result: Result) -> bytes:
    """The answer with the outputs that are asked for. Raises Fault: too large, or no such type."""
    if len(info.outputs) == len(wish) == 1:
        small = _one_small(info.outputs[0], result.outputs[0])
        if small is not None:
            return small
    outputs = zip(info.outputs, result.outputs, strict=True)
    records = [tensor_record(array, tensor) for tensor, array in outputs]
    try:
        return write(Record([[records[place] for place in wish]]))
    except ValueError as error:
        raise Fault(Code.TOO_LARGE, f"the answer: {error}") from None


def _one_small(tensor: TensorInfo, array: Array) -> bytes | None:
    """The answer with one tensor that is small, as most are; None: it is none of these.

    All but its data is known by its type and shape.
    """
    if (
        array.nbytes > SMALL_BYTES
        or tensor.dtype == BYTES
        or array.dtype != wire_dtype(tensor.dtype)
    ):
        return None
    return _before_data(tensor, array.shape, array.nbytes) + array.tobytes()


@lru_cache(maxsize=1024)
def _before_data(tensor: TensorInfo, shape: tuple[int, ...], nbytes: int) -> bytes:
    answer = write(Record([[tensor_record(np.empty(shape, wire_dtype(tensor.dtype)), tensor)]]))
    return answer[: len(answer) - nbytes]


def encode_error(error: FarmError | Fault) -> bytes:
    """The answer that tells of an error."""
    code = error.code if isinstance(error, Fault) else ERRORS[type(error)]
    return write(Record([[], [Record([Int64(code), error.message])]]))


def encode_metadata(info: ModelInfo) -> bytes:
    """What the server says of a model; shapes have the batch axis as a leading -1. Raises Fault."""
    return write(
        Record(
            [
                info.name,
                __version__,
                SERVER_NAME,
                info.description,
                [_io_record(tensor) for tensor in info.inputs],
                [_io_record(tensor) for tensor in info.outputs],
            ]
        )
    )


def _io_record(tensor: TensorInfo) -> Record:
    return Record([tensor.name, "", Int64s((-1, *tensor.shape)), UInt8(number_of(tensor))])


def metadata_json(info: ModelInfo) -> bytes:
    """The same as JSON, with the keys that Go gives it. Raises Fault."""

    def tensors(those: Sequence[TensorInfo]) -> list[dict[str, Any]]:
        return [
            {"Name": t.name, "Description": "", "Shape": [-1, *t.shape], "Type": number_of(t)}
            for t in those
        ]

    return orjson.dumps(
        {
            "Name": info.name,
            "Version": __version__,
            "Server": SERVER_NAME,
            "Description": info.description,
            "Inputs": tensors(info.inputs),
            "Outputs": tensors(info.outputs),
        }
    )
