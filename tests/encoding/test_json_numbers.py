"""JSON numbers: accepted values, refusals with their position, and output of non-finite ones."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from types import FrameType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import TensorInfo
from farm.encoding.json_numbers import (
    NonFinite,
    array_text,
    as_declared,
    kind_of,
    parse,
    parse_slowly,
    tensor,
    vector,
)
from farm.errors import InvalidInput, InvalidOutput, InvalidRequest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"[1, 2.5, -3e-2]", [1, 2.5, -3e-2]),
        (b"[NaN]", [math.nan]),
        (b"[Infinity, -Infinity]", [math.inf, -math.inf]),
        (b' {"a": "NaN"} ', {"a": "NaN"}),
    ],
)
def test_json_and_the_literals_are_read(text: bytes, expected: object) -> None:
    np.testing.assert_equal(parse(text), expected)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,]",
        b"nan",
        b"[inf]",
        b"[1e999]",
        b"[NaN, -1e999]",
        b"[" + b"1" * 400 + b"]",
        b"[NaN, " + b"1" * 5000 + b"]",
        b"[" * 5000,
        b"[NaN, " + b"[" * 100_000,
        b"\xff\xfe",
        b'"NaN \xff"',
        b"\xef\xbb\xbf[1]",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_json_is_an_invalid_request(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        parse(text)


def test_the_slow_reader_keeps_long_whole_numbers() -> None:
    assert parse_slowly(b"[%d]" % 2**128) == [2**128]


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_an_invalid_request(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse(body)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0]),
        ([0, 1.5, 2**70], [0.0, 1.5, float(2**70)]),
        ([], []),
        (3, [3.0]),
        (2.5, [2.5]),
        ([math.inf, -0.0], [math.inf, -0.0]),
    ],
)
def test_lists_of_numbers_become_float64_vectors(value: object, expected: list[float]) -> None:
    array = vector(value, "x")
    assert array.dtype == np.float64
    assert array.ndim == 1
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, None], "x[1] is null; expected a number"),
        (["1.0"], "x[0] is a string; expected a number"),
        ([0, True], "x[1] is true; expected a number"),
        ([0.5, [1.0]], "x[1] is a list; expected a number"),
        ([{}], "x[0] is an object; expected a number"),
        (None, "x is null; expected a list of numbers"),
        ("NaN", "x is a string; expected a list of numbers"),
        (False, "x is false; expected a list of numbers"),
        ({}, "x is an object; expected a list of numbers"),
        ([1, 10**400], "x[1] is too large for a float64"),
    ],
)
def test_what_is_no_number_is_named_with_its_position(value: object, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        vector(value, "x")
    assert caught.value.message == message
    with pytest.raises(InvalidOutput):
        vector(value, "x", fault=InvalidOutput)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([[1, 2], [3, 4.5]], [[1.0, 2.0], [3.0, 4.5]]),
        ([[[1], [2]]], [[[1.0], [2.0]]]),
        ([1.0, 2.0], [1.0, 2.0]),
        (7, [7.0]),
        ([[], []], np.empty((2, 0))),
    ],
)
def test_nested_lists_become_arrays_of_their_shape(value: object, expected: object) -> None:
    array = tensor(value, "x")
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array, np.array(expected), strict=True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1, 2], [3]], "x[1] has length 1, x[0] has length 2; expected the same"),
        ([[1], [[2]]], "x[0][0] is a number; expected a list, as others here"),
        ([[1], 2], "x[1] is a number; expected a list, as others here"),
        ([[1], None], "x[1] is null; expected a list, as others here"),
        ([[1], ["2"]], "x[1][0] is a string; expected a number"),
        ([[[1, 2]], [[3, 10**400]]], "x[1][0][1] is too large for a float64"),
    ],
)
def test_lists_that_make_no_array_are_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        tensor(value, "x")
    assert caught.value.message == message


def test_a_million_empty_lists_cost_no_call_for_each() -> None:
    steps = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event == "call"

    body = parse(b"[" + b"[]," * 100_000 + b"[]]")
    sys.setprofile(counted)
    try:
        array = tensor(body, "x")
    finally:
        sys.setprofile(None)
    assert array.shape == (100_001, 0)
    assert steps < 100


def test_lists_nested_without_end_are_refused() -> None:
    with pytest.raises(InvalidInput, match="nested more than 16 deep"):
        tensor(parse(b"[" * 1000 + b"1" + b"]" * 1000), "x")


def test_whole_numbers_become_what_a_model_declares() -> None:
    values = np.array([1.0, -2.0])
    whole = as_declared(values, TensorInfo("n", (2,), "int64"))
    assert whole.dtype == np.int64
    assert whole.tolist() == [1, -2]
    assert as_declared(values, TensorInfo("x", (2,))) is values
    assert as_declared(values, TensorInfo("x", (2,), "float32")) is values
    for odd in ([1.5], [math.nan], [math.inf], [1e300], [-1.0]):
        left = np.array(odd)
        assert as_declared(left, TensorInfo("n", (1,), "uint8")) is left


def test_kinds_are_named_in_json_words() -> None:
    values: list[object] = [None, True, 1, 2.0, "a", [], {}]
    expected = ["null", "true", "a number", "a number", "a string", "a list", "an object"]
    assert [kind_of(value) for value in values] == expected


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, max_size=20))
def test_finite_numbers_survive_the_round_trip_bit_by_bit(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    text = array_text(array)
    assert json.loads(text) == values
    assert vector(parse(text), "x").tobytes() == array.tobytes()


@given(st.lists(st.floats(), max_size=20))
def test_literals_survive_the_round_trip(values: list[float]) -> None:
    np.testing.assert_array_equal(vector(parse(array_text(np.array(values))), "x"), values)


def test_each_choice_for_non_finite_numbers() -> None:
    values = np.array([1.0, math.nan, -math.inf, math.inf])
    assert array_text(values) == b"[1.0,NaN,-Infinity,Infinity]"
    assert array_text(values, NonFinite.NULL) == b"[1.0,null,null,null]"
    with pytest.raises(InvalidOutput) as caught:
        array_text(values, NonFinite.ERROR, where="output[2]")
    assert caught.value.message == "output[2][1] is nan; expected a finite number"
    assert array_text(values[:1], NonFinite.ERROR) == b"[1.0]"


def test_text_is_nested_like_the_shape_and_strided_arrays_are_read_right() -> None:
    values = np.arange(6.0).reshape(2, 3)
    assert array_text(values) == b"[[0.0,1.0,2.0],[3.0,4.0,5.0]]"
    assert array_text(values.T) == b"[[0.0,3.0],[1.0,4.0],[2.0,5.0]]"
    values[0, 1] = math.nan
    values[1, 0] = math.inf
    assert array_text(values) == b"[[0.0,NaN,2.0],[Infinity,4.0,5.0]]"
    assert array_text(values.T) == b"[[0.0,Infinity],[NaN,4.0],[2.0,5.0]]"
    assert array_text(np.array(2.5)) == b"2.5"
    assert array_text(np.array(math.inf)) == b"Infinity"


def test_a_million_doubles_take_well_under_a_second_each_way() -> None:
    values = np.random.default_rng(7).normal(size=10**6)
    start = time.process_time()
    text = array_text(values)
    array = vector(parse(text), "x")
    assert time.process_time() - start < 2  # measured: 0.2 s; the bar allows for a slow machine
    np.testing.assert_array_equal(array, values)
