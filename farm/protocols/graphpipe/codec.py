"""GraphPipe, server half: decodes flatbuffers into calls, encodes results and descriptions.

A message is one flatbuffer and names no model. The rank of a tensor shows whether it is a batch,
see `encoding/tensors.py`. A request is decoded in two steps, because its config may determine the
model's tensors; a tensor's data is read only after its type and shape are known to fit the model's.
The client half is `client.py`. Source: GraphPipe's schema and user guide, Oracle 2018.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import orjson

from farm import errors
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
from farm.encoding.json_numbers import MOST_CONFIG
from farm.encoding.tensors import check_rows, rows_of, shown, unlike_rows
from farm.errors import FarmError, InvalidRequest, UnsupportedFeature
from farm.protocols.graphpipe.flatbuffer import FlatTable, root, text_of
from farm.protocols.graphpipe.flatbuffer_writer import Int64, Int64s, TableToWrite, UInt8, write
from farm.protocols.graphpipe.tensors import (
    SHARED_BYTES,
    GraphpipeFault,
    TypeCode,
    array_of,
    number_of,
    shape_of,
    size_of,
    tensor_record,
    type_name,
    wire_dtype,
)
from farm.version import __version__

TRAVELS = (TypeCode, GraphpipeFault)
"""Classes that may cross to and from a reader process, in addition to farm's own."""

SERVER_NAME = "farm"

INFER, METADATA = 1, 2
"""The types of a request: ids in its union."""

MOST_NAMES = 4096
"""Names of inputs or outputs in a request, in addition to two for each tensor of the model."""

ERRORS: Mapping[type[FarmError], TypeCode] = MappingProxyType(
    {
        errors.InvalidRequest: TypeCode.MALFORMED,
        errors.InvalidInput: TypeCode.SHAPE,
        errors.ModelNotFound: TypeCode.OVERLOADED,
        errors.UnsupportedFeature: TypeCode.REQUEST_TYPE,
        errors.ModelFailed: TypeCode.MODEL,
        errors.InvalidOutput: TypeCode.MODEL,
        errors.WorkerLost: TypeCode.MODEL,
        errors.TimeLimitExceeded: TypeCode.TIMEOUT,
        errors.DeadlineExceeded: TypeCode.TIMEOUT,
        errors.Cancelled: TypeCode.OVERLOADED,
        errors.Overloaded: TypeCode.OVERLOADED,
        errors.Unavailable: TypeCode.OVERLOADED,
    }
)
"""The code of each error that does not carry one. ModelNotFound arises after the path was resolved
only if the model's last worker has just left."""


class GraphpipeRequest(NamedTuple):
    """A request for an evaluation: the canonical config, and the table that `call_of` decodes."""

    config: str
    table: FlatTable


SMALL_BYTES = 32 * 1024
"""Tensors up to this size are encoded by a faster way."""

Wish = Sequence[int]
"""The outputs of the answer: positions among the model's outputs, in the requested order."""


def decode_request(body: bytes | memoryview) -> GraphpipeRequest | None:
    """Return the request; None: it asks for the metadata. Raises InvalidRequest or Fault."""
    request = root(body)
    kind = request.uint8(0)
    if kind == METADATA:
        return None
    if kind != INFER:
        raise GraphpipeFault(
            TypeCode.REQUEST_TYPE,
            f"request type {kind}; expected {INFER} (InferRequest) or {METADATA} (MetadataRequest)",
        )
    table = request.table(1)
    if table is None:
        raise InvalidRequest("the request has type InferRequest but contains none")
    return GraphpipeRequest(_config(table.text(0)), table)


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
        raise InvalidRequest(f"config {shown(text)} is not a JSON object: {error}") from None


def call_of(request: GraphpipeRequest, info: ModelInfo) -> tuple[Call, Wish]:
    """Return the call of a request to the described model, and the requested outputs.

    info: the description for the request's config. Raises FarmError or Fault.
    """
    if Operation.EVALUATE not in info.operations:
        raise UnsupportedFeature(f"model {info.name!r} cannot be asked here: it has no evaluate")
    arrays, rows = _arrays(request.table, info)
    call = Call(info.name, Operation.EVALUATE, arrays, request.config, rows=rows)
    return call, _wish(request.table, info)


def decode_call(
    body: bytes | memoryview, info: ModelInfo, config: str
) -> tuple[str, Call | None, Wish]:
    """Return a request's config, and if that is `config`, the result of `call_of` too.

    This does both steps at once in a reader process. Raises FarmError or Fault.
    """
    request = decode_request(body)
    if request is None:
        raise GraphpipeFault(TypeCode.TOO_LARGE, "a request for the metadata is short")
    if request.config != config:
        return request.config, None, ()
    call, wish = call_of(request, info)
    return config, call, tuple(wish)


