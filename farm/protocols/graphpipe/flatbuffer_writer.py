"""Writes flatbuffers from front to back; `flatbuffer.py` reads them.

Source: https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LONGEST = 2**31 - 1
"""Maximum length of a flatbuffer in bytes."""

_U32, _I64 = struct.Struct("<I"), struct.Struct("<q")


class TableToWrite(NamedTuple):
    """A table to be written: its fields by slot, None for an absent field.

    A field is a scalar of the classes below, or the target of an offset: a TableToWrite, Int64s, an
    array (a vector of its bytes, which begin at a multiple of 8 so that readers need no copy),
    `str` or `bytes` (a string followed by a NUL, for readers in C), or a list of tables or strings.
    """

    fields: Sequence[Any]


class UInt8(int):
    """A scalar of one byte."""


class Int64(int):
    """A scalar of eight bytes."""


class Int64s(tuple[int, ...]):
    """A vector of int64."""


def write(record: TableToWrite) -> bytes:
    """Return the flatbuffer with this root table. Raises ValueError above 2 GiB."""
    writer = _PartWriter()
    start = bytearray(4)
    writer.put(start)
    _U32.pack_into(start, 0, writer.record(record))
    return b"".join(writer.parts)


class _PartWriter:
    """Collects parts in an order in which all offsets point forward; does not copy arrays."""

    __slots__ = ("parts", "position")

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.position = 0

    def put(self, part: Any) -> None:
        """Append bytes. Raises ValueError above 2 GiB."""
        self.parts.append(part)
        self.position += len(part)
        if self.position > LONGEST:
            raise ValueError(f"{self.position} bytes; the offsets of a flatbuffer reach {LONGEST}")

    def pad(self, multiple: int, *, ahead: int = 0) -> None:
        """Append zeros until the position plus `ahead` is a multiple of `multiple`."""
        gap = -(self.position + ahead) % multiple
        if gap:
            self.put(bytes(gap))

    def record(self, record: TableToWrite) -> int:
        """Write a table and the targets of its offsets; return its position."""
        vtable_size, offsets, size = _layout(record.fields)
        self.pad(8, ahead=vtable_size)
        head = bytearray(
            struct.pack(f"<HH{len(offsets)}Hi", vtable_size, size, *offsets, vtable_size)
        )
        head += bytes(size - 4)
        begin = self.position
        self.put(head)
        later = []
        for offset, value in zip(offsets, record.fields, strict=True):
            at = vtable_size + offset
            if isinstance(value, UInt8):
                head[at] = value
            elif isinstance(value, Int64):
                _I64.pack_into(head, at, value)
            elif value is not None:
                later.append((at, value))
        for at, value in later:
            _U32.pack_into(head, at, self.value(value) - begin - at)
        return begin + vtable_size

    def value(self, value: Any) -> int:
        """Write the target of an offset; return its position."""
        if isinstance(value, TableToWrite):
            return self.record(value)
        if isinstance(value, list):
            return self.vector(value)
        if isinstance(value, Int64s):
            return self.data(struct.pack(f"<{len(value)}q", *value), len(value))
        if isinstance(value, np.ndarray):
            data = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(-1)
            return self.data(data.view(np.uint8), data.nbytes)
        return self.string(value.encode() if isinstance(value, str) else value)

    def vector(self, values: list[Any]) -> int:
        """Write a vector of offsets; an object that occurs several times is written once."""
        self.pad(4)
        begin = self.position
        head = bytearray(4 + 4 * len(values))
        _U32.pack_into(head, 0, len(values))
        self.put(head)
        written: dict[int, int] = {}
        for i, value in enumerate(values, 1):
            if id(value) not in written:
                written[id(value)] = self.value(value)
            _U32.pack_into(head, 4 * i, written[id(value)] - begin - 4 * i)
        return begin

    def data(self, data: Any, count: int) -> int:
        """Write a vector of scalars, which begin at a multiple of 8; return its position."""
        self.pad(8, ahead=4)
        begin = self.position
        self.put(_U32.pack(count))
        self.put(data)
        return begin

    def string(self, string: bytes) -> int:
        self.pad(4)
        begin = self.position
        self.put(_U32.pack(len(string)) + string + b"\0")
        return begin


def _layout(fields: Sequence[Any]) -> tuple[int, list[int], int]:
    """Return the sizes of vtable and table, and each field's offset in the table (0: absent)."""
    offsets, size = [], 4
    for value in fields:
        width = 1 if isinstance(value, UInt8) else 8 if isinstance(value, Int64) else 4
        if value is None:
            offsets.append(0)
            continue
        size += -size % width
        offsets.append(size)
        size += width
    return 4 + 2 * len(offsets), offsets, size
