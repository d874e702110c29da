"""MIP inferences as calls and results: values of TEXT, JSON and IMAGE, for both halves.

A payload is n-input, n-output, batch size, and then the values entry by entry, each a type, a size
and data. Numbers are sent as JSON lists. A tensor of dtype "bytes" with one element is one value: a
text or an image file as it is; with more elements it is a JSON list of texts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import orjson

from farm.call import (
    BFLOAT16,
    BYTES,
    Array,
    Call,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
    numpy_dtype,
)
from farm.encoding.json_numbers import NUMBERS, array_text, kind_of, parse
from farm.errors import InvalidInput, InvalidOutput, InvalidRequest, UnsupportedFeature
from farm.model import varying_shape
from farm.protocols.mip.packets import (
    HEAD,
    LARGEST_PAYLOAD,
    RESPONSE,
    VERSION,
    PacketKind,
    encode_request,
)

COUNTS = struct.Struct("!2BH")
TYPE_AND_SIZE = struct.Struct("!2L")
MOST_TENSORS, MOST_ENTRIES = 255, 65535
MAX_DIMENSIONS = 16
_STRINGS: frozenset[type] = frozenset({str})


class Type(IntEnum):
    """Types of a value's data."""

    TEXT = 1
    JSON = 2
    IMAGE = 3


class Value(NamedTuple):
    """One value of a payload; `type` may be unknown."""

    type: int
    data: bytes


# The server's half


def values_in(payload: bytes | bytearray) -> int:
    """Return the number of values that a payload announces, 0 if its counts are missing."""
    if len(payload) < COUNTS.size:
        return 0
    n_inputs, _, rows = COUNTS.unpack_from(payload)
    return int(n_inputs * rows)


def decode_call(payload: bytes, info: ModelInfo) -> Call:
    """Return the call of an inference with this model.

    Each entry is a row; one entry alone has no batch axis. Raises InvalidInput if the payload does
    not fit its counts or the model, InvalidRequest if a value is not of its type; both name the
    entry.
    """
    if Operation.EVALUATE not in info.operations:
        raise UnsupportedFeature(f"model {info.name!r} does not offer inference")
    n_inputs, _, rows = _counts(payload)
    if n_inputs != len(info.inputs):
        raise InvalidInput(
            f"the request has {n_inputs} inputs an entry, model {info.name!r} expects "
            f"{len(info.inputs)}"
        )
    columns = _columns(payload, rows, info.inputs, "input", is_batch=rows != 1)
    return Call(info.name, Operation.EVALUATE, columns, rows=None if rows == 1 else rows)


def encode_result(call: Call, result: Result, info: ModelInfo) -> bytes:
    """Encode the answer to a call as a packet. Raises FarmError if it does not fit into one."""
    counts = len(call.inputs), len(result.outputs)
    payload = _payload(counts, call.rows, result.outputs, info.outputs)
    if len(payload) > LARGEST_PAYLOAD:
        raise InvalidOutput(
            f"the answer takes {len(payload)} bytes in MIP; a packet holds {LARGEST_PAYLOAD}"
        )
    return HEAD.pack(VERSION, PacketKind.INFERENCE, RESPONSE, 0, len(payload)) + payload


# The client's half


def encode_call(call: Call, info: ModelInfo) -> bytes:
    """Encode a call as a request packet. Raises FarmError if it does not fit into one."""
    if (call.rows or 1) > MOST_ENTRIES:
        raise InvalidInput(f"the call has {call.rows} rows; a packet of MIP holds {MOST_ENTRIES}")
    return encode_request(_payload((len(call.inputs), 0), call.rows, call.inputs, info.inputs))


def decode_result(payload: bytes, info: ModelInfo, rows: int | None) -> Result:
    """Return the result in the response to a call of `rows` rows. Raises InvalidOutput.

    The number of outputs comes from the model: KubeMo's own server sends the number of inputs
    instead.
    """
    try:
        _, _, entries = _counts(payload)
        if entries != (rows or 1):
            raise InvalidInput(f"it has {entries} entries; expected {rows or 1}")
        return Result(_columns(payload, entries, info.outputs, "output", is_batch=rows is not None))
    except (InvalidInput, InvalidRequest) as error:
        raise InvalidOutput(f"the answer of model {info.name!r}: {error.message}") from None


# Reading


def _counts(payload: bytes) -> tuple[int, int, int]:
    if len(payload) < COUNTS.size:
        raise InvalidInput(f"the payload has {len(payload)} bytes; expected 4 and more, its counts")
    n_inputs, n_outputs, rows = COUNTS.unpack_from(payload)
    if rows == 0:
        raise InvalidInput("the batch size is 0; expected 1 or more")
    return n_inputs, n_outputs, rows


