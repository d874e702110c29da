"""Reads flatbuffers, and checks every offset.

A flatbuffer does not protect its readers: generated code follows offsets wherever they lead. This
module compares each offset with the buffer's length before use, and creates nothing larger than the
buffer. Unknown slots are ignored, data may be unaligned, and offsets may share a target.
`flatbuffer_writer.py` writes flatbuffers. Source: https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from farm.errors import InvalidRequest

_U32, _I32, _I64 = (struct.Struct(f"<{code}") for code in "Iiq")
_VTABLE = struct.Struct("<HH")

SLOTS = 8
"""Number of a table's fields that can be read; it may have more."""

_OFFSETS = [struct.Struct(f"<{slots}H") for slots in range(SLOTS + 1)]


class FlatTable:
    """A table at a position in a buffer; the methods read its fields by slot.

    Every method raises InvalidRequest if an offset leads beyond the end of the buffer.
    """

    __slots__ = ("_offsets", "_table_end", "buffer", "position")

    def __init__(self, buffer: bytes | memoryview, position: int) -> None:
        self.buffer = buffer
        self.position = position
        end = len(buffer)
        if position + 4 > end:
            raise _outside("table", position, end)
        (back,) = _I32.unpack_from(buffer, position)  # signed: the vtable may precede or follow
        vtable = position - back
        if not 0 <= vtable <= end - 4:
            raise _outside("vtable", vtable, end)
        vtable_size, table_size = _VTABLE.unpack_from(buffer, vtable)
        if vtable_size < 4 or vtable + vtable_size > end:
            raise _outside("end of a vtable", vtable + vtable_size, end)
        if table_size < 4 or position + table_size > end:
            raise _outside("end of a table", position + table_size, end)
        offsets = _OFFSETS[min((vtable_size - 4) // 2, SLOTS)]
        self._offsets = offsets.unpack_from(buffer, vtable + 4)
        self._table_end = position + table_size

    def _field(self, slot: int, size: int) -> int | None:
        """Return the position of a field of `size` bytes; None if the field is absent."""
        offsets = self._offsets
        if slot >= len(offsets) or offsets[slot] == 0:
            return None
        offset = offsets[slot]
        at: int = self.position + offset
        if offset < 4 or at + size > self._table_end:
            raise _outside(f"field {slot} of a table", at, self._table_end)
        return at

    def uint8(self, slot: int) -> int:
        """Return a scalar of one byte; 0 if absent."""
        at = self._field(slot, 1)
        return 0 if at is None else self.buffer[at]

    def int64(self, slot: int) -> int:
        """Return a scalar of eight bytes; 0 if absent."""
        at = self._field(slot, 8)
        return 0 if at is None else int(_I64.unpack_from(self.buffer, at)[0])

    def table(self, slot: int) -> FlatTable | None:
        """Return the table that a field points to; None if absent."""
        at = self._field(slot, 4)
        return None if at is None else FlatTable(self.buffer, _followed(self.buffer, at))

    def text(self, slot: int) -> str:
        """Return a string; "" if absent."""
        start, count = self.vector(slot, 1)
        return text_of(bytes(self.buffer[start : start + count]))

    def vector(self, slot: int, size: int) -> tuple[int, int]:
        """Return start and number of a vector's elements, `size` bytes each; (0, 0) if absent."""
        at = self._field(slot, 4)
        return (0, 0) if at is None else _vector(self.buffer, _followed(self.buffer, at), size)

    def int64s(self, slot: int, *, most: int | None = None) -> tuple[int, ...]:
        """Return a vector of int64. Raises ValueError if it has more than `most` elements."""
        start, count = self.vector(slot, 8)
        if most is not None and count > most:
            raise ValueError(f"{count} entries; expected {most} at most")
        return struct.unpack_from(f"<{count}q", self.buffer, start)

    def tables(self, slot: int) -> Iterator[FlatTable]:
        """Return an iterator over the tables of a vector, which creates each on demand."""
        buffer = self.buffer
        start, count = self.vector(slot, 4)
        return (
            FlatTable(buffer, _followed(buffer, at)) for at in range(start, start + 4 * count, 4)
        )

    def strings(self, slot: int, *, most_bytes: int) -> list[bytes]:
        """Return the strings of a vector, whether or not a NUL follows each.

        most_bytes: limit of their total length plus 8 bytes per string; a string that several
        offsets share counts once for each. Raises ValueError if the limit is exceeded.
        """
        buffer = self.buffer
        start, count = self.vector(slot, 4)
        strings = []
        left = most_bytes
        for at in range(start, start + 4 * count, 4):
            begin, length = _vector(buffer, _followed(buffer, at), 1)
            left -= 8 + length
            if left < 0:
                raise ValueError(f"the strings of a vector have more than {most_bytes} bytes")
            strings.append(bytes(buffer[begin : begin + length]))
        return strings


def root(buffer: bytes | memoryview) -> FlatTable:
    """Return the root table. Raises InvalidRequest."""
    if len(buffer) < 8:
        raise InvalidRequest(f"the message has {len(buffer)} bytes; a flatbuffer has 8 or more")
    return FlatTable(buffer, _followed(buffer, 0))


def text_of(string: bytes) -> str:
    """Return a string as text. Raises InvalidRequest if it is not UTF-8."""
    try:
        return string.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"a text of the message is not UTF-8: {string[:40]!r}") from None


def _followed(buffer: bytes | memoryview, at: int) -> int:
    """Return the target of the offset at `at`; it is at least 4 bytes after the offset."""
    target: int = at + _U32.unpack_from(buffer, at)[0]
    if target < at + 4 or target + 4 > len(buffer):
        raise _outside("offset", target, len(buffer))
    return target


def _vector(buffer: bytes | memoryview, at: int, size: int) -> tuple[int, int]:
    count: int = _U32.unpack_from(buffer, at)[0]
    if at + 4 + count * size > len(buffer):
        raise _outside("end of a vector", at + 4 + count * size, len(buffer))
    return at + 4, count


def _outside(what: str, where: int, end: int) -> InvalidRequest:
    return InvalidRequest(f"no flatbuffer: {what} at byte {where}; expected it before {end}")
