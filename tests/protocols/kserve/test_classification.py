"""Classes of outputs, as Triton writes them."""

from __future__ import annotations

import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from farm.errors import InvalidInput
from farm.protocols.kserve.classification import class_count_of, classified
from farm.protocols.kserve.tensors import DATATYPES

LABELS = ("ant", "bee", "cat", "dog")


def texts(array: Any, count: int, labels: tuple[str, ...] = (), *, rank: int = 1) -> Any:
    found = classified(np.asarray(array), rank, count, labels)
    assert found.dtype == object
    return (
        [e.decode() for e in found] if found.ndim == 1 else [[*map(bytes.decode, r)] for r in found]
    )


def test_the_examples_of_the_extension() -> None:
    # Triton's docs/protocol/extension_classification.md
    assert texts([1, 5, 10, 4], 2) == ["10:2", "5:1"]
    labels = ("a", "pickle", "apple", "d")
    assert texts([1, 5, 10, 4], 2, labels) == ["10:2:apple", "5:1:pickle"]


def test_floats_have_six_decimals_as_in_c() -> None:
    assert texts([1.1, 3.3, 0.5, 2.4], 2) == ["3.300000:1", "2.400000:3"]
    assert texts(np.array([0.1, 1e20], np.float32), 2) == [
        "100000002004087734272.000000:1",
        "0.100000:0",
    ]
    assert texts([1e-9, -1.5], 5) == ["0.000000:0", "-1.500000:1"]


@pytest.mark.parametrize("count", [4, 5, 2**31, 2**63, 2**64 - 1])
def test_more_classes_than_entries_are_all_of_them(count: int) -> None:
    assert texts([3, 1, 2, 0], count, LABELS) == ["3:0:ant", "2:2:cat", "1:1:bee", "0:3:dog"]


def test_rows_have_classes_each() -> None:
    assert texts([[1, 2, 3], [9, 8, 7]], 2) == [["3:2", "2:1"], ["9:0", "8:1"]]
    assert texts([[[1, 2], [3, 4]], [[9, 8], [7, 6]]], 1, LABELS, rank=2) == [
        ["4:3:dog"],
        ["9:0:ant"],
    ]
    assert texts([[1, 2], [3, 4]], 1, LABELS, rank=2) == ["4:3:dog"]
    assert texts([1.5, 2.5], 3, rank=0) == [["1.500000:0"], ["2.500000:0"]]
    assert texts(1.5, 3, rank=0) == ["1.500000:0"]


def test_entries_without_a_label_have_none() -> None:
    assert texts([1, 2, 3], 3, ("a", "b")) == ["3:2", "2:1:b", "1:0:a"]
    assert texts([1], 1, ("é: x",)) == ["1:0:é: x"]


def test_the_first_of_equal_entries_is_better_and_nan_is_worst() -> None:
    assert texts([1, 2, 2, 1], 4) == ["2:1", "2:2", "1:0", "1:3"]
    nan, inf = math.nan, math.inf
    assert texts([nan, -inf, inf, 0, nan], 5) == ["inf:2", "0.000000:3", "-inf:1", "nan:0", "nan:4"]


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_the_ends_of_integer_types(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, limits.min, limits.max, 1], dtype)
    assert texts(values, 4) == [f"{limits.max}:2", "1:3", "0:0", f"{limits.min}:1"]


def test_small_floats() -> None:
    assert texts(np.array([0.5, 1.5], np.float16), 2) == ["1.500000:1", "0.500000:0"]
    assert texts(np.array([0.5, 1.5], ml_dtypes.bfloat16), 1) == ["1.500000:1"]


def test_outputs_without_entries() -> None:
    assert texts(np.zeros(0), 3) == []
    assert texts(np.zeros((2, 0)), 3) == [[], []]
    assert texts(np.zeros((0, 2)), 3) == []


def test_random_rows_are_as_sorting_each_says() -> None:
    random = np.random.default_rng(7)
    rows = random.integers(-5, 5, (40, 30))
    for got, row in zip(texts(rows, 7), rows.tolist(), strict=True):
        best = sorted(range(30), key=lambda i: (-row[i], i))[:7]
        assert got == [f"{row[i]}:{i}" for i in best]


def test_the_count() -> None:
    assert class_count_of({}, "BYTES", "y") == 0
    assert class_count_of({"classification": None}, "BYTES", "y") == 0
    assert class_count_of({"classification": 0}, "BYTES", "y") == 0
    for datatype in DATATYPES.keys() - {"BYTES", "BOOL"}:
        assert class_count_of({"classification": 3}, datatype, "y") == 3


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", [3], {}, 2**64, -(10**30)])
def test_what_is_no_count(count: Any) -> None:
    text = re.escape(f"parameter classification of output 'y' is {count!r}; expected the number")
    with pytest.raises(InvalidInput, match=text):
        class_count_of({"classification": count}, "FP32", "output 'y'")


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_outputs_that_are_no_numbers(datatype: str) -> None:
    with pytest.raises(InvalidInput, match=f"output 'y' is {datatype}: classification is for num"):
        class_count_of({"classification": 1}, datatype, "output 'y'")
