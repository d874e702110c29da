"""The generate extension: decoding and encoding flat objects."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from farm.call import ModelInfo, Result, TensorInfo
from farm.errors import FarmError, InvalidInput, ModelFailed
from farm.protocols.kserve.request import call_of
from farm.protocols.kserve.rest.generate import decode_generate, encode_generate, error_event, event

INFO = ModelInfo(
    "m",
    (TensorInfo("n", (1,), "int32"), TensorInfo("x", (2, 2))),
    (TensorInfo("y", (1,)), TensorInfo("text", (2,), "bytes")),
)
OPEN = ModelInfo("open", (TensorInfo("x", (-1, 2)),), ())


def decoded(message: Any, info: ModelInfo = INFO) -> Any:
    return decode_generate("m", "", json.dumps(message).encode(), info)


@pytest.mark.parametrize("n", [3, [3], [[3]]])
@pytest.mark.parametrize("x", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[1, 2, 3, 4]]])
def test_inputs_by_name_in_whatever_nesting(n: Any, x: Any) -> None:
    request = decoded({"n": n, "x": x, "temperature": 0.5, "id": "7"})
    assert (request.id, request.parameters) == ("7", {"temperature": 0.5})
    call, wish = call_of(request, INFO)
    assert call.rows is None
    assert call.inputs[0].tolist() == [3]
    assert call.inputs[1].tolist() == [[1, 2], [3, 4]]
    body = encode_generate(wish, Result((np.array([-math.inf]), np.array([b"a", b"b"], object))))
    assert body == (
        b'{"model_name":"m","model_version":"1","id":"7","y":-Infinity,"text":["a","b"]}'
    )


def test_an_object_of_parameters_is_spread_out() -> None:
    request = decoded({"n": 1, "parameters": {"x": [1, 2, 3, 4], "n": 7, "priority": 2}})
    assert request.parameters == {"priority": 2}
    assert [tensor.array.reshape(-1).tolist() for tensor in request.inputs] == [[1], [1, 2, 3, 4]]
    named = ModelInfo("m", (TensorInfo("parameters", (1,)),), ())
    assert decoded({"parameters": 3.5}, named).inputs[0].array.tolist() == [3.5]
    assert decoded({"parameters": 3.5}).parameters == {"parameters": 3.5}


def test_an_open_size_fits_what_came() -> None:
    assert decoded({"x": [1, 2, 3, 4, 5, 6]}, OPEN).inputs[0].shape == (3, 2)
    assert decoded({"x": []}, OPEN).inputs[0].shape == (0, 2)
    with pytest.raises(InvalidInput, match="3 elements"):
        decoded({"x": [1, 2, 3]}, OPEN)
    two = ModelInfo("m", (TensorInfo("x", (-1, -1)),), ())
    with pytest.raises(InvalidInput, match="more than one size that is open"):
        decoded({"x": [1]}, two)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"x": [1, 2, 3, 4]}, "input 'n' is missing"),
        ({"n": 1.5, "x": [1, 2, 3, 4]}, "expected a whole number of type INT32"),
        ({"n": 1, "x": [1, 2, 3]}, "has 3 elements"),
        ({"n": None, "x": [1, 2, 3, 4]}, "null"),
        ({"n": 1, "x": [[1, 2], 3]}, "data of input 'x'"),
        ({"n": 1, "x": {}}, "data of input 'x'"),
        ({"id": 7}, "id is not a string"),
        ([1], "expected a JSON object"),
        ({}, "input 'n' is missing"),
    ],
)
def test_what_is_no_such_object(message: Any, text: str) -> None:
    with pytest.raises(FarmError) as caught:
        call_of(decoded(message), INFO)
    assert text in caught.value.message
    failed = error_event(ModelFailed("no\nmesh"))
    assert failed == event(b'{"error":"no\\nmesh"}') == b'data: {"error":"no\\nmesh"}\n\n'
