"""Every offset is checked: no input makes a reader leave the buffer."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidRequest
from farm.protocols.graphpipe.flatbuffer import FlatTable, root
from farm.protocols.graphpipe.flatbuffer_writer import Int64, Int64s, TableToWrite, UInt8, write
from tests.support.graphpipe_bytes import ERROR, INFER_REQUEST

INNER = TableToWrite([UInt8(7), Int64(-(2**40))])
SAMPLE = write(
    TableToWrite([UInt8(200), None, INNER, "grüß", ["a", b"\xff\0b", ""], Int64s((1, -2)), [INNER]])
)


def everything(table: FlatTable, depth: int = 2) -> list[object]:
    """Return the first slots of a table read as every type, whatever was written there."""
    found: list[object] = []
    for slot in range(8):
        for read in (table.uint8, table.int64, table.text, table.int64s):
            try:
                found.append(read(slot))
            except InvalidRequest as error:
                found.append(error)
        try:
            found.append(table.strings(slot, most_bytes=1000))
        except (InvalidRequest, ValueError) as error:
            found.append(error)
        try:
            inner = table.table(slot)
            tables = [*([inner] if inner else []), *table.tables(slot)]
        except InvalidRequest:
            continue
        if depth:
            found += [everything(other, depth - 1) for other in tables[:3]]
    return found


def test_what_is_written_is_read() -> None:
    table = root(SAMPLE)
    assert (table.uint8(0), table.uint8(1), table.int64(1), table.text(1)) == (200, 0, 0, "")
    inner = table.table(2)
    assert inner is not None
    assert (inner.uint8(0), inner.int64(1)) == (7, -(2**40))
    assert table.text(3) == "grüß"
    assert table.strings(4, most_bytes=100) == [b"a", b"\xff\0b", b""]
    assert table.int64s(5) == (1, -2)
    assert [t.int64(1) for t in table.tables(6)] == [-(2**40)]
    assert (table.table(1), list(table.tables(9)), table.vector(9, 8)) == (None, [], (0, 0))


def test_every_cut_is_told_or_leaves_a_smaller_message_that_can_be_read() -> None:
    """A cut message is read or refused; it is refused if a field lies in the missing part."""
    for message in (SAMPLE, INFER_REQUEST, ERROR):
        for end in range(len(message)):
            with contextlib.suppress(InvalidRequest):
                everything(root(message[:end]))
    with pytest.raises(InvalidRequest, match="has 7 bytes"):
        root(SAMPLE[:7])
    with pytest.raises(InvalidRequest, match="end of a vector"):
        next(root(ERROR[:-2]).tables(1)).text(1)
    with pytest.raises(InvalidRequest):
        root(SAMPLE[:20])


@pytest.mark.parametrize("number", [0, 1, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF])
def test_any_word_may_be_wrong(number: int) -> None:
    for message in (SAMPLE, INFER_REQUEST, ERROR):
        for at in range(0, len(message) - 3):
            wrong = message[:at] + struct.pack("<I", number) + message[at + 4 :]
            with contextlib.suppress(InvalidRequest):
                everything(root(wrong))


@pytest.mark.parametrize(
    ("at", "form", "value", "complaint"),
    [
        (0, "<I", 0, "offset at byte 0"),
        (0, "<I", 3, "offset at byte 3"),
        (0, "<I", 87, "offset at byte 87"),
        (0, "<I", 0xFFFFFFFF, "offset at byte 4294967295"),
        (0x10, "<i", 0x11, "vtable at byte -1"),
        (0x10, "<i", -80, "vtable at byte 96"),
        (0x08, "<H", 3, "end of a vtable"),
        (0x08, "<H", 90, "end of a vtable"),
        (0x0A, "<H", 3, "end of a table"),
        (0x0A, "<H", 90, "end of a table"),
        (0x0E, "<H", 3, "field 1 of a table"),
        (0x0E, "<H", 9, "field 1 of a table"),
        (0x18, "<I", 2, "offset at byte 26"),
        (0x20, "<I", 0x40000000, "end of a vector at byte 4294967332"),
        (0x24, "<I", 0xFFFFFFFF, "offset at byte"),
        (0x30, "<i", -1000, "vtable at byte"),
        (0x2E, "<H", 17, "field 1 of a table"),
        (0x44, "<I", 23, "end of a vector"),
        (0x48, "<B", 0xFF, "not UTF-8"),
    ],
)
def test_each_check(at: int, form: str, value: int, complaint: str) -> None:
    wrong = bytearray(ERROR)
    struct.pack_into(form, wrong, at, value)
    with pytest.raises(InvalidRequest, match=complaint):
        next(root(bytes(wrong)).tables(1)).text(1)


def test_a_vtable_may_stand_behind_its_table() -> None:
    buffer = struct.pack("<IiBxxxHHH", 4, -8, 9, 6, 5, 4)
    assert root(buffer).uint8(0) == 9


def test_strings_need_no_nul_and_are_limited_in_all() -> None:
    without = SAMPLE.replace(b"a\0\0\0", b"aXXX")
    assert root(without).strings(4, most_bytes=28) == root(SAMPLE).strings(4, most_bytes=28)
    with pytest.raises(ValueError, match="more than 27 bytes"):
        root(SAMPLE).strings(4, most_bytes=27)


@given(st.data())
def test_any_few_changed_bytes(data: st.DataObject) -> None:
    wrong = bytearray(data.draw(st.sampled_from([SAMPLE, INFER_REQUEST, ERROR])))
    for _ in range(data.draw(st.integers(1, 6))):
        wrong[data.draw(st.integers(0, len(wrong) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRequest):
        everything(root(bytes(wrong)))
