"""KServe tensors: round trips of every datatype; declared sizes against received bytes."""

from __future__ import annotations

import builtins
import contextlib
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from farm.call import numpy_dtype
from farm.errors import FarmError, InvalidInput, UnsupportedFeature
from farm.protocols.kserve.tensors import (
    DATATYPES,
    DTYPES,
    checked_shape,
    datatype_of,
    numpy_type,
    raw_array,
    raw_bytes,
    raw_view,
)

ITEM_BYTES = {
    **{"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8},
    **{"INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8},
    **{"FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8},
}
NUMBERS = sorted(ITEM_BYTES)


def test_there_are_14_datatypes_and_each_has_its_size() -> None:
    assert set(DATATYPES) == {*ITEM_BYTES, "BYTES"}
    assert {d: numpy_type(d, "x").itemsize for d in ITEM_BYTES} == ITEM_BYTES
    assert all(datatype_of(DATATYPES[d]) == d for d in DATATYPES)
    assert len(DTYPES) == 14
    with pytest.raises(UnsupportedFeature, match="no datatype for tensors of complex128"):
        datatype_of("complex128")


@pytest.mark.parametrize("datatype", NUMBERS)
@given(data=st.data())
def test_numbers_go_there_and_back_bit_for_bit(datatype: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, min_side=0))
    size = math.prod(shape) * ITEM_BYTES[datatype]
    raw = data.draw(st.binary(min_size=size, max_size=size))
    if datatype == "BOOL":
        raw = bytes(b % 2 for b in raw)
    array = raw_array(raw, datatype, shape, "x")
    assert array.shape == shape
    assert array.dtype == numpy_type(datatype, "x")
    assert not array.flags.writeable
    assert raw_bytes(array) == raw


@given(hnp.arrays(object, hnp.array_shapes(min_dims=0, min_side=0), elements=st.binary()))
def test_bytes_go_there_and_back(array: Any) -> None:
    back = raw_array(raw_bytes(array), "BYTES", array.shape, "x")
    assert back.shape == array.shape
    assert back.tolist() == array.tolist()


def test_golden_bytes() -> None:
    assert raw_bytes(np.array([1.0, -2.0])) == bytes.fromhex("000000000000f03f00000000000000c0")
    assert raw_bytes(np.array([[1], [258]], "int16")) == b"\1\0\2\1"
    assert raw_bytes(np.array([1, 258], ">i2")) == b"\1\0\2\1"
    assert raw_bytes(np.array([True, False])) == b"\1\0"
    assert raw_bytes(np.array([1.0], ml_dtypes.bfloat16)) == b"\x80\x3f"
    assert raw_bytes(np.array([b"ab", "ä", b""], object)) == (b"\2\0\0\0ab\2\0\0\0\xc3\xa4\0\0\0\0")
    assert raw_bytes(np.arange(6.0).reshape(2, 3).T) == raw_bytes(np.array([0.0, 3, 1, 4, 2, 5]))


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 258], ">i2"),
        np.arange(6.0).reshape(2, 3).T,
        np.array([1.0], ml_dtypes.bfloat16),
        np.array([b"ab", b""], object),
        np.zeros((0, 3)),
        np.array(2.5),
    ],
)
def test_a_view_has_the_same_bytes(array: Any) -> None:
    view = raw_view(array)
    assert bytes(view) == raw_bytes(array)
    assert len(view) == len(raw_bytes(array))


def test_ordinary_numbers_are_not_copied() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(np.frombuffer(raw_view(array)), array)
    body = b"head" + np.arange(4.0).tobytes()
    array = raw_array(memoryview(body)[4:], "FP64", (2, 2), "x")
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))


HOSTILE: list[tuple[bytes, str, tuple[int, ...], str]] = [
    (bytes(64), "FP64", (10**12, 4), "x has 64 bytes; expected 32000000000000"),
    (bytes(64), "FP64", (2**32, 2**32), "x has 64 bytes; expected 147573952589676412928"),
    (bytes(64), "FP64", (2**63 - 1, 2**63 - 1, 8), "x has 64 bytes; expected"),
    (bytes(63), "FP64", (8,), "x has 63 bytes; expected 64: 8 of FP64 in shape"),
    (bytes(65), "FP64", (8,), "x has 65 bytes; expected 64"),
    (b"", "FP64", (10**18, 0, 10**18), "shape of x is too large"),
    (b"\2", "BOOL", (1,), "bytes other than 0 and 1"),
    (b"\0\0\0\0", "BYTES", (10**12,), "1000000000000 elements of BYTES by its shape"),
    (b"\5\0\0\0ab", "BYTES", (1,), "element 0 of x is 5 bytes long by its length, 2 bytes are"),
    (b"\xff\xff\xff\xff", "BYTES", (1,), "element 0 of x is 4294967295 bytes long"),
    (b"\2\0\0\0ab", "BYTES", (2,), "x has 2 elements of BYTES by its shape; the bytes"),
    (b"\4\0\0\0abcd\0", "BYTES", (2,), "x ends after 1 elements of BYTES; expected 2"),
    (b"\1\0\0\0ab", "BYTES", (1,), "x has 1 bytes after its 1 elements"),
    (b"\0", "BYTES", (0,), "x has 1 bytes after its 0 elements"),
]


@pytest.mark.parametrize(("data", "datatype", "shape", "text"), HOSTILE)
def test_what_is_declared_is_held_against_what_was_sent(
    data: bytes, datatype: str, shape: tuple[int, ...], text: str
) -> None:
    with pytest.raises(InvalidInput, match=r".") as caught:
        raw_array(data, datatype, shape, "x")
    assert text in caught.value.message


@given(st.binary(max_size=40), st.sampled_from(sorted(DATATYPES)), st.data())
def test_any_bytes_give_a_tensor_or_invalid_input(
    data: bytes, datatype: str, draw: st.DataObject
) -> None:
    shape = tuple(draw.draw(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 4), max_size=4)))
    with contextlib.suppress(InvalidInput):
        assert raw_array(data, datatype, shape, "x").shape == shape


@pytest.mark.parametrize("size", [True, 2.0, "2", None, -1, 2**63, [2], math.nan])
def test_sizes_are_whole_numbers(size: Any) -> None:
    assert checked_shape([], "x") == ()
    assert checked_shape([0, 2**63 - 1], "x") == (0, 2**63 - 1)
    said = r"shape of x holds .*; expected whole numbers from 0 to"
    with pytest.raises(InvalidInput, match=said):
        checked_shape([1, size], "x")
    with pytest.raises(InvalidInput, match="shape of x has 1000 dimensions; expected 32 at most"):
        checked_shape([1] * 1000, "x")


@pytest.mark.parametrize("datatype", ["fp64", "TYPE_FP64", "STRING", "", None, 3, ["FP64"]])
def test_unknown_datatypes_are_refused_with_those_there_are(datatype: Any) -> None:
    with pytest.raises(InvalidInput, match=r"datatype of x is .*; expected one of BOOL, UINT8"):
        numpy_type(datatype, "x")


@pytest.mark.parametrize("element", [3, None, "\ud800", 1.5])
def test_elements_of_bytes_are_bytes_or_text(element: Any) -> None:
    with pytest.raises(InvalidInput):
        raw_bytes(np.array([element], object))


def test_without_ml_dtypes_bf16_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ml_dtypes":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    numpy_dtype.cache_clear()
    with pytest.raises(FarmError, match=r"modelfarm\[kserve\]"):
        numpy_type("BF16", "x")
