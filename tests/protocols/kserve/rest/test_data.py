"""`data` in JSON: accepted and refused values for each datatype, and encoding."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from farm.encoding.json_numbers import NonFinite, parse
from farm.errors import InvalidInput, InvalidOutput
from farm.protocols.kserve.rest.data import array_of_data, data_of_array
from farm.protocols.kserve.tensors import DATATYPES, numpy_type

INTEGERS = [d for d in DATATYPES if "INT" in d]
FLOATS = ["FP16", "BF16", "FP32", "FP64"]


def read(text: str, datatype: str, shape: tuple[int, ...]) -> Any:
    return array_of_data(parse(text.encode()), datatype, shape, "input 'x'")


def test_flat_and_nested_are_the_same() -> None:
    flat = read("[1,2,3,4,5,6]", "FP64", (3, 2))
    nested = read("[[1,2],[3,4],[5,6]]", "FP64", (3, 2))
    np.testing.assert_array_equal(flat, [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(nested, flat)
    assert read("[[[1]],[[2]]]", "INT8", (2, 1, 1)).tolist() == [[[1]], [[2]]]
    assert read("[[],[]]", "FP64", (2, 0)).shape == (2, 0)
    assert read("[]", "BYTES", (2, 0)).shape == (2, 0)
    assert read("[1.5]", "FP64", ()).shape == ()
    assert read("1.5", "FP64", ()) == 1.5


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_their_ends(datatype: str) -> None:
    info = np.iinfo(numpy_type(datatype, "x"))
    array = read(f"[{info.min},{info.max}]", datatype, (2,))
    assert array.dtype == numpy_type(datatype, "x")
    assert array.tolist() == [info.min, info.max]
    text = data_of_array(array, datatype, "y", NonFinite.LITERAL)
    assert json.loads(text) == [info.min, info.max]
    for beyond in (info.min - 1, info.max + 1, 10**30):
        with pytest.raises(InvalidInput, match="at position 1"):
            read(f"[0,{beyond}]", datatype, (2,))


@pytest.mark.parametrize("datatype", FLOATS)
def test_floats_take_whole_numbers_and_the_three_words(datatype: str) -> None:
    array = read("[1,-2.5,NaN,Infinity,-Infinity]", datatype, (5,))
    assert array.dtype == numpy_type(datatype, "x")
    np.testing.assert_array_equal(array.astype("f8"), [1, -2.5, math.nan, math.inf, -math.inf])
    text = data_of_array(array, datatype, "y", NonFinite.LITERAL)
    assert text == b"[1.0,-2.5,NaN,Infinity,-Infinity]"


@pytest.mark.parametrize(
    ("text", "datatype"),
    [
        ("[1.5]", "INT32"),
        ("[1.0]", "INT64"),
        ("[1e2]", "UINT8"),
        ("[18446744073709551616]", "UINT64"),
        ("[NaN]", "INT32"),
        ("[true]", "INT8"),
        ("[true]", "FP64"),
        ("[1]", "BOOL"),
        ("[0.0]", "BOOL"),
        ('["true"]', "BOOL"),
        ("[1]", "BYTES"),
        ("[null]", "BYTES"),
        ("[null]", "FP64"),
        ('["1"]', "FP64"),
        ('["1"]', "INT64"),
        ("[[1]]", "FP64"),
        ("[{}]", "FP32"),
        ("[1e39]", "FP32"),
        ("[1e39]", "BF16"),
        ("[65520]", "FP16"),
        ("1", "FP64"),
        ('"ab"', "BYTES"),
        ("{}", "FP64"),
        ("[]", "FP64"),
        ("[1,2]", "FP64"),
    ],
)
def test_what_is_no_such_value(text: str, datatype: str) -> None:
    with pytest.raises(InvalidInput, match="of input 'x'"):
        read(text, datatype, (1,))


def test_values_that_no_json_text_has() -> None:
    with pytest.raises(InvalidInput, match="half a surrogate pair"):
        array_of_data(["\ud800"], "BYTES", (1,), "input 'x'")
    with pytest.raises(InvalidInput, match="too large at position 1"):
        array_of_data([1, 10**400], "FP64", (2,), "input 'x'")


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("[[1,2],[3]]", (2, 2)),
        ("[[1,2],3]", (2, 2)),
        ("[[[1,2],[3,4]]]", (2, 2)),
        ("[[1,2,3,4]]", (2, 2)),
        ("[[[[]]]]", (1,)),
        ("[[1,2]]", (2,)),
        ("[1,2,3,4]", (10**12, 4)),
        ("[1,2,3,4]", (2**32, 2**32)),
        ("[[1,2],[3,4]]", (10**12, 4)),
        ("[]", (10**18, 0, 10**18)),
    ],
)
def test_nesting_unlike_the_shape(text: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput):
        read(text, "FP64", shape)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "BYTES": st.text(),
    "FP64": st.floats(),
    "FP32": st.floats(width=32),
    "FP16": st.floats(width=16),
    "BF16": st.floats(width=16).map(lambda x: float(ml_dtypes.bfloat16(x))),
}


@pytest.mark.slow
@pytest.mark.parametrize("datatype", sorted(DATATYPES))
@settings(max_examples=30)
@given(data=st.data())
def test_there_and_back(datatype: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(max_dims=3, min_side=0, max_side=4))
    dtype = numpy_type(datatype, "x")
    if datatype in VALUES:
        elements = VALUES[datatype]
    else:
        elements = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    size = math.prod(shape)
    values = data.draw(st.lists(elements, min_size=size, max_size=size))
    array = array_of_data(values, datatype, shape, "x")
    back = parse(data_of_array(array, datatype, "y", NonFinite.LITERAL))
    again = array_of_data(back, datatype, shape, "x")
    assert again.shape == array.shape == shape
    if datatype == "BYTES":
        assert again.tolist() == array.tolist()
    else:
        np.testing.assert_array_equal(again.astype("f8"), array.astype("f8"))
        np.testing.assert_array_equal(
            array.reshape(-1).astype("f8"), np.array(values, "f8") if size else np.zeros(0)
        )


def test_answers_that_json_cannot_say() -> None:
    array = np.array([b"\xff"], object)
    with pytest.raises(InvalidInput, match="not UTF-8, which JSON cannot say; ask for it with"):
        data_of_array(array, "BYTES", "output 'y'", NonFinite.LITERAL)
    with pytest.raises(InvalidOutput, match=r"output 'y'\[1\] is inf"):
        data_of_array(np.array([1.0, math.inf]), "FP64", "output 'y'", NonFinite.ERROR)
    assert data_of_array(np.array([math.nan]), "FP64", "y", NonFinite.NULL) == b"[null]"
