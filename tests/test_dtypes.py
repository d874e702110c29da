"""Entries that a type cannot hold are found; those that it only rounds are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.call import numpy_dtype
from farm.dtypes import bytes_array, casts, unfit

UNFIT = [
    ([2**40], "int32", "1099511627776"),
    ([300], "uint8", "300"),
    ([0, -1], "uint8", "-1"),
    ([-129], "int8", "-129"),
    (np.array([2**63], np.uint64), "int64", "9223372036854775808"),
    ([1e300, 1.0], "float32", "1e+300"),
    ([70000], "float16", "70000"),
    (np.array([1e39]), "bfloat16", "1e+39"),
]
FIT = [
    ([0, 255], "uint8"),
    ([2**31 - 1, -(2**31)], "int32"),
    (np.array([True, False]), "uint8"),
    ([2**63], "uint64"),
    ([np.inf, -np.inf, np.nan, 1e-300, 3.4e38], "float32"),
    ([2**53 + 1], "float64"),
    ([], "uint8"),
]


@pytest.mark.parametrize(("given", "declared", "entry"), UNFIT)
def test_an_entry_that_would_be_another_number_is_named(
    given: Any, declared: str, entry: str
) -> None:
    given, wanted = np.asarray(given), numpy_dtype(declared)
    assert casts(given.dtype, wanted)
    assert unfit(given, wanted) == entry


@pytest.mark.parametrize(("given", "declared"), FIT)
def test_entries_that_fit_are_none(given: Any, declared: str) -> None:
    assert unfit(np.asarray(given), numpy_dtype(declared)) == ""


@pytest.mark.parametrize(
    ("given", "wanted", "fits"),
    [
        ("int64", "uint8", True),
        ("uint64", "int8", True),
        ("bool", "uint8", False),
        ("bool", "float64", False),
        ("bool", "bool", True),
        ("float64", "uint8", False),
        ("float64", "float32", True),
        ("complex128", "float64", False),
        ("object", "int64", False),
        ("int64", "bool", False),
    ],
)
def test_types_that_may_stand_for_others(given: str, wanted: str, fits: bool) -> None:
    assert casts(np.dtype(given), np.dtype(wanted)) == fits


def test_texts_and_bytes_are_bytes() -> None:
    array = bytes_array([["a", b"b"], ["ä", b""]])
    assert array.tolist() == [[b"a", b"b"], ["ä".encode(), b""]]
    with pytest.raises(TypeError, match="a int"):
        bytes_array(["a", 1])
