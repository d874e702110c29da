"""Tensors in flatbuffers: numbers of the types, shapes, data, and code that both halves share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import TensorInfo
from farm.protocols.graphpipe.flatbuffer import FlatTable, root
from farm.protocols.graphpipe.flatbuffer_writer import Int64s, TableToWrite, UInt8, write
from farm.protocols.graphpipe.tensors import (
    NUMBERS,
    GraphpipeFault,
    TypeCode,
    array_of,
    number_of,
    shape_of,
    size_of,
    tensor_record,
    type_name,
)
from tests.support.graphpipe_bytes import RESPONSE


def sent(record: TableToWrite) -> FlatTable:
    return root(write(record))


def test_the_numbers_of_the_schema() -> None:
    types = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
    types += ["float16", "float32", "float64", "bytes"]
    assert dict(zip(types, range(1, 13), strict=True)) == NUMBERS
    names = [type_name(n) for n in (0, 11, 12, 13)]
    assert names == ["Null (0)", "Float64 (11)", "String (12)", "13"]
    for dtype in ("bool", "bfloat16", "complex128"):
        said = f"'x' is {dtype}; GraphPipe has uint8, .*, bytes"
        with pytest.raises(GraphpipeFault, match=said) as told:
            number_of(TensorInfo("x", (), dtype))
        assert told.value.code == TypeCode.TYPE


def test_data_need_no_alignment() -> None:
    """As in the answer of the python package, whose data begin at 4 more than a multiple of 8."""
    (tensor,) = root(RESPONSE).tables(0)
    assert tensor.vector(2, 1)[0] % 8 == 4
    array = array_of(tensor, "float64", shape_of(tensor, "y"), "y", 100)
    assert array.tolist() == [[2.0, 5.0]]
    assert np.shares_memory(array, np.frombuffer(RESPONSE, np.uint8))


def test_a_tensor_goes_out_in_its_declared_type_and_with_a_rank() -> None:
    table = sent(tensor_record(np.array(7.0), TensorInfo("y", ())))
    assert (table.uint8(0), table.int64s(1), table.vector(2, 1)[1]) == (11, (1,), 8)
    table = sent(tensor_record(np.array([1, 2]), TensorInfo("y", (2,), "float16")))
    assert (table.uint8(0), table.vector(2, 1)[1]) == (9, 4)


def test_strings_end_with_a_nul_that_is_no_part_of_them() -> None:
    texts = np.array([[b"ab\0", b""]], object)
    record = tensor_record(texts, TensorInfo("t", (2,), "bytes"))
    assert b"\3\0\0\0ab\0\0" in write(record)
    array = array_of(sent(record), "bytes", (1, 2), "t", 100)
    assert array.tolist() == [[b"ab\0", b""]]
    assert (size_of(array), size_of(np.zeros(3))) == (19, 24)


def test_too_much_is_told() -> None:
    texts = TableToWrite([UInt8(12), Int64s((3,)), None, [b"abc"] * 3])
    assert array_of(sent(texts), "bytes", (3,), "t", 33).size == 3
    with pytest.raises(GraphpipeFault, match="t: the strings of a vector have more than 32 bytes"):
        array_of(sent(texts), "bytes", (3,), "t", 32)
    with pytest.raises(GraphpipeFault, match="x: the tensors share more than"):
        array_of(
            sent(TableToWrite([UInt8(11), Int64s((2,)), np.zeros(2)])), "float64", (2,), "x", 15
        )


@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from(sorted(NUMBERS)))
def test_any_shape_there_and_back(sizes: list[int], dtype: str) -> None:
    shape = tuple(sizes) or (1,)
    array = np.arange(int(np.prod(shape)))
    if dtype == "bytes":
        array = np.array([b"%d" % i for i in array], object)
    array = array.astype(object if dtype == "bytes" else dtype).reshape(shape)
    table = sent(tensor_record(array, TensorInfo("x", shape, dtype)))
    assert shape_of(table, "x") == shape
    back = array_of(table, dtype, shape, "x", 10**6)
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()
