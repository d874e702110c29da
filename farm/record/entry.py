"""The records in a record file: evaluations, and descriptions of models.

    'E'     an evaluation: `FIXED`, its head, its origin, then the entries of all arrays: inputs,
            sens, vec, outputs
    'M'     the description of a model for the empty config: JSON

    head    JSON: model, version, operation, config, forms of the inputs, arguments of a derivative,
            forms of the outputs, error
    origin  JSON: worker, client, chain

Each evaluation is complete without any other record, so damage elsewhere never makes it unreadable.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np

from farm.call import Array, Call, Derivative, Operation, numpy_dtype
from farm.record.key import KEY_BYTES
from farm.storage.frames import FRAME, HEAD, Format, Record

FORMAT = Format("farm record", 1, kinds=b"EM")
EVALUATION, MODEL = b"EM"

FIXED = struct.Struct(f"<{KEY_BYTES}sddBII")
PREFIX = FRAME.size + HEAD.size
"""Bytes of a record in the file before its payload."""

_LENGTH = struct.Struct("<I")


class Status(IntEnum):
    """The outcome of an evaluation; only FINITE ones are answers to later calls."""

    FINITE = 0
    NOT_FINITE = 1
    """An output holds NaN or an infinity."""
    FAILED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One evaluation of one point.

    time: Unix time of its answer; run_time_s: seconds in the model, of a batch its share.
    error: class, message and detail of a failure.
    """

    key: bytes
    model: str
    version: str
    operation: Operation
    config: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...] = ()
    derivative: Derivative | None = None
    time: float = 0.0
    run_time_s: float = 0.0
    status: Status = Status.FINITE
    error: tuple[str, str, str] | None = None
    worker: str = ""
    client: str = ""
    chain: str = ""


def entry_of(call: Call, key: bytes, version: str, **facts: Any) -> Entry:
    """Return the evaluation of a call by a version of its model. facts: the other fields."""
    return Entry(
        key,
        call.model,
        version,
        call.operation,
        call.config,
        **{"inputs": call.inputs, "derivative": call.derivative, **facts},
    )


def status_of(outputs: tuple[Array, ...]) -> Status:
    """Return whether all numbers of the outputs are finite."""
    for array in outputs:
        if array.dtype.kind in "fcV" and not np.isfinite(array).all():
            return Status.NOT_FINITE
    return Status.FINITE


def encoded(entry: Entry) -> Record:
    """Encode an evaluation."""
    wrt = entry.derivative
    arrays = [*entry.inputs]
    derivative: tuple[Any, ...] | None = None
    if wrt is not None:
        vectors = [None if v is None else np.asarray(v, np.float64) for v in (wrt.sens, wrt.vec)]
        arrays += [v for v in vectors if v is not None]
        forms = [None if v is None else _form(v) for v in vectors]
        derivative = (wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2, *forms)
    arrays += entry.outputs
    head = _head(
        entry.model,
        entry.version,
        entry.operation.value,
        entry.config,
        tuple([_form(a) for a in entry.inputs]),
        derivative,
        tuple([_form(a) for a in entry.outputs]),
        entry.error,
    )
    origin = _origin(entry.worker, entry.client, entry.chain)
    fixed = FIXED.pack(
        entry.key, entry.time, entry.run_time_s, entry.status, len(head), len(origin)
    )
    return Record(EVALUATION, b"".join([fixed, head, origin, *[_raw(a) for a in arrays]]))


def decoded(payload: memoryview) -> Entry:
    """Decode an evaluation; its arrays are writable. Raises ValueError, KeyError, TypeError."""
    key, time, run_time_s, status, of_head, of_origin = FIXED.unpack_from(payload)
    at = FIXED.size + of_head
    model, version, operation, config, inputs, derivative, outputs, error = _parsed(
        bytes(payload[FIXED.size : at])
    )
    worker, client, chain = _parsed(bytes(payload[at : at + of_origin]))
    reader = _ArrayReader(payload, at + of_origin)
    asked = tuple([reader.array(form) for form in inputs])
    wrt = None
    if derivative is not None:
        out_wrt, in_wrt, in_wrt2, sens, vec = derivative
        wrt = Derivative(
            out_wrt,
            in_wrt,
            in_wrt2,
            sens=None if sens is None else reader.array(sens),
            vec=None if vec is None else reader.array(vec),
        )
    return Entry(
        key=key,
        model=model,
        version=version,
        operation=Operation(operation),
        config=config,
        inputs=asked,
        outputs=tuple([reader.array(form) for form in outputs]),
        derivative=wrt,
        time=time,
        run_time_s=run_time_s,
        status=Status(status),
        error=None if error is None else (error[0], error[1], error[2]),
        worker=worker,
        client=client,
        chain=chain,
    )


@lru_cache(maxsize=1024)
def _parsed(data: bytes) -> list[Any]:
    """Return the content of a head or an origin, which most evaluations of a model share."""
    found: list[Any] = json.loads(data)
    return found


def key_and_status(payload: memoryview) -> tuple[bytes, int]:
    """Return the key and the status of an encoded evaluation."""
    return bytes(payload[:KEY_BYTES]), payload[KEY_BYTES + 16]


Form = tuple[str, tuple[int, ...]] | tuple[str, tuple[int, ...], int]
"""Type and shape of an array; for an array of bytes objects also the length of its encoding."""


def _form(array: Array) -> Form:
    if array.dtype.hasobject:
        return "bytes", array.shape, sum(_LENGTH.size + len(entry) for entry in array.flat)
    return _name(array.dtype), array.shape


@lru_cache(maxsize=64)
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


@lru_cache(maxsize=1024)
def _head(*parts: Any) -> bytes:
    return json.dumps(parts, separators=(",", ":")).encode()


@lru_cache(maxsize=1024)
def _origin(*names: str) -> bytes:
    return json.dumps(names, separators=(",", ":")).encode()


def _raw(array: Array) -> bytes:
    if array.dtype.hasobject:
        return b"".join([_LENGTH.pack(len(entry)) + bytes(entry) for entry in array.flat])
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


class _ArrayReader:
    """Reads arrays one after another."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    def array(self, form: list[Any]) -> Array:
        name, sizes, *length = form
        shape = tuple(sizes)
        if length:
            return self._bytes(shape, length[0])
        dtype = numpy_dtype(name)
        count = int(np.prod(shape, dtype=np.int64))
        end = self._at + count * dtype.itemsize
        data = bytearray(self._data[self._at : end])
        self._at = end
        return np.frombuffer(data, dtype, count).reshape(shape)

    def _bytes(self, shape: tuple[int, ...], length: int) -> Array:
        found = []
        end = self._at + length
        while self._at < end:
            (size,) = _LENGTH.unpack_from(self._data, self._at)
            self._at += _LENGTH.size + size
            found.append(bytes(self._data[self._at - size : self._at]))
        array = np.empty(len(found), dtype=object)
        array[:] = found
        return array.reshape(shape)