def _arrays(table: FlatTable, info: ModelInfo) -> tuple[tuple[Array, ...], int | None]:
    """Return the inputs in the model's order, and the number of rows; None: no batch axis."""
    _, count = table.vector(2, 4)
    expected = [tensor.name for tensor in info.inputs]
    if count != len(expected):
        raise GraphpipeFault(
            TypeCode.COUNT,
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


def _places(table: FlatTable, info: ModelInfo) -> Sequence[int]:
    """Return the position of the model's input for each tensor of the request."""
    count = len(info.inputs)
    names = _names(table, 1, "input", info)
    expected = [tensor.name for tensor in info.inputs]
    if not names or names == expected:
        return range(count)
    # A batching proxy repeats all names.
    if not count or names[:count] * (len(names) // count) != names:
        raise GraphpipeFault(
            TypeCode.COUNT,
            f"{len(names)} names {shown(names)}; expected one for each of {count} input tensors, "
            "or all of them several times",
        )
    places = [
        _place(name, i, expected, TypeCode.INPUT, info) for i, name in enumerate(names[:count])
    ]
    if len(set(places)) < count:
        twice = next(place for place in places if places.count(place) > 1)
        raise GraphpipeFault(TypeCode.INPUT, f"input {expected[twice]!r} is given more than once")
    return places


def _wish(table: FlatTable, info: ModelInfo) -> Wish:
    names = _names(table, 3, "output", info)
    expected = [tensor.name for tensor in info.outputs]
    if not any(names) or names == expected:
        return range(len(expected))
    return [_place(name, i, expected, TypeCode.OUTPUT, info) for i, name in enumerate(names)]


def _names(table: FlatTable, slot: int, what: str, info: ModelInfo) -> list[str]:
    _, count = table.vector(slot, 4)
    if not count:
        return []
    most = MOST_NAMES + 2 * max(len(info.inputs), len(info.outputs))
    if count > most:
        raise GraphpipeFault(
            TypeCode.TOO_LARGE, f"{count} names of {what}s; expected {most} at most"
        )
    try:
        names = table.strings(slot, most_bytes=len(table.buffer) + SHARED_BYTES)
    except ValueError as error:
        raise GraphpipeFault(TypeCode.TOO_LARGE, f"names of {what}s: {error}") from None
    return [text_of(name) for name in names]


def _place(name: str, default: int, expected: list[str], code: TypeCode, info: ModelInfo) -> int:
    """Return the position of a name; an empty name means the tensor at the same position."""
    if not name and default < len(expected):
        return default
    try:
        return expected.index(name)
    except ValueError:
        what = code.name.lower()
        message = f"unknown {what} {shown(name)}; model {info.name!r} has the {what}s {expected}"
        raise GraphpipeFault(code, message) from None


def _fitting_shape(got: FlatTable, tensor: TensorInfo, info: ModelInfo) -> tuple[int, ...]:
    """Return the shape of a tensor after checking that its type is the model's."""
    wanted, number = number_of(tensor), got.uint8(0)
    if number != wanted:
        raise GraphpipeFault(
            TypeCode.TYPE,
            f"input {tensor.name!r} has type {type_name(number)}; "
            f"model {info.name!r} expects {type_name(wanted)}",
        )
    return shape_of(got, f"input {tensor.name!r}")


def encode_result(wish: Wish, info: ModelInfo, result: Result) -> bytes:
    """Encode the requested outputs. Raises Fault: too large, or a type GraphPipe does not have."""
    if len(info.outputs) == len(wish) == 1:
        small = _one_small(info.outputs[0], result.outputs[0])
        if small is not None:
            return small
    outputs = zip(info.outputs, result.outputs, strict=True)
    records = [tensor_record(array, tensor) for tensor, array in outputs]
    try:
        return write(TableToWrite([[records[place] for place in wish]]))
    except ValueError as error:
        raise GraphpipeFault(TypeCode.TOO_LARGE, f"the answer: {error}") from None


def _one_small(tensor: TensorInfo, array: Array) -> bytes | None:
    """Encode a single small output, the usual case; None: it is not of that kind.

    Type and shape determine all bytes but its data.
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
    answer = write(
        TableToWrite([[tensor_record(np.empty(shape, wire_dtype(tensor.dtype)), tensor)]])
    )
    return answer[: len(answer) - nbytes]


def encode_error(error: FarmError | GraphpipeFault) -> bytes:
    """Encode an answer that reports an error."""
    code = error.code if isinstance(error, GraphpipeFault) else ERRORS[type(error)]
    return write(TableToWrite([[], [TableToWrite([Int64(code), error.message])]]))


def encode_metadata(info: ModelInfo) -> bytes:
    """Encode a model's description; shapes have the batch axis as a leading -1. Raises Fault."""
    return write(
        TableToWrite(
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


def _io_record(tensor: TensorInfo) -> TableToWrite:
    return TableToWrite([tensor.name, "", Int64s((-1, *tensor.shape)), UInt8(number_of(tensor))])


def metadata_json(info: ModelInfo) -> bytes:
    """The same as JSON, with the keys of the Go server. Raises Fault."""

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