def _values(payload: bytes, count: int) -> list[Value]:
    """Return `count` values, the last of which must end where the payload does."""
    end = len(payload)
    if COUNTS.size + count * TYPE_AND_SIZE.size > end:
        raise InvalidInput(f"the payload has {end} bytes, too few for its {count} values")
    values = []
    at = COUNTS.size
    for number in range(count):
        start = at + TYPE_AND_SIZE.size
        if start > end:
            raise InvalidInput(f"the payload ends before value {number} of {count}")
        kind, size = TYPE_AND_SIZE.unpack_from(payload, at)
        at = start + size
        if at > end:
            raise InvalidInput(
                f"value {number} of {count} has {size} bytes; {end - start} are left of the payload"
            )
        values.append(Value(kind, payload[start:at]))
    if at != end:
        raise InvalidInput(f"{end - at} bytes are left in the payload behind its {count} values")
    return values


def _columns(
    payload: bytes, entries: int, tensors: Sequence[TensorInfo], what: str, *, is_batch: bool
) -> tuple[Array, ...]:
    """Return the tensors of all entries, with a leading batch axis if they are a batch."""
    count = len(tensors)
    values = _values(payload, entries * count)
    columns = [
        _column(values[i::count], tensor, f"{what} {i} ({tensor.name!r})")
        for i, tensor in enumerate(tensors)
    ]
    return tuple(columns if is_batch else [column.reshape(column.shape[1:]) for column in columns])


def _column(values: Sequence[Value], tensor: TensorInfo, what: str) -> Array:
    """Return one tensor of all entries, with a leading batch axis."""

    def where(entry: int) -> str:
        return f"entry {entry}, {what}"

    if tensor.dtype != BYTES:
        return _numbers(values, tensor, where)
    if tensor.size != 1:
        return _texts(values, tensor, where)
    column = np.empty(len(values), dtype=object)
    for entry, value in enumerate(values):
        column[entry] = _checked(value, where(entry))
    return column.reshape(len(values), *tensor.shape)


def _checked(value: Value, where: str) -> bytes:
    """Return the data of a value after checking that they fit its type."""
    if value.type == Type.TEXT:
        try:
            value.data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{where} is not UTF-8 text: {error.reason}") from None
    elif value.type == Type.JSON:
        _json(value, where)
    elif value.type != Type.IMAGE:
        raise _unknown(value, where)
    return value.data


def _json(value: Value, where: str) -> Any:
    """Return the decoded data of a JSON value, or of a text that holds JSON."""
    if value.type == Type.IMAGE:
        raise InvalidRequest(f"{where} is an image; expected JSON")
    if value.type not in (Type.JSON, Type.TEXT):
        raise _unknown(value, where)
    return parse(value.data, where)


def _unknown(value: Value, where: str) -> InvalidRequest:
    kinds = ", ".join(f"{kind.value} {kind.name}" for kind in Type)
    return InvalidRequest(f"{where} has type {value.type}; expected one of {kinds}")


def _texts(values: Sequence[Value], tensor: TensorInfo, where: Callable[[int], str]) -> Array:
    rows = [_json(value, where(entry)) for entry, value in enumerate(values)]
    flat, shape = _stacked(rows, tensor, where, _STRINGS, "a list of strings")
    column = np.empty(len(flat), dtype=object)
    column[:] = [text.encode("utf-8", "replace") for text in flat]
    return column.reshape(shape)


def _numbers(values: Sequence[Value], tensor: TensorInfo, where: Callable[[int], str]) -> Array:
    rows = _parsed_at_once(values)
    if rows is not None and set(map(len, rows)) == {tensor.size}:  # the usual case
        flat, shape = list(chain.from_iterable(rows)), (len(rows), *tensor.shape)
    else:
        if rows is None:
            rows = [_json(value, where(entry)) for entry, value in enumerate(values)]
        flat, shape = _stacked(rows, tensor, where, NUMBERS, "a list of numbers")
    dtype = numpy_dtype(tensor.dtype)
    try:
        if dtype.kind in "iu" and float not in map(type, flat):
            return np.array(flat, dtype=dtype).reshape(shape)
        array = np.array(flat, dtype=np.float64).reshape(shape)
    except OverflowError:
        entry = next(i for i, row in enumerate(rows) if not _holds(dtype, _flattened(row)[0]))
        raise InvalidInput(
            f"{where(entry)} holds a number that is too large for {tensor.dtype}"
        ) from None
    if dtype.kind in "iub":
        with np.errstate(invalid="ignore"):
            whole = array.astype(dtype)
        # The call's check reports the reason.
        return whole if np.array_equal(whole, array) else array
    return array


def _holds(dtype: np.dtype[Any], items: list[Any]) -> bool:
    try:
        np.array(items, dtype=dtype)
    except OverflowError:
        return False
    return True


