"""Written flatbuffers: their layout and alignment, and that the reference library reads them."""

from __future__ import annotations

import flatbuffers
import flatbuffers.number_types
import flatbuffers.table
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.protocols.graphpipe import flatbuffer_writer
from farm.protocols.graphpipe.flatbuffer import root
from farm.protocols.graphpipe.flatbuffer_writer import Int64, Int64s, TableToWrite, UInt8, write


def test_a_table_begins_and_its_data_begin_at_a_multiple_of_8() -> None:
    for length in range(9):
        record = TableToWrite(["x" * length, np.arange(3.0), Int64s((1, 2, 3)), Int64(5)])
        message = write(record)
        table = root(message)
        assert table.position % 8 == 0
        assert [table.vector(slot, 1)[0] % 8 for slot in (1, 2)] == [0, 0]
        start, count = table.vector(1, 1)
        assert message[start : start + count] == np.arange(3.0).tobytes()


def test_a_value_that_a_vector_has_twice_is_written_once() -> None:
    tensor = TableToWrite([np.zeros(1000)])
    once, often = write(TableToWrite([[tensor]])), write(TableToWrite([[tensor] * 50_000]))
    assert len(often) < len(once) + 4 * 50_001
    assert len(list(root(often).tables(0))) == 50_000


def test_arrays_of_any_order_are_written_row_by_row() -> None:
    x = np.arange(6, dtype=">i4").reshape(2, 3)
    for array in (x, np.asfortranarray(x), x.repeat(2, axis=1)[:, ::2]):
        message = write(TableToWrite([array]))
        start, count = root(message).vector(0, 1)
        assert np.frombuffer(message, "<i4", count // 4, start).tolist() == [0, 1, 2, 3, 4, 5]


def test_what_offsets_cannot_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatbuffer_writer, "LONGEST", 100)
    assert len(write(TableToWrite([np.zeros(8)]))) <= 100
    with pytest.raises(ValueError, match="offsets of a flatbuffer reach 100"):
        write(TableToWrite([np.zeros(9)]))


@given(
    st.integers(0, 255),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.binary(max_size=9), max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
)
def test_the_flatbuffers_package_reads_the_same(
    small: int, large: int, strings: list[bytes], numbers: list[int]
) -> None:
    message = write(TableToWrite([None, UInt8(small), strings, Int64s(numbers), Int64(large)]))
    types = flatbuffers.number_types
    start = flatbuffers.encode.Get(flatbuffers.packer.uoffset, message, 0)
    table = flatbuffers.table.Table(message, start)
    assert table.Offset(4) == 0
    assert table.Get(types.Uint8Flags, start + table.Offset(6)) == small
    assert table.Get(types.Int64Flags, start + table.Offset(12)) == large
    vector, count = table.Vector(table.Offset(8)), table.VectorLen(table.Offset(8))
    assert [table.String(vector + 4 * i) for i in range(count)] == strings
    assert all(s + b"\0" in message for s in strings)
    read = table.GetVectorAsNumpy(types.Int64Flags, table.Offset(10))
    assert read.tolist() == numbers
