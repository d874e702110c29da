"""MIP inferences as calls and results: the recorded packets, every type, every error."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import BYTES, Call, ModelInfo, Operation, Result, TensorInfo
from farm.dtypes import bytes_array
from farm.errors import FarmError, InvalidInput, InvalidOutput, InvalidRequest, UnsupportedFeature
from farm.model import check_call
from farm.protocols.mip.calls import (
    COUNTS,
    TYPE_AND_SIZE,
    Type,
    decode_call,
    decode_result,
    encode_call,
    encode_result,
)
from farm.protocols.mip.packets import HEAD

TEXT = TensorInfo("t", (1,), BYTES)
PAIR = TensorInfo("x", (2,))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def info(*inputs: TensorInfo, outputs: Sequence[TensorInfo] | None = None) -> ModelInfo:
    return ModelInfo("m", inputs, tuple(inputs if outputs is None else outputs))


def packed(rows: int, n_inputs: int, *values: tuple[int, bytes]) -> bytes:
    parts = [TYPE_AND_SIZE.pack(kind, len(data)) + data for kind, data in values]
    return COUNTS.pack(n_inputs, 0, rows) + b"".join(parts)


def jsons(*texts: str, kind: int = Type.JSON) -> list[tuple[int, bytes]]:
    return [(kind, text.encode()) for text in texts]


def refused(payload: bytes, model: ModelInfo) -> FarmError:
    with pytest.raises((InvalidInput, InvalidRequest)) as caught:
        decode_call(payload, model)
    return caught.value


# The recorded packets

UPPER = bytes.fromhex("01000002 00000001 00000005 68656c6c6f 00000001 00000006 77c3b6726c64")
UPPER_ANSWER = bytes.fromhex(
    "00020100 0000001f 01010002 00000001 00000005 48454c4c4f 00000001 00000006 57c396524c44"
)
DOUBLE = bytes.fromhex("01000002 00000002 00000006 5b312c20325d 00000002 00000006 5b332c20345d")
DOUBLE_ANSWER = bytes.fromhex(
    "01010002 00000002 0000000a 5b322e302c20342e305d 00000002 0000000a 5b362e302c20382e305d"
)
TWO = bytes.fromhex(
    "02000003 00000002 00000006 5b312c20325d 00000002 00000006 5b352c20365d"
    "00000002 00000006 5b332c20345d 00000002 00000006 5b372c20385d"
    "00000002 00000006 5b302c20305d 00000002 00000006 5b312c20315d"
)
MISTAKEN = bytes.fromhex(
    "01010001 00000002 0000000a 5b322e302c20332e305d 00000002 0000000c 5b31302e302c2032302e305d"
)


def test_texts() -> None:
    call = decode_call(UPPER, info(TEXT))
    assert (call.rows, call.inputs[0].tolist()) == (2, [[b"hello"], ["wörld".encode()]])
    answer = Result((bytes_array([["HELLO"], ["WÖRLD"]]),))
    assert encode_result(call, answer, info(TEXT)) == UPPER_ANSWER
    assert encode_call(call, info(TEXT))[HEAD.size :] == UPPER


def test_numbers() -> None:
    call = decode_call(DOUBLE, info(PAIR))
    assert (call.rows, call.inputs[0].tolist()) == (2, [[1, 2], [3, 4]])
    (back,) = decode_result(DOUBLE_ANSWER, info(PAIR), 2).outputs
    assert back.tolist() == [[2, 4], [6, 8]]


def test_the_order_is_entry_by_entry() -> None:
    model = info(TensorInfo("a", (2,)), TensorInfo("b", (2,)))
    call = decode_call(TWO, model)
    a, b = call.inputs
    assert (a.tolist(), b.tolist()) == ([[1, 2], [3, 4], [0, 0]], [[5, 6], [7, 8], [1, 1]])
    answer = encode_result(call, Result((a + b, a * b)), model)[HEAD.size :]
    assert answer[:4] == bytes.fromhex("02020003")
    total, product = decode_result(answer, model, 3).outputs
    assert (total.tolist(), product.tolist()) == ((a + b).tolist(), (a * b).tolist())


def test_kubemos_count_of_outputs_is_not_believed() -> None:
    model = info(PAIR, outputs=(PAIR, TensorInfo("z", (2,))))
    y, z = decode_result(MISTAKEN, model, None).outputs
    assert (y.tolist(), z.tolist()) == ([2, 3], [10, 20])


# Values


def test_one_entry_has_no_batch_axis() -> None:
    call = decode_call(packed(1, 1, *jsons("[1,2]")), info(PAIR))
    assert (call.rows, call.inputs[0].tolist()) == (None, [1, 2])
    assert encode_result(call, Result((np.array([1.5, 2.5]),)), info(PAIR)) == (
        bytes.fromhex("00020100 00000015 01010001 00000002 00000009") + b"[1.5,2.5]"
    )


@pytest.mark.parametrize("kind", [Type.TEXT, Type.JSON])
def test_numbers_as_text_or_json_in_any_spelling(kind: Type) -> None:
    texts = ["[1, 2]", " [NaN, -Infinity]\n", "[[3, 4]]", "[1e3,0.1]"]
    call = decode_call(packed(4, 1, *jsons(*texts, kind=kind)), info(TensorInfo("x", (1, 2))))
    rows = call.inputs[0].reshape(4, 2).tolist()
    assert [rows[0], rows[2], rows[3]] == [[1, 2], [3, 4], [1000, 0.1]]
    assert math.isnan(rows[1][0])
    assert rows[1][1] == -math.inf
    check_call(call, info(TensorInfo("x", (1, 2))))


def test_a_bare_number_is_a_list_of_one() -> None:
    for shape in ((), (1,)):
        call = decode_call(packed(1, 1, *jsons("7")), info(TensorInfo("x", shape)))
        assert call.inputs[0].shape == shape
        assert float(call.inputs[0].reshape(())) == 7
    scalar = decode_call(packed(2, 1, *jsons("7", "[8]")), info(TensorInfo("x", ())))
    assert scalar.inputs[0].tolist() == [7, 8]
    assert b"[7.0]" in encode_result(scalar, Result(scalar.inputs), info(TensorInfo("x", ())))


def test_whole_numbers_stay_exact() -> None:
    big = 2**53 + 1
    model = info(TensorInfo("n", (1,), "int64"))
    call = decode_call(packed(2, 1, *jsons(f"[{big}]", "[-3]")), model)
    assert call.inputs[0].dtype == np.int64
    assert call.inputs[0].tolist() == [[big], [-3]]
    assert f"[{big}]".encode() in encode_result(call, Result(call.inputs), model)
    written = decode_call(packed(1, 1, *jsons("[2.0]")), model)
    assert written.inputs[0].dtype == np.int64
    halves = decode_call(packed(1, 1, *jsons("[2.5]")), model)
    with pytest.raises(InvalidInput, match="expects int64"):
        check_call(halves, model)
    error = refused(packed(2, 1, *jsons("[1]", f"[{2**63}]")), model)
    assert error.message == "entry 1, input 0 ('n') holds a number that is too large for int64"


def test_images_and_json_reach_models_of_bytes_as_they_are() -> None:
    values = [(Type.IMAGE, PNG), (Type.JSON, b'{"a": [1]}'), (Type.TEXT, b"[1,")]
    call = decode_call(packed(3, 1, *values), info(TEXT))
    assert call.inputs[0].reshape(-1).tolist() == [PNG, b'{"a": [1]}', b"[1,"]
    answer = encode_result(call, Result(call.inputs), info(TEXT))[HEAD.size :]
    assert answer[4:12] == TYPE_AND_SIZE.pack(Type.IMAGE, len(PNG))
    assert answer.endswith(TYPE_AND_SIZE.pack(Type.TEXT, 3) + b"[1,")


def test_tensors_of_several_texts_are_json_lists() -> None:
    names = TensorInfo("names", (-1,), BYTES)
    call = decode_call(packed(1, 1, *jsons('["a", "ü"]')), info(names))
    assert call.inputs[0].tolist() == [b"a", "ü".encode()]
    answer = encode_result(call, Result(call.inputs), info(names))[HEAD.size :]
    (back,) = decode_result(answer, info(names), None).outputs
    assert back.tolist() == [b"a", "ü".encode()]
    one = encode_result(call, Result((bytes_array(["a"]),)), info(names))
    assert one.endswith(b'["a"]')  # one text is still a list
    with pytest.raises(UnsupportedFeature, match="bytes that are no texts"):
        encode_result(call, Result((bytes_array([b"\xff", b"a"]),)), info(names))


def test_sizes_that_vary_are_those_of_the_packet() -> None:
    model = info(TensorInfo("x", (-1,)))
    call = decode_call(packed(2, 1, *jsons("[1,2,3]", "[4,5,6]")), model)
    assert call.inputs[0].shape == (2, 3)
    error = refused(packed(2, 1, *jsons("[1,2,3]", "[4]")), model)
    assert "entry 1, input 0 ('x') has shape [1], entry 0 has [3]" in error.message


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool"])
def test_other_numbers_in_nested_lists(dtype: str) -> None:
    array = np.array([[[0, 1], [1, 0], [1, 1]]] * 2, dtype=dtype)
    call = Call("m", Operation.EVALUATE, (array,), rows=2)
    model = info(TensorInfo("x", (3, 2), dtype))
    answer = encode_result(call, Result((array,)), model)[HEAD.size :]
    assert answer.count(b"],[") == 4
    (back,) = decode_result(answer, model, 2).outputs
    assert back.tolist() == array.tolist()


def test_bfloat16_and_complex() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    call = Call("m", Operation.EVALUATE, (), rows=None)
    array = np.array([0.5, 2], dtype=ml_dtypes.bfloat16)
    assert encode_result(call, Result((array,)), info(PAIR)).endswith(b"[0.5,2.0]")
    with pytest.raises(UnsupportedFeature, match="complex128"):
        encode_result(call, Result((np.array([1j]),)), info(PAIR))


# Errors


def second(*value: Any) -> bytes:
    """A packet whose second value is this one, behind a right one."""
    return packed(2, 1, (2, b"[0,1]"), value)


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        (InvalidInput, b"", "has 0 bytes; expected 4"),
        (InvalidInput, packed(0, 1), "batch size is 0"),
        (InvalidInput, bytes.fromhex("01000001 00000002 ffffffff"), "4294967295 bytes; 0 are left"),
        (InvalidInput, packed(1, 2, *jsons("[1,2]", "[1,2]")), "has 2 inputs an entry"),
        (InvalidInput, packed(65535, 1, *jsons("[1,2]")), "too few for its 65535 values"),
        (InvalidInput, packed(2, 1, *jsons("[1,2]" + 20 * " ")), "ends before value 1 of 2"),
        (InvalidInput, packed(1, 1, *jsons("[1,2]")) + b"\0", "1 bytes are left"),
        (InvalidInput, packed(1, 1, *jsons("[1,2,3]")), "entry 0, input 0 ('x') has shape [3]"),
        (InvalidInput, second(2, b"[1]"), "entry 1, input 0 ('x') has shape [1]"),
        (InvalidRequest, second(9, b"[1,2]"), "entry 1, input 0 ('x') has type 9"),
        (InvalidRequest, second(2, b"[1,2"), "entry 1, input 0 ('x') is not JSON"),
        (InvalidRequest, second(2, b"\xff"), "entry 1, input 0 ('x') is not JSON"),
        (InvalidRequest, second(2, b"[1,null]"), "entry 1, input 0 ('x') holds null"),
        (InvalidRequest, second(2, b"[1,[2]]"), "holds a list"),
        (InvalidRequest, second(2, b'{"a":1}'), "holds an object"),
        (InvalidRequest, second(1, b"hello"), "is not JSON"),
        (InvalidRequest, second(3, PNG), "is an image"),
        (InvalidRequest, second(2, b"[1e999,1]"), "is not JSON"),
        (InvalidRequest, second(2, b"[" * 100_000), "is not JSON"),
    ],
)
def test_what_does_not_fit_and_what_is_no_number(
    kind: type[FarmError], payload: bytes, said: str
) -> None:
    error = refused(payload, info(PAIR))
    assert type(error) is kind
    assert said in error.message


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((9, b"a"), "has type 9"),
        ((1, b"\xff"), "is not UTF-8 text"),
        ((2, b"{"), "is not JSON"),
    ],
)
def test_bytes_that_are_not_what_they_say(value: tuple[int, bytes], said: str) -> None:
    error = refused(packed(2, 1, (1, b"a"), value), info(TEXT))
    assert type(error) is InvalidRequest
    assert f"entry 1, input 0 ('t') {said}" in error.message


def test_lists_that_are_whole_only_together_are_refused() -> None:
    for texts in (["[1", "2]"], ["[1],[2]", "[3]"], ["[1,[2]", "[3]]", "[4],[5]"]):
        payload = packed(len(texts), 1, *jsons(*texts))
        assert type(refused(payload, info(PAIR))) is InvalidRequest


def test_a_model_without_evaluate() -> None:
    model = ModelInfo("m", (PAIR,), (PAIR,), frozenset({Operation.STREAM}))
    with pytest.raises(UnsupportedFeature, match="does not offer inference"):
        decode_call(packed(1, 1, *jsons("[1,2]")), model)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (packed(2, 1, *jsons("[1,2]", "[1,2]")), "it has 2 entries; expected 1"),
        (packed(1, 1), "too few for its 1 values"),
        (packed(1, 1, (3, PNG)), "entry 0, output 0 ('x') is an image"),
        (packed(1, 1, *jsons("[1]")), "output 0 ('x') has shape [1]"),
    ],
)
def test_answers_that_are_none(payload: bytes, said: str) -> None:
    with pytest.raises(InvalidOutput) as caught:
        decode_result(payload, info(PAIR), None)
    assert said in caught.value.message


def test_more_than_a_packet_holds() -> None:
    many = Call("m", Operation.EVALUATE, (np.zeros((65536, 1)),), rows=65536)
    with pytest.raises(InvalidInput, match="65536 rows"):
        encode_call(many, info(PAIR))
    wide = Call("m", Operation.EVALUATE, (np.zeros(1),) * 256)
    with pytest.raises(UnsupportedFeature, match="at most 255"):
        encode_call(wide, info(PAIR))


# Random payloads

NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(width=64))


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=5))
def test_numbers_come_back_as_they_were(rows: list[list[float]]) -> None:
    texts = [json.dumps(row) for row in rows]
    call = decode_call(packed(len(rows), 1, *jsons(*texts)), info(PAIR))
    wanted = np.array(rows, dtype=float)
    assert np.array_equal(call.inputs[0].reshape(-1, 2), wanted, equal_nan=True)
    answer = encode_result(call, Result(call.inputs), info(PAIR))[HEAD.size :]
    (back,) = decode_result(answer, info(PAIR), call.rows).outputs
    assert np.array_equal(back.reshape(-1, 2), wanted, equal_nan=True)


PIECES = st.sampled_from([b"[", b"]", b",", b"1", b"-2.5", b" ", b"NaN", b'"a"', b"null", b"{}"])
DATA = st.one_of(st.binary(max_size=8), st.lists(PIECES, max_size=8).map(b"".join))
VALUES = st.lists(st.tuples(st.integers(0, 4), DATA), max_size=6)
MODELS = st.sampled_from(
    [
        info(PAIR),
        info(TEXT),
        info(TensorInfo("n", (-1,), "int32"), TEXT),
        info(TensorInfo("s", (-1,), BYTES)),
    ]
)


@given(st.integers(0, 4), st.integers(0, 3), VALUES, MODELS, st.binary(max_size=3))
def test_any_values_are_a_call_or_refused(
    rows: int, n_inputs: int, values: list[tuple[int, bytes]], model: ModelInfo, tail: bytes
) -> None:
    try:
        call = decode_call(packed(rows, n_inputs, *values) + tail, model)
    except (InvalidInput, InvalidRequest):
        return
    for kind, data in values:
        if kind == Type.JSON:
            json.loads(data)  # each alone, whichever way it was parsed
    assert (call.rows or 1) == rows
    assert len(call.inputs) == len(model.inputs)
