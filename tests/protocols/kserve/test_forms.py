"""Forms of tensors: MLServer's content types, and Triton's classes."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.errors import InvalidInput, UnsupportedFeature
from farm.protocols.kserve.forms import (
    OF_REQUESTS,
    OF_TENSORS,
    check_output,
    class_count_of,
    classified,
    column_shape,
    content_type_of,
    decoded_content,
    encoded_content,
    names_by_type,
)
from farm.protocols.kserve.tensors import DATATYPES


def texts(*elements: bytes) -> Any:
    array = np.empty((len(elements), 1), object)
    array[:, 0] = elements
    return array


@pytest.mark.parametrize("parameters", [{}, {"content_type": None}, {"content_type": ""}])
def test_no_content_type(parameters: dict[str, Any]) -> None:
    assert content_type_of(parameters, "x") == ""
    array = texts(b"\xff")
    assert decoded_content(array, "BYTES", parameters, "x") is array


@pytest.mark.parametrize("allowed", [OF_TENSORS, OF_REQUESTS])
def test_known_ones(allowed: Any) -> None:
    for known in allowed:
        assert content_type_of({"content_type": known}, "x", allowed) == known
    with pytest.raises(UnsupportedFeature, match="'datetime': models have no dates"):
        content_type_of({"content_type": "datetime"}, "x", allowed)
    array = np.arange(3.0)
    for same in ("np", "pd"):
        assert decoded_content(array, "FP64", {"content_type": same}, "x") is array
        assert encoded_content(array, same, "y") is array


@pytest.mark.parametrize(
    "value", ["NP", "image/png", "pilimage", 1, True, ["np"], {"a": 1}, "x" * 999]
)
def test_an_unknown_one_is_an_error_that_lists_the_known_ones(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content_type of input 'x' is .*np, pd, str, base64$"):
        content_type_of({"content_type": value}, "input 'x'")
    with pytest.raises(InvalidInput, match=r"is 'base64'; expected one of np, pd, str$"):
        content_type_of({"content_type": "base64"}, "the request", OF_REQUESTS)


def test_base64_both_ways() -> None:
    raw = texts(b"", b"\xff\x00a", b"abc")
    sent = texts(b"", b"/wBh", b"YWJj")
    got = decoded_content(sent, "BYTES", {"content_type": "base64"}, "x")
    assert got.shape == (3, 1)
    assert got.tolist() == raw.tolist()
    assert encoded_content(raw, "base64", "y").tolist() == sent.tolist()


@pytest.mark.parametrize(
    "wrong", [b"a", b"YWJ", b"YW Jj", b"YWJj\n", b"\xff", "é".encode(), b"=", b"-_=="]
)
def test_invalid_base64_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"input 'x' holds at position 1 .*: expected base64"):
        decoded_content(texts(b"YWJj", wrong), "BYTES", {"content_type": "base64"}, "input 'x'")


def test_text_is_utf_8() -> None:
    array = texts(b"a", "é".encode())
    assert decoded_content(array, "BYTES", {"content_type": "str"}, "x") is array
    assert encoded_content(array, "str", "y") is array
    said = r"t holds at position 1 b'\\xff': expected text"
    with pytest.raises(InvalidInput, match=said):
        decoded_content(texts(b"a", b"\xff"), "BYTES", {"content_type": "str"}, "t")
    with pytest.raises(InvalidInput, match=said):
        encoded_content(texts(b"a", b"\xff"), "str", "t")


@pytest.mark.parametrize("content_type", ["str", "base64"])
def test_texts_are_bytes(content_type: str) -> None:
    with pytest.raises(InvalidInput, match="which is for BYTES; it is FP64: leave"):
        decoded_content(np.zeros(1), "FP64", {"content_type": content_type}, "x")
    with pytest.raises(InvalidInput, match="which is for BYTES; it is INT32"):
        check_output(content_type, "INT32", "y")
    check_output(content_type, "BYTES", "y")
    check_output("np", "INT32", "y")


@pytest.mark.parametrize(
    ("shape", "declared", "expected"),
    [
        ((5,), (1,), (5, 1)),
        ((5, 1), (1,), (5, 1)),
        ((1,), (1,), (1, 1)),
        ((5, 1), (), (5,)),
        ((5,), (), (5,)),
        ((5, 3), (3,), (5, 3)),
        ((), (), "has shape []; expected a column, [-1]"),
        ((), (1,), "has shape []; expected a column, [-1, 1]"),
        ((3,), (3,), "has shape [3]; expected a column, [-1, 3]"),
        ((5, 2), (), "has shape [5, 2]; expected a column, [-1]"),
        ((5, 1, 1), (1,), "has shape [5, 1, 1]"),
    ],
)
def test_columns(shape: Any, declared: Any, expected: tuple[int, ...] | str) -> None:
    if isinstance(expected, tuple):
        assert column_shape("x", shape, TensorInfo("x", declared)) == expected
    else:
        with pytest.raises(InvalidInput, match=re.escape(expected)):
            column_shape("x", shape, TensorInfo("x", declared))


def test_the_name_of_an_only_input() -> None:
    one = ModelInfo("one", (TensorInfo("x", (1,)),), ())
    two = ModelInfo("two", (TensorInfo("x", (1,)), TensorInfo("y", (1,))), ())
    for content_type, name in (("np", "x"), ("str", "x"), ("pd", "input-1"), ("", "input-1")):
        assert names_by_type(["input-1"], content_type, one) == [name]
    for names in (["input-1"], ["a", "b"]):
        assert names_by_type(names, "np", two) == names


# Classes


LABELS = ("ant", "bee", "cat", "dog")


def classes(array: Any, count: int, labels: tuple[str, ...] = (), *, rank: int = 1) -> Any:
    found = classified(np.asarray(array), rank, count, labels)
    assert found.dtype == object
    return (
        [e.decode() for e in found] if found.ndim == 1 else [[*map(bytes.decode, r)] for r in found]
    )


def test_the_examples_of_the_extension_and_entries_without_a_label() -> None:
    # Triton's docs/protocol/extension_classification.md
    assert classes([1, 5, 10, 4], 2) == ["10:2", "5:1"]
    labels = ("a", "pickle", "apple", "d")
    assert classes([1, 5, 10, 4], 2, labels) == ["10:2:apple", "5:1:pickle"]
    assert classes([1, 2, 3], 3, ("a", "b")) == ["3:2", "2:1:b", "1:0:a"]
    assert classes([1], 1, ("é: x",)) == ["1:0:é: x"]


def test_floats_have_six_decimals_as_in_c() -> None:
    assert classes([1.1, 3.3, 0.5, 2.4], 2) == ["3.300000:1", "2.400000:3"]
    assert classes(np.array([0.1, 1e20], np.float32), 2) == [
        "100000002004087734272.000000:1",
        "0.100000:0",
    ]
    assert classes([1e-9, -1.5], 5) == ["0.000000:0", "-1.500000:1"]
    for small in (np.float16, ml_dtypes.bfloat16):
        assert classes(np.array([0.5, 1.5], small), 2) == ["1.500000:1", "0.500000:0"]


@pytest.mark.parametrize("count", [4, 5, 2**31, 2**63, 2**64 - 1])
def test_more_classes_than_entries_are_all_of_them(count: int) -> None:
    assert classes([3, 1, 2, 0], count, LABELS) == ["3:0:ant", "2:2:cat", "1:1:bee", "0:3:dog"]


def test_rows_have_classes_each() -> None:
    assert classes([[1, 2, 3], [9, 8, 7]], 2) == [["3:2", "2:1"], ["9:0", "8:1"]]
    assert classes([[[1, 2], [3, 4]], [[9, 8], [7, 6]]], 1, LABELS, rank=2) == [
        ["4:3:dog"],
        ["9:0:ant"],
    ]
    assert classes([[1, 2], [3, 4]], 1, LABELS, rank=2) == ["4:3:dog"]
    assert classes([1.5, 2.5], 3, rank=0) == [["1.500000:0"], ["2.500000:0"]]
    assert classes(1.5, 3, rank=0) == ["1.500000:0"]
    for shape, none in (((0,), []), ((2, 0), [[], []]), ((0, 2), [])):
        assert classes(np.zeros(shape), 3) == none


def test_the_first_of_equal_entries_is_better_and_nan_is_worst() -> None:
    assert classes([1, 2, 2, 1], 4) == ["2:1", "2:2", "1:0", "1:3"]
    nan, inf = math.nan, math.inf
    assert classes([nan, -inf, inf, 0, nan], 5) == [
        "inf:2",
        "0.000000:3",
        "-inf:1",
        "nan:0",
        "nan:4",
    ]


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_the_ends_of_integer_types(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, limits.min, limits.max, 1], dtype)
    assert classes(values, 4) == [f"{limits.max}:2", "1:3", "0:0", f"{limits.min}:1"]


def test_random_rows_are_as_sorting_each_says() -> None:
    random = np.random.default_rng(7)
    rows = random.integers(-5, 5, (40, 30))
    for got, row in zip(classes(rows, 7), rows.tolist(), strict=True):
        best = sorted(range(30), key=lambda i: (-row[i], i))[:7]
        assert got == [f"{row[i]}:{i}" for i in best]


def test_the_count() -> None:
    for none in ({}, {"classification": None}, {"classification": 0}):
        assert class_count_of(none, "BYTES", "y") == 0
    for datatype in DATATYPES.keys() - {"BYTES", "BOOL"}:
        assert class_count_of({"classification": 3}, datatype, "y") == 3
    for datatype in ("BYTES", "BOOL"):
        said = f"output 'y' is {datatype}: classification is for num"
        with pytest.raises(InvalidInput, match=said):
            class_count_of({"classification": 1}, datatype, "output 'y'")


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", [3], {}, 2**64, -(10**30)])
def test_what_is_no_count(count: Any) -> None:
    text = re.escape(f"parameter classification of output 'y' is {count!r}; expected the number")
    with pytest.raises(InvalidInput, match=text):
        class_count_of({"classification": count}, "FP32", "output 'y'")
