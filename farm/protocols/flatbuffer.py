"""Flatbuffers, read with every offset checked.

A flatbuffer is not self-validating: generated readers follow its offsets wherever they lead. Here
each is held against the buffer before use, and nothing is made that is larger than what is there.
Slots that nobody asks for are ignored, data may be unaligned, and what several offsets share is
legal. The other direction is `flatbuffer_writer.py`. Source: https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from farm.errors import InvalidRequest

_U32, _I32, _I64 = (struct.Struct(f"<{code}") for code in "Iiq")
_VTABLE = struct.Struct("<HH")

SLOTS = 8
"""Fields of a table that can be asked for; it may have more."""

_OFFSETS = [struct.Struct(f"<{slots}H") for slots in range(SLOTS + 1)]


class Table:
    """A table at a position of a buffer; its fields by slot, None where it has none.

    Every method raises InvalidRequest where the buffer ends before what an offset leads to.
    """

    __slots__ = ("_offsets", "_table_end", "buffer", "position")

    def __init__(self, buffer: bytes | memoryview, position: int) -> None:
        self.buffer = buffer
        self.position = position
        end = len(buffer)
        if position + 4 > end:
            raise _outside("table", position, end)
        (back,) = _I32.unpack_from(buffer, position)  # may point either way
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
        """Where a field of `size` bytes is."""
        offsets = self._offsets
        if slot >= len(offsets) or offsets[slot] == 0:
            return None
        offset = offsets[slot]
        at: int = self.position + offset
        if offset < 4 or at + size > self._table_end:
            raise _outside(f"field {slot} of a table", at, self._table_end)
        return at

    def uint8(self, slot: int) -> int:
        """A scalar of one byte, 0 when absent."""
        at = self._field(slot, 1)
        return 0 if at is None else self.buffer[at]

    def int64(self, slot: int) -> int:
        """A scalar of eight bytes, 0 when absent."""
        at = self._field(slot, 8)
        return 0 if at is None else int(_I64.unpack_from(self.buffer, at)[0])

    def table(self, slot: int) -> Table | None:
        """The table that a field leads to."""
        at = self._field(slot, 4)
        return None if at is None else Table(self.buffer, _followed(self.buffer, at))

    def text(self, slot: int) -> str:
        """A string, "" when absent."""
        start, count = self.vector(slot, 1)
        return text_of(bytes(self.buffer[start : start + count]))

    def vector(self, slot: int, size: int) -> tuple[int, int]:
        """Start and number of a vector's elements, `size` bytes each; none when it is absent."""
        at = self._field(slot, 4)
        return (0, 0) if at is None else _vector(self.buffer, _followed(self.buffer, at), size)

    def int64s(self, slot: int, *, most: int | None = None) -> tuple[int, ...]:
        """A vector of int64. Raises ValueError when it has more than `most`."""
        start, count = self.vector(slot, 8)
        if most is not None and count > most:
            raise ValueError(f"{count} entries; expected {most} at most")
        return struct.unpack_from(f"<{count}q", self.buffer, start)

    def tables(self, slot: int) -> Iterator[Table]:
        """The tables of a vector, each made when it is asked for."""
        buffer = self.buffer
        start, count = self.vector(slot, 4)
        return (Table(buffer, _followed(buffer, at)) for at in range(start, start + 4 * count, 4))

    def strings(self, slot: int, *, most_bytes: int) -> list[bytes]:
        """The strings of a vector, with or without a NUL behind them.

        most_bytes: of all of them, and eight for each; one that is shared counts every time.
        Raises ValueError above.
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


def root(buffer: bytes | memoryview) -> Table:
    """The root table. Raises InvalidRequest."""
    if len(buffer) < 8:
        raise InvalidRequest(f"the message has {len(buffer)} bytes; a flatbuffer has 8 or more")
    return Table(buffer, _followed(buffer, 0))


def text_of(string: bytes) -> str:
    """A string as text. Raises InvalidRequest when it is not UTF-8."""
    try:
        return string.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"a text of the message is not UTF-8: {string[:40]!r}") from None


def _followed(buffer: bytes | memoryview, at: int) -> int:
    """What the offset at `at` leads to: at least four bytes further on."""
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
