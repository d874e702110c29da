"""Bodies of KServe's V1 `:predict`: rows, columns, base64, and what does not fit."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from farm.call import ModelInfo, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import InvalidInput, InvalidOutput, InvalidRequest
from farm.protocols.kserve.request import Wish, WishedOutput, call_of
from farm.protocols.kserve.rest.v1 import decode_predict, encode_predict

ONE = ModelInfo("one", (TensorInfo("x", (3,)),), ())
GRID = ModelInfo("grid", (TensorInfo("x", (2, 2), "int32"),), ())
TWO = ModelInfo("two", (TensorInfo("a", (2,)), TensorInfo("t", (), "bytes")), ())
AGE = ModelInfo("age", (TensorInfo("age", (1,)), TensorInfo("sex", (1,), "bytes")), ())
TEXT = ModelInfo("text", (TensorInfo("t", (1,), "bytes"),), ())
OPEN = ModelInfo("open", (TensorInfo("x", (-1,)),), ())
NONE = ModelInfo("none", (), ())


def decoded(info: ModelInfo, body: Any) -> tuple[list[Any], bool]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    request, by_row = decode_predict(info.name, "", text, info)
    assert [tensor.name for tensor in request.inputs] == [tensor.name for tensor in info.inputs]
    for tensor in request.inputs:
        assert tensor.array.shape == tensor.shape
    return [tensor.array.tolist() for tensor in request.inputs], by_row


@pytest.mark.parametrize(
    ("info", "body", "arrays"),
    [
        (ONE, {"instances": [[1, 2, 3]]}, [[[1.0, 2.0, 3.0]]]),
        (ONE, {"instances": [[1, 2, 3], [4, 5, 6.5]]}, [[[1, 2, 3], [4, 5, 6.5]]]),
        (ONE, {"instances": [{"x": [1, 2, 3]}, {"x": [4, 5, 6]}]}, [[[1, 2, 3], [4, 5, 6]]]),
        (ONE, {"instances": [[1, 2, 3]], "signature_name": "serving_default"}, [[[1, 2, 3]]]),
        (GRID, {"instances": [[[1, 2], [3, 4]]]}, [[[[1, 2], [3, 4]]]]),
        (
            TWO,
            {"instances": [{"a": [1, 2], "t": "é"}, {"t": {"b64": "/wA="}, "a": [3, 4]}]},
            [[[1, 2], [3, 4]], ["é".encode(), b"\xff\x00"]],
        ),
        (
            AGE,
            {"instances": [{"age": 3, "sex": "f"}, {"age": 4.5, "sex": "m"}]},
            [[[3], [4.5]], [[b"f"], [b"m"]]],
        ),
        (TEXT, {"instances": ["a", {"b64": "YQ=="}]}, [[[b"a"], [b"a"]]]),
        (TEXT, {"instances": [{"t": "a"}]}, [[[b"a"]]]),
        (OPEN, {"instances": [[1], [2]]}, [[[1], [2]]]),
        (OPEN, {"instances": [[], []]}, [[[], []]]),
        (NONE, {"instances": [{}]}, []),
        (ONE, b'{"instances": [[NaN, -Infinity, 1]]}', [[[math.nan, -math.inf, 1.0]]]),
    ],
)
def test_rows(info: ModelInfo, body: Any, arrays: list[Any]) -> None:
    got, by_row = decoded(info, body)
    assert by_row
    assert repr(got) == repr([np.asarray(a, object).tolist() for a in arrays]) or got == arrays


@pytest.mark.parametrize(
    ("info", "body", "arrays"),
    [
        (ONE, {"inputs": [[1, 2, 3]]}, [[[1, 2, 3]]]),
        (ONE, {"inputs": [1, 2, 3]}, [[1, 2, 3]]),
        (ONE, {"inputs": {"x": [[1, 2, 3], [4, 5, 6]]}}, [[[1, 2, 3], [4, 5, 6]]]),
        (
            TWO,
            {"inputs": {"a": [[1, 2], [3, 4]], "t": ["a", "b"]}},
            [[[1, 2], [3, 4]], [b"a", b"b"]],
        ),
        (TWO, {"inputs": {"a": [1, 2], "t": "a"}}, [[1, 2], b"a"]),
        (AGE, {"inputs": {"age": [3, 4], "sex": ["f", "m"]}}, [[[3], [4]], [[b"f"], [b"m"]]]),
        (NONE, {"inputs": {}}, []),
    ],
)
def test_columns(info: ModelInfo, body: Any, arrays: list[Any]) -> None:
    assert decoded(info, body) == (arrays, False)


def test_the_decoded_request_is_a_call_of_rows() -> None:
    body = b'{"instances": [[1, 2, 3], [4, 5, 6]], "parameters": {"priority": 7}}'
    request, _ = decode_predict("one", "1", body, ONE)
    assert (request.model, request.version, request.id) == ("one", "1", None)
    assert request.parameters == {"priority": 7}
    call, _ = call_of(request, ONE)
    assert call.rows == 2
    assert call.inputs[0].dtype == np.float64


@pytest.mark.parametrize(
    ("info", "body", "text"),
    [
        (ONE, {}, "the body has neither instances nor inputs; expected instances"),
        (ONE, {"instances": [], "inputs": []}, "the body has both instances and inputs"),
        (ONE, {"instances": []}, "instances is an empty list; expected a list with one row"),
        (ONE, {"instances": "a"}, "instances is a string"),
        (ONE, {"instances": [1, 2, 3]}, "instances have shape [] at input 'x'; expected [3]"),
        (ONE, {"instances": [[[1, 2, 3]]]}, "instances have shape [1, 3] at input 'x'"),
        (ONE, {"instances": [[1, 2, 3], [1, 2]]}, "nested unlike its shape [2, 3]: 2 elements"),
        (ONE, {"instances": [[1, 2, 3], 4]}, "nested unlike its shape [2, 3]: a number"),
        (ONE, {"instances": [{"y": [1, 2, 3]}]}, "instances[0] has 'y', which is no input"),
        (ONE, {"instances": [{"x": [1, 2, 3]}, [1]]}, "instances[1] is a list"),
        (TWO, {"instances": [{"a": [1, 2]}]}, "instances[0] has no 't'; model 'two' expects"),
        (TWO, {"instances": [[1, 2]]}, "instances[0] is a list; model 'two' expects an object"),
        (TWO, {"instances": [{"a": [1, 2], "t": "a", "c": 1}]}, "has 'c', which is no input"),
        (TWO, {"inputs": [[1, 2]]}, "inputs is a list; model 'two' expects an object"),
        (TWO, {"inputs": {"a": [1, 2]}}, "inputs has no 't'"),
        (TEXT, {"instances": [{"b64": "a"}]}, "b64 of input 't' at position 0 is not base64"),
        (TEXT, {"instances": ["a", {"b64": 1}]}, "has {'b64': 1} at position 1; expected a str"),
        (TEXT, {"instances": ["a", 1]}, "has 1 at position 1; expected a string"),
        (AGE, {"instances": [{"age": [3], "sex": "f"}, {"age": 3, "sex": "f"}]}, "nested unlike"),
        (ONE, {"instances": [[1, 2, 3]], "signature_name": "b"}, "signature_name is 'b'; a model"),
        (ONE, {"instances": [[1, 2, 3]], "parameters": []}, "parameters of the request is a list"),
        (NONE, {"instances": [{}, {}]}, "instances has 2 rows; model 'none' has no inputs"),
        (ONE, b'{"instances": %b1%b}' % (b"[" * 900, b"]" * 900), "dimensions; expected 32"),
    ],
)
def test_bodies_that_do_not_fit(info: ModelInfo, body: Any, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decoded(info, body)
    assert text in caught.value.message


@pytest.mark.parametrize(
    "body",
    [b"[", b"[1]", b'"a"', b'{"instances": [1e999]}', b"\xff", b'{"instances": ' + b"[" * 10**6],
    ids=lambda body: repr(body[:20]),
)
def test_bodies_that_are_no_object(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_predict("one", "", body, ONE)


def answer(by_row: bool, lead: tuple[int, ...] = (), **outputs: tuple[str, Any]) -> Any:
    wished = [
        WishedOutput(i, name, datatype, False)
        for i, (name, (datatype, _)) in enumerate(outputs.items())
    ]
    arrays = tuple(np.asarray(array) for _, array in outputs.values())
    wish = Wish("m", None, wished, lead=lead)
    text = encode_predict(wish, Result(arrays), NonFinite.LITERAL, by_row)
    return json.loads(text)


def test_answers_of_one_output_have_no_name() -> None:
    y = [[1.5, 2.0], [3.0, 0.1]]
    assert answer(True, y=("FP64", y)) == {"predictions": y}
    assert answer(False, y=("FP64", y)) == {"outputs": y}
    assert answer(True, (1,), y=("FP64", [1.0, 2.0])) == {"predictions": [[1.0, 2.0]]}
    assert answer(True, y=("INT64", [2**53 + 1, 2])) == {"predictions": [2**53 + 1, 2]}
    assert answer(False, y=("BOOL", True)) == {"outputs": True}
    assert answer(True, y=("FP64", np.zeros((2, 0)))) == {"predictions": [[], []]}
    for datatype, dtype in (("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)):
        half = np.array([0.5, 1.5], dtype)
        assert answer(True, y=(datatype, half)) == {"predictions": [0.5, 1.5]}


def test_answers_of_several_outputs_are_objects() -> None:
    given: dict[str, tuple[str, Any]] = {
        "a": ("FP64", [[1.0, 2.0], [3.0, 4.0]]),
        "n": ("INT32", np.array([7, 8], np.int32)),
        "t": ("BYTES", np.array([b"x", "é".encode()], object)),
    }
    assert answer(True, (), **given) == {
        "predictions": [{"a": [1, 2], "n": 7, "t": "x"}, {"a": [3, 4], "n": 8, "t": "é"}]
    }
    assert answer(False, (), **given) == {
        "outputs": {"a": [[1, 2], [3, 4]], "n": [7, 8], "t": ["x", "é"]}
    }


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (1, 1), (2, 1, 3), (0,), (2, 0), (0, 2)])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("dtype", ["float64", "bool"])
def test_rows_of_any_shape(shape: tuple[int, ...], rows: int, dtype: str) -> None:
    random = np.random.default_rng(3)
    a = random.uniform(-5, 5, (rows, *shape)).astype(dtype)
    told = answer(True, (), **{"a%b": ("FP64", a), 'é"': ("INT64", np.arange(rows))})
    assert [row['é"'] for row in told["predictions"]] == list(range(rows))
    for got, row in zip(told["predictions"], a, strict=True):
        np.testing.assert_array_equal(np.array(got["a%b"], dtype).reshape(shape), row)
        assert np.shape(got["a%b"])[:1] == shape[:1]


def test_bytes_that_are_no_text_are_base64() -> None:
    array = np.array([[b"\xff"], [b"a"]], object)
    assert answer(True, t=("BYTES", array)) == {"predictions": [[{"b64": "/w=="}], ["a"]]}
    assert answer(True, t_bytes=("BYTES", array)) == {
        "predictions": [[{"b64": "/w=="}], [{"b64": "YQ=="}]]
    }


def test_numbers_that_are_not_finite() -> None:
    y = np.array([[math.nan, math.inf], [1.0, 2.0]])
    a, b = (WishedOutput(i, name, "FP64", False) for i, name in enumerate("ab"))
    one, both = Wish("m", None, [a]), Wish("m", None, [a, b])

    def encoded(wish: Wish, form: NonFinite, by_row: bool) -> bytes:
        return encode_predict(wish, Result((y, y)), form, by_row)

    rows = b'{"predictions":[[NaN,Infinity],[1.0,2.0]]}'
    assert encoded(one, NonFinite.LITERAL, True) == rows
    assert encoded(both, NonFinite.LITERAL, True) == (
        b'{"predictions":[{"a":[NaN,Infinity],"b":[NaN,Infinity]},{"a":[1.0,2.0],"b":[1.0,2.0]}]}'
    )
    assert encoded(one, NonFinite.NULL, False) == b'{"outputs":[[null,null],[1.0,2.0]]}'
    with pytest.raises(InvalidOutput, match="output 'a'"):
        encoded(one, NonFinite.ERROR, True)
