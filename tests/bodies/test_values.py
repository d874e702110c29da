"""Values of codecs as frames: round trips and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from farm.bodies import values
from farm.bodies.values import MOST_DEPTH, Kinds, kinds_of
from farm.call import Buffer, Call, Derivative, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError, InvalidInput
from farm.protocols.graphpipe import codec as graphpipe
from farm.protocols.graphpipe.tensors import GraphpipeFault, TypeCode
from farm.protocols.kserve import request as kserve
from farm.protocols.kserve.rest import codec as kserve_json
from farm.protocols.umbridge import codec as umbridge

ALL = Kinds(umbridge.TRAVELS + kserve_json.TRAVELS + graphpipe.TRAVELS)


def encode(value: Any, body: object = None) -> list[Buffer]:
    return values.encode(value, body, ALL)


def decode(frames: Sequence[Buffer], body: object = None) -> Any:
    return values.decode(frames, body, ALL)


INFO = ModelInfo(
    "beam",
    (TensorInfo("x", (2, -1)), TensorInfo("s", (), "bytes")),
    (TensorInfo("y", (1,), "float32"),),
    frozenset({Operation.EVALUATE, Operation.STREAM}),
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, arrays and NaN included."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool(np.all(one == other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, FarmError):
        return type(one) is type(other) and vars(one) == vars(other)
    if isinstance(one, Call | Derivative | Result):
        fields = one.__dataclass_fields__
        return type(one) is type(other) and all(
            same(getattr(one, f), getattr(other, f)) for f in fields
        )
    if isinstance(one, tuple | list):
        pairs = zip(one, other, strict=True)
        return type(one) is type(other) and all(same(a, b) for a, b in pairs)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, -(2**80), 1.5, math.nan, -math.inf, "", "é\ud800", "x" * 20_000),
        *([0.5, math.inf] * 50_000, [1, -(2**63)] * 50, [2**64] * 50, [True] * 50),
        *([1, 2.5, -0.0, math.nan] * 20_000, [1, 2.0, 2**53 + 1] * 50, [1.0, 10**400] * 50),
        *([], (), {}, {"a": [1, (2.0, None)], "": {"b": False}}, frozenset({"one"})),
        *(
            np.arange(3.0),
            np.zeros((0, 2)),
            np.ones((3, 4), "bool"),
            np.arange(50_000, dtype="<i2"),
        ),
        np.array([b"", b"\xff\0"], object),
        *(Operation.EVALUATE, umbridge.Endpoint.INFO, NonFinite.NULL, INFO),
        umbridge.Question(umbridge.Endpoint.INPUT_SIZES, "beam", '{"a":1}'),
        Call("m", Operation.GRADIENT, (np.ones(2),), "{}", Derivative(0, 1, 2, np.ones(1), None)),
        Call("m", Operation.EVALUATE, (np.ones((3, 2)),), rows=3),
        Result((np.ones(9000), np.ones(1)), 0.25, INFO, "w", 0.5, -1.0, 4, True),
        kserve.Wish("m", None, [kserve.WishedOutput(0, "y", "FP64", True)]),
        InvalidInput("no \ud800", detail="more"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    assert same(value, decode(encode(value)))


def test_a_request_keeps_its_arrays_and_parameters() -> None:
    inputs = [kserve.InferInput("x", "FP64", (3,), np.arange(3.0), MappingProxyType({"k": 1}))]
    request = kserve.InferRequest("m", inputs, "", "id", {"n": [1, {"z": None}]})
    back = decode(encode(request))
    assert type(back) is kserve.InferRequest
    assert back.parameters == {"n": [1, {"z": None}]}
    assert back.inputs[0].parameters == {"k": 1}
    assert same(back.inputs[0].array, np.arange(3.0))


def test_a_fault_keeps_its_code() -> None:
    fault = decode(encode(GraphpipeFault(TypeCode.SHAPE, "no")))
    assert (fault.code, fault.message) == (TypeCode.SHAPE, "no")


def test_long_bytes_come_back_as_a_view() -> None:
    assert decode(encode(b"abc")) == b"abc"
    short, long = decode(encode((b"", memoryview(bytes(100_000)))))
    assert short == b""
    assert type(long) is memoryview
    assert bytes(long) == bytes(100_000)


def test_large_arrays_are_not_copied() -> None:
    array = np.arange(100_000.0)
    head, inline, large = encode({"a": array, "b": np.arange(3.0)})
    assert np.shares_memory(np.frombuffer(large), array)
    assert len(head) < 200
    assert len(inline) == 24
    assert np.shares_memory(decode([head, inline, large])["a"], array)


def test_a_list_of_mixed_numbers_is_no_part_for_each() -> None:
    assert len(encode([0, 0.5, 1] * 100_000)[0]) < 200


def test_the_body_stays_where_it_is() -> None:
    body, theirs = object(), object()
    assert decode(encode(("x", body), body), theirs)[1] is theirs


def test_too_many_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MOST_HEAD_BYTES", 1000)
    read_no_further: list[Any] = [*[[]] * 501, object()]
    for parts in (read_no_further, ["x" * 100] * 10):
        with pytest.raises(InvalidInput, match="1000 bytes of them are"):
            encode(parts)
    assert encode(["x" * 100] * 9)


def test_deep_values_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(MOST_DEPTH + 1):
        deep = [deep]
    with pytest.raises(InvalidInput, match="nested more than"):
        encode(deep)
    assert encode(deep[0])


@pytest.mark.parametrize("value", [object(), {1: 2}, {1, 2}, np.array(["a"]), np.array([object()])])
def test_nothing_else_travels(value: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be sent|are not supported"):
        encode(value)


def test_a_class_that_is_not_listed_is_not_made() -> None:
    with pytest.raises(KeyError):
        decode([b'["os.system","true"]', b""])


def test_a_codec_names_the_classes_that_its_functions_take_and_return() -> None:
    question = umbridge.Question(umbridge.Endpoint.INFO)
    kinds = kinds_of(umbridge)
    assert values.decode(values.encode(question, kinds=kinds), kinds=kinds) == question
    with pytest.raises(TypeError, match="a Question cannot be sent"):
        values.encode(question)
    with pytest.raises(KeyError):
        values.decode(values.encode(question, kinds=kinds))
    assert kinds_of(math).by_name == Kinds().by_name