def _parsed_at_once(values: Sequence[Value]) -> list[Any] | None:
    """Return the decoded values if each is one list of numbers that the fast parser accepts.

    They are parsed as one text. If each begins and ends like a list, and the result has as many
    lists as there are values, none of which contains a list, then each value is one of them.
    """
    for kind, data in values:
        if kind not in (Type.JSON, Type.TEXT) or data[:1] != b"[" or data[-1:] != b"]":
            return None
    try:
        rows: list[Any] = orjson.loads(b"[%b]" % b",".join([value.data for value in values]))
    except orjson.JSONDecodeError:
        return None
    if len(rows) != len(values) or not NUMBERS.issuperset(map(type, chain.from_iterable(rows))):
        return None
    return rows


def _stacked(
    rows: Sequence[Any],
    tensor: TensorInfo,
    where: Callable[[int], str],
    allowed: frozenset[type],
    expected: str,
) -> tuple[list[Any], tuple[int, ...]]:
    """Return the items of all entries in sequence, and the shape of the whole.

    Raises InvalidInput if a shape is not the tensor's, InvalidRequest if an item is not.
    """
    flat: list[Any] = []
    first: tuple[int, ...] = ()
    for entry, row in enumerate(rows):
        items, shape = _flattened(row)
        if not allowed.issuperset(map(type, items)):
            item = next(item for item in items if type(item) not in allowed)
            raise InvalidRequest(f"{where(entry)} holds {kind_of(item)}; expected {expected}")
        found = _fitting(shape, tensor)
        if found is None:
            raise InvalidInput(
                f"{where(entry)} has shape {list(shape)}, the model expects {list(tensor.shape)}"
            )
        if entry and found != first:
            raise InvalidInput(
                f"{where(entry)} has shape {list(found)}, entry 0 has {list(first)}; "
                "entries of one packet are of one shape"
            )
        first = found
        flat += items
    return flat, (len(rows), *first)


def _flattened(value: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the items of nested lists, and their shape as deep as the lists have equal lengths."""
    level = value if type(value) is list else [value]
    shape = [len(level)]
    while level and type(level[0]) is list and len(shape) < MAX_DIMENSIONS:
        size = len(level[0])
        if any(type(part) is not list or len(part) != size for part in level):
            break  # a list among the items is never an expected item
        shape.append(size)
        level = list(chain.from_iterable(level))
    return level, tuple(shape)


def _fitting(shape: tuple[int, ...], tensor: TensorInfo) -> tuple[int, ...] | None:
    if tensor.varies:
        return varying_shape(shape, tensor.shape)
    return tensor.shape if shape in (tensor.shape, (tensor.size,)) else None


# Writing


def _payload(
    counts: tuple[int, int],
    rows: int | None,
    arrays: Sequence[Array],
    tensors: Sequence[TensorInfo],
) -> bytes:
    """Return a payload with these numbers of inputs and outputs, and the arrays' values."""
    if max(counts) > MOST_TENSORS:
        raise UnsupportedFeature(f"MIP carries at most {MOST_TENSORS} inputs and outputs")
    if rows is None:
        arrays = [np.asarray(array)[None] for array in arrays]
    columns = [_written(array, tensor) for array, tensor in zip(arrays, tensors, strict=True)]
    parts = [COUNTS.pack(*counts, rows or 1)]
    for entry in zip(*columns, strict=True):
        for kind, data in entry:
            parts.append(TYPE_AND_SIZE.pack(kind, len(data)))
            parts.append(data)
    return b"".join(parts)


def _written(array: Array, tensor: TensorInfo) -> list[Value]:
    """Return the values of one tensor, entry by entry."""
    where = f"tensor {tensor.name!r}"
    if not array.dtype.hasobject:
        return [Value(Type.JSON, text) for text in _number_texts(array, where)]
    if tensor.size == 1:  # by declaration, not because it has one text at present
        return [_of_bytes(data) for data in array.reshape(-1).tolist()]
    return [Value(Type.JSON, _list_of_texts(row, where)) for row in array]


def _of_bytes(data: bytes) -> Value:
    """Return a text value for UTF-8, otherwise an image: MIP has no other type for bytes."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return Value(Type.IMAGE, data)
    return Value(Type.TEXT, data)


def _list_of_texts(row: Array, where: str) -> bytes:
    try:
        texts = np.vectorize(bytes.decode, otypes=[object])(row).tolist() if row.size else []
    except UnicodeDecodeError:
        raise UnsupportedFeature(
            f"{where} is a list of bytes that are no texts; MIP carries lists of texts"
        ) from None
    return json.dumps(texts, ensure_ascii=False).encode()


def _number_texts(array: Array, where: str) -> list[bytes]:
    if array.dtype.isbuiltin != 1 and array.dtype.name == BFLOAT16:
        array = array.astype(np.float32)
    elif array.dtype.kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype.kind == "c":
        raise UnsupportedFeature(f"{where} is {array.dtype}; MIP carries real numbers")
    if array.ndim == 1:
        array = array[:, None]  # a value is a list, even of one number
    if array.ndim > 2 or not len(array):
        return [array_text(row) for row in array]
    return [b"[%b]" % row for row in array_text(array)[2:-2].split(b"],[")]
