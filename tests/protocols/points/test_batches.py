"""Long requests of many points in batches: the same calls and errors as without batches."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from farm.bodies import values
from farm.call import Call, ModelInfo, Operation, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError, InvalidInput
from farm.protocols.points import batches as points_batches
from farm.protocols.points.batches import BATCH, ReadPoints, decode_batches
from farm.protocols.points.codec import decode_points
from farm.wire import messages as wire

KINDS = values.kinds_of(points_batches)
INFO = ModelInfo(
    "m",
    (TensorInfo("x", (-1,)), TensorInfo("k", (1,), "int32")),
    (TensorInfo("y", (1,)),),
    frozenset({Operation.EVALUATE, Operation.GRADIENT}),
)


def both(body: bytes) -> tuple[Any, ReadPoints]:
    points = decode_points(body, NonFinite.NULL)
    config, batches = decode_batches(body, NonFinite.NULL, {points.config: INFO})
    assert config == points.config
    assert batches is not None
    batches = values.decode(values.encode(batches, kinds=KINDS), kinds=KINDS)
    return points, ReadPoints(config, batches)


def outcome(points: Any, index: int) -> Call | str:
    try:
        call: Call = points.call(index, INFO)
    except FarmError as error:
        return f"{type(error).__name__}: {error.message}"
    return call


def assert_same(points: Any, read: ReadPoints, index: int) -> None:
    one, other = outcome(points, index), outcome(read, index)
    if isinstance(one, str):
        assert one == other
        return
    assert isinstance(other, Call)
    assert (one.model, one.operation, one.config) == (other.model, other.operation, other.config)
    for a, b in zip(one.inputs, other.inputs, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    if one.derivative is not None:
        assert other.derivative is not None
        assert one.derivative.sens is not None
        assert other.derivative.sens is not None
        assert np.array_equal(one.derivative.sens, other.derivative.sens)


@pytest.mark.parametrize("by_name", [False, True])
def test_calls_and_errors_are_the_same(by_name: bool) -> None:
    some: list[Any] = [
        [[1.0, 2.0], [3]],
        [[1.0], [2.5]],
        [[1.0, "é"], [3]],
        [[1.0]],
        7,
        [list(range(10_000)), [1]],
        [[[1, 2], [3, 4]], [1]],
    ]
    if by_name:
        some = [dict(zip("xk", p, strict=False)) if isinstance(p, list) else p for p in some]
    right = some[0]
    inputs = [*some, *[right] * (BATCH - 3), *some, *[right] * (BATCH - 8)]
    body = json.dumps({"inputs": inputs, "config": {"a": 1}}).encode()
    points, read = both(body)
    assert len(read) == len(points) == len(inputs)
    assert read.form == points.form
    for index in [*range(len(inputs)), 0, BATCH, 1]:
        assert_same(points, read, index)


def test_derivatives_keep_their_arguments() -> None:
    count = BATCH + 1
    message = {"inputs": [[[1.0], [1]]] * count, "operation": "gradient", "outWrt": 0, "inWrt": 0}
    message["sens"] = [[float(i)] for i in range(count)]
    points, read = both(json.dumps(message).encode())
    for index in (0, BATCH):
        assert_same(points, read, index)


def test_a_batch_is_read_when_its_turn_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"inputs": [[[1.0], [1]]] * (3 * BATCH)}).encode()
    _, read = both(body)
    sizes = []
    decode_calls = wire.decode_calls

    def noted(message: wire.Message) -> Any:
        calls = decode_calls(message)
        sizes.append(len(calls[1]))
        return calls

    monkeypatch.setattr(wire, "decode_calls", noted)
    for index in range(BATCH + 1):
        read.call(index, INFO)
    assert sizes == [BATCH, BATCH]


def test_without_the_description_only_the_config_is_told() -> None:
    body = b'{"inputs":[],"config":{"b":1}}'
    assert decode_batches(body, NonFinite.NULL, {"{}": INFO}) == ('{"b":1}', None)
    with pytest.raises(InvalidInput):
        decode_batches(b"{}", NonFinite.NULL, {"{}": INFO})
