"""GraphPipe, client half: encodes calls as requests, and decodes answers into results.

It accepts known deviations of other servers: outputs beside a meaningless list of errors (the
python package), strings without a NUL (Go), and missing names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from farm.call import (
    EMPTY_CONFIG,
    Array,
    Call,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
    numpy_dtype,
)
from farm.encoding.errors import decode_error
from farm.encoding.tensors import shown
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    TimeLimitExceeded,
    Unavailable,
    UnsupportedFeature,
)
from farm.protocols.graphpipe.codec import INFER, METADATA
from farm.protocols.graphpipe.flatbuffer import FlatTable, root
from farm.protocols.graphpipe.flatbuffer_writer import TableToWrite, UInt8, write
from farm.protocols.graphpipe.tensors import (
    MOST_DIMENSIONS,
    NUMBERS,
    SHARED_BYTES,
    TYPES,
    GraphpipeFault,
    TypeCode,
    array_of,
    shape_of,
    size_of,
    tensor_record,
    type_name,
)

METADATA_REQUEST = write(TableToWrite([UInt8(METADATA), TableToWrite([])]))

ERRORS: Mapping[int, type[FarmError]] = MappingProxyType(
    {
        TypeCode.MALFORMED: InvalidInput,
        TypeCode.REQUEST_TYPE: UnsupportedFeature,
        TypeCode.COUNT: InvalidInput,
        TypeCode.TYPE: InvalidInput,
        TypeCode.SHAPE: InvalidInput,
        TypeCode.INPUT: InvalidInput,
        TypeCode.OUTPUT: InvalidInput,
        TypeCode.TOO_LARGE: InvalidInput,
        TypeCode.MODEL: ModelFailed,
        TypeCode.OVERLOADED: Unavailable,
        TypeCode.TIMEOUT: TimeLimitExceeded,
    }
)
"""The error for each code of another farm; other servers send no codes."""


class GraphpipeMetadata(NamedTuple):
    """A server's description of its model, and whether its tensors have a leading batch axis."""

    info: ModelInfo
    batched: bool


def encode_call(call: Call, info: ModelInfo) -> bytes:
    """Return the request for an evaluation, with the names of all inputs and outputs.

    call: its inputs are in the model's order and fit it. Raises InvalidInput if the request is too
    large.
    """
    lead = () if call.rows is None else (call.rows,)
    tensors = []
    for array, tensor in zip(call.inputs, info.inputs, strict=True):
        array = np.asarray(array, numpy_dtype(tensor.dtype))
        shape = lead + tensor.shape
        tensors.append(tensor_record(array if -1 in shape else array.reshape(shape), tensor))
    names = [[tensor.name for tensor in those] for those in (info.inputs, info.outputs)]
    config = "" if call.config == EMPTY_CONFIG else call.config
    try:
        return write(
            TableToWrite([UInt8(INFER), TableToWrite([config, names[0], tensors, names[1]])])
        )
    except ValueError as error:
        raise InvalidInput(f"the request to {info.name!r}: {error}") from None


def decode_metadata(
    status: int, body: bytes, *, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> GraphpipeMetadata:
    """Return a server's description of its model as farm's own.

    inputs, outputs: names of the tensors to use; (): all. If every tensor begins with -1, that is
    taken as the batch axis. Raises the FarmError that the answer reports, or InvalidOutput.
    """
    if status != 200:
        raise decode_error(status, body)
    try:
        answer = root(body)
        name, description = answer.text(0), answer.text(3)
        tensors = [
            _chosen(_by_name(answer, slot), names, what)
            for slot, names, what in ((4, inputs, "input"), (5, outputs, "output"))
        ]
    except InvalidRequest as error:
        raise InvalidOutput(f"the server's metadata: {error.message}") from None
    batched = all(t.shape[:1] == (-1,) for those in tensors for t in those)
    if batched:
        tensors = [[TensorInfo(t.name, t.shape[1:], t.dtype) for t in those] for those in tensors]
    operations = frozenset({Operation.EVALUATE})
    taken, given = map(tuple, tensors)
    return GraphpipeMetadata(
        ModelInfo(name, taken, given, operations, description=description), batched
    )


def _by_name(answer: FlatTable, slot: int) -> dict[str, FlatTable]:
    left = len(answer.buffer) + SHARED_BYTES
    by_name = {}
    for table in answer.tables(slot):
        name = table.text(0)
        left -= len(name)
        if left < 0:
            raise InvalidRequest("its tensors share their names without end")
        by_name[name] = table
    return by_name


def _chosen(by_name: Mapping[str, FlatTable], names: Sequence[str], what: str) -> list[TensorInfo]:
    missing = [name for name in names if name not in by_name]
    if missing:
        known = shown(list(by_name))
        raise InvalidOutput(f"the server has no {what} {missing[0]!r}; its {what}s are {known}")
    tensors = []
    for name in names or by_name:
        table = by_name[name]
        try:
            number, shape = table.uint8(3), table.int64s(2, most=MOST_DIMENSIONS)
        except ValueError as error:
            raise InvalidOutput(f"the shape of {what} {name!r} has {error}") from None
        dtype = TYPES[number][1] if number < len(TYPES) else ""
        if not dtype or any(size < -1 for size in shape):
            raise InvalidOutput(
                f"the server says that {what} {name!r} is {type_name(number)} {shown(list(shape))}"
            )
        tensors.append(TensorInfo(name, shape, dtype))
    return tensors


def decode_result(info: ModelInfo, status: int, body: bytes) -> Result:
    """Return the result of an evaluation: the outputs that `encode_call` asked for.

    The caller checks whether their shapes fit. Raises the FarmError that the answer reports, or
    InvalidOutput if the data is not an answer.
    """
    if status != 200:
        raise decode_error(status, body)
    try:
        outcome = _outcome(root(body), info)
    except (
        InvalidRequest,
        InvalidInput,
        GraphpipeFault,
    ) as error:  # errors of the checks that requests share
        raise InvalidOutput(f"the server's answer: {error.message}") from None
    if isinstance(outcome, FarmError):
        raise outcome
    return outcome


def _outcome(answer: FlatTable, info: ModelInfo) -> Result | FarmError:
    _, count = answer.vector(0, 4)
    error = None if count else next(answer.tables(1), None)
    if error is not None:
        code, message = error.int64(0), error.text(1)
        kind = ERRORS.get(code, ModelFailed)
        return kind(f"the server answered with code {code}: {message}")
    if count != len(info.outputs):
        raise InvalidOutput(f"the server gave {count} outputs; expected {len(info.outputs)}")
    return Result(_arrays(answer, info))


def _arrays(answer: FlatTable, info: ModelInfo) -> tuple[Array, ...]:
    left = len(answer.buffer) + SHARED_BYTES
    arrays = []
    for tensor, got in zip(info.outputs, answer.tables(0), strict=True):
        number, where = got.uint8(0), f"output {tensor.name!r}"
        if number != NUMBERS[tensor.dtype]:
            raise InvalidOutput(f"{where} is {type_name(number)}; its metadata say {tensor.dtype}")
        array = array_of(got, tensor.dtype, shape_of(got, where), where, left)
        left -= size_of(array)
        arrays.append(array)
    return tuple(arrays)
