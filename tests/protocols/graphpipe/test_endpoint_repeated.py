"""Repeated messages are read with the same result as by decoding them completely."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import ModelInfo, TensorInfo
from farm.errors import FarmError
from farm.protocols.graphpipe.codec import SMALL_BYTES, GraphpipeRequest, call_of, decode_request
from farm.protocols.graphpipe.endpoint import KEPT, Repeated
from farm.protocols.graphpipe.flatbuffer import root
from farm.protocols.graphpipe.tensors import GraphpipeFault
from tests.protocols.graphpipe.test_codec import INFO, TWO, request, tensor
from tests.support.graphpipe_bytes import INFER_REQUEST

VARIES = ModelInfo("v", (TensorInfo("x", (-1,)),), INFO.outputs)
OCTETS = ModelInfo("o", (TensorInfo("x", (-1,), "uint8"),), INFO.outputs)
TEXTS = ModelInfo("t", (TensorInfo("x", (1,), "bytes"),), INFO.outputs)


def through(message: bytes, info: ModelInfo) -> tuple[Any, ...]:
    decoded = decode_request(message)
    assert isinstance(decoded, GraphpipeRequest)
    return call_of(decoded, info)


def kept(message: bytes, info: ModelInfo) -> Repeated:
    repeated = Repeated()
    repeated.keep(message, info, *through(message, info))
    return repeated


def same(one: Any, other: Any) -> bool:
    """Whether two readings of a message are equal."""
    (a, wish_a), (b, wish_b) = one, other
    return (
        (a.model, a.operation, a.config, a.rows) == (b.model, b.operation, b.config, b.rows)
        and list(wish_a) == list(wish_b)
        and [(x.dtype, x.tobytes(), x.shape) for x in a.inputs]
        == [(x.dtype, x.tobytes(), x.shape) for x in b.inputs]
    )


@given(
    shape=st.sampled_from([(2,), (1, 2), (5, 2)]),
    names=st.sampled_from([(None, None), (["x"], ["y"]), (["x", "x"], ["s", "y"]), (None, ["s"])]),
    numbers=st.lists(st.floats(width=64), min_size=10, max_size=10),
    config=st.sampled_from([None, "", "{}"]),
)
def test_other_numbers_in_the_same_message(
    shape: Any, names: Any, numbers: list[float], config: str | None
) -> None:
    size = int(np.prod(shape))

    def message(numbers: Any) -> bytes:
        array = np.array(numbers[:size]).reshape(shape)
        return request(tensor(array), inputs=names[0], outputs=names[1], config=config)

    repeated = kept(message([0.0] * 10), INFO)
    found = repeated.call_of(message(numbers), INFO)
    assert found is not None
    assert same(found, through(message(numbers), INFO))


def test_any_other_byte_is_read_through() -> None:
    message = request(tensor([1.5, 2.5]), inputs=["x"], outputs=["y"])
    repeated = kept(message, INFO)
    numbers = message.index(struct.pack("<2d", 1.5, 2.5))
    assert repeated.call_of(message, INFO) is not None
    for place in {*range(len(message))} - {*range(numbers, numbers + 16)}:
        changed = bytearray(message)
        changed[place] ^= 1
        assert repeated.call_of(bytes(changed), INFO) is None, place
    assert repeated.call_of(message + b"\0", INFO) is None
    assert repeated.call_of(message[:-1], INFO) is None
    assert repeated.call_of(b"", INFO) is None


def test_each_model_has_its_own_and_a_new_description_begins_anew() -> None:
    message = request(tensor([1.5, 2.5]))
    repeated = kept(message, INFO)
    assert repeated.call_of(message, VARIES) is None
    again = ModelInfo("m", (TensorInfo("x", (-1,)),), INFO.outputs)
    assert repeated.call_of(message, again) is None
    repeated.keep(message, again, *through(message, again))
    assert repeated.call_of(message, again) is not None
    assert repeated.call_of(message, INFO) is None


@pytest.mark.parametrize(
    ("message", "info"),
    [
        (request(tensor([1.0, 2.0]), config='{"a":1}'), INFO),
        (request(tensor([1.0, 2.0]), tensor([1.0])), TWO),
        (request(tensor([b"text"], "bytes")), TEXTS),
        (request(tensor(np.zeros(SMALL_BYTES + 1), "uint8")), OCTETS),
        (request(tensor(np.zeros(8)), config=" " * 2 * SMALL_BYTES + "{}"), VARIES),
        (request(tensor(np.zeros(0))), VARIES),
    ],
    ids=["config", "two tensors", "texts", "large", "long", "empty"],
)
def test_what_is_not_remembered(message: bytes, info: ModelInfo) -> None:
    assert kept(message, info).call_of(message, info) is None


def test_numbers_that_are_read_as_something_else_too() -> None:
    """The config shares its bytes with the numbers, so other numbers would change the config."""

    def message(config: bytes) -> bytes:
        data = struct.pack("<I", len(config)) + config.ljust(12, b"\0")
        whole = bytearray(request(tensor(np.frombuffer(data, "u1"), "uint8"), config="{}"))
        infer = root(bytes(whole)).table(1)
        assert infer is not None
        field = infer.position + infer._offsets[0]
        struct.pack_into("<I", whole, field, whole.index(data) - field)
        return bytes(whole)

    assert through(message(b"{}"), OCTETS)[0].config == "{}"
    assert through(message(b'{"a":1}'), OCTETS)[0].config == '{"a":1}'
    repeated = kept(message(b"{}"), OCTETS)
    assert repeated.call_of(message(b'{"a":1}'), OCTETS) is None


def test_only_so_many_are_remembered() -> None:
    repeated = Repeated()
    for size in range(1, 2 * KEPT):
        message = request(tensor(np.zeros(size)))
        repeated.keep(message, VARIES, *through(message, VARIES))
        assert repeated.call_of(message, VARIES) is not None
        assert len(repeated._known) <= KEPT


@given(st.integers(0, len(INFER_REQUEST) - 1), st.integers(0, 255), st.binary(max_size=64))
def test_damaged_messages_are_read_alike(place: int, byte: int, other: bytes) -> None:
    """After an accepted message, damaged or not, the next is read as it would be alone."""
    damaged = bytearray(request(tensor(np.arange(8.0)), inputs=["x"]))
    damaged[place % len(damaged)] = byte
    try:
        repeated = kept(bytes(damaged), VARIES)
    except (FarmError, GraphpipeFault):
        return
    damaged[-len(other) :] = other
    found = repeated.call_of(bytes(damaged), VARIES)
    assert found is None or same(found, through(bytes(damaged), VARIES))
