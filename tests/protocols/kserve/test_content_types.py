"""MLServer's content types: which tensors they stand for, and what does not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, TensorInfo
from farm.errors import InvalidInput, UnsupportedFeature
from farm.protocols.kserve.content_types import (
    OF_REQUESTS,
    OF_TENSORS,
    check_output,
    column_shape,
    content_type_of,
    decoded_content,
    encoded_content,
    names_by_type,
)


def texts(*elements: bytes) -> Any:
    array = np.empty((len(elements), 1), object)
    array[:, 0] = elements
    return array


@pytest.mark.parametrize("parameters", [{}, {"content_type": None}, {"content_type": ""}])
def test_no_content_type(parameters: dict[str, Any]) -> None:
    assert content_type_of(parameters, "x") == ""
    array = texts(b"\xff")
    assert decoded_content(array, "BYTES", parameters, "x") is array


def test_known_ones() -> None:
    for known in OF_TENSORS:
        assert content_type_of({"content_type": known}, "x") == known
    for known in OF_REQUESTS:
        assert content_type_of({"content_type": known}, "x", OF_REQUESTS) == known


@pytest.mark.parametrize(
    "value", ["NP", "image/png", "pilimage", 1, True, ["np"], {"a": 1}, "x" * 999]
)
def test_an_unknown_one_is_an_error_that_lists_the_known_ones(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"content_type of input 'x' is .*np, pd, str, base64$"):
        content_type_of({"content_type": value}, "input 'x'")


def test_base64_is_no_content_type_of_a_request() -> None:
    with pytest.raises(InvalidInput, match=r"is 'base64'; expected one of np, pd, str$"):
        content_type_of({"content_type": "base64"}, "the request", OF_REQUESTS)


def test_dates_are_refused_by_name() -> None:
    for known in (OF_TENSORS, OF_REQUESTS):
        with pytest.raises(UnsupportedFeature, match="'datetime': models have no dates"):
            content_type_of({"content_type": "datetime"}, "x", known)


def test_arrays_and_columns_are_as_they_are() -> None:
    array = np.arange(3.0)
    for same in ("np", "pd"):
        assert decoded_content(array, "FP64", {"content_type": same}, "x") is array
        assert encoded_content(array, same, "y") is array


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
    ],
)
def test_columns(shape: Any, declared: Any, expected: Any) -> None:
    assert column_shape("x", shape, TensorInfo("x", declared)) == expected


@pytest.mark.parametrize(
    ("shape", "declared", "text"),
    [
        ((), (), "has shape []; expected a column, [-1]"),
        ((), (1,), "has shape []; expected a column, [-1, 1]"),
        ((3,), (3,), "has shape [3]; expected a column, [-1, 3]"),
        ((5, 2), (), "has shape [5, 2]; expected a column, [-1]"),
        ((5, 1, 1), (1,), "has shape [5, 1, 1]"),
    ],
)
def test_what_is_no_column(shape: Any, declared: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        column_shape("x", shape, TensorInfo("x", declared))


def test_the_name_of_an_only_input() -> None:
    one = ModelInfo("one", (TensorInfo("x", (1,)),), ())
    two = ModelInfo("two", (TensorInfo("x", (1,)), TensorInfo("y", (1,))), ())
    assert names_by_type(["input-1"], "np", one) == ["x"]
    assert names_by_type(["input-1"], "str", one) == ["x"]
    assert names_by_type(["input-1"], "pd", one) == ["input-1"]
    assert names_by_type(["input-1"], "", one) == ["input-1"]
    assert names_by_type(["input-1"], "np", two) == ["input-1"]
    assert names_by_type(["a", "b"], "np", two) == ["a", "b"]
