"""GraphPipe, client half: recorded answers, omissions of other servers, hostile answers."""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import Call, ModelInfo, Operation, Result, TensorInfo
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    ModelFailed,
    TimeLimitExceeded,
    Unavailable,
    UnsupportedFeature,
)
from farm.protocols.graphpipe import flatbuffer_writer
from farm.protocols.graphpipe.client import (
    ERRORS,
    METADATA_REQUEST,
    decode_metadata,
    decode_result,
    encode_call,
)
from farm.protocols.graphpipe.codec import (
    GraphpipeRequest,
    call_of,
    decode_request,
    encode_error,
    encode_metadata,
    encode_result,
)
from farm.protocols.graphpipe.flatbuffer import root
from farm.protocols.graphpipe.flatbuffer_writer import Int64, Int64s, TableToWrite, UInt8, write
from farm.protocols.graphpipe.tensors import GraphpipeFault, TypeCode
from tests.support.graphpipe_bytes import ERROR, RESPONSE

INFO = ModelInfo("m", (TensorInfo("x", (2,)),), (TensorInfo("y", (2,)),))
WIDE = ModelInfo(
    "m",
    (TensorInfo("a", (2, -1), "float32"), TensorInfo("t", (), "bytes")),
    (TensorInfo("y", (2,)), TensorInfo("s", ())),
    description="what it is",
)


def test_the_recorded_answers() -> None:
    (y,) = decode_result(INFO, 200, RESPONSE).outputs
    assert y.tolist() == [[2.0, 5.0]]
    with pytest.raises(InvalidInput, match=r'^the server answered with code 6: unknown input "q"$'):
        decode_result(INFO, 200, ERROR)


def test_a_request_is_what_the_other_half_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    text = np.array(b"a\0b", object)
    call = Call("m", Operation.EVALUATE, (x[None], text[None]), '{"n":1}', rows=1)
    decoded = decode_request(encode_call(call, WIDE))
    assert isinstance(decoded, GraphpipeRequest)
    back, wish = call_of(decoded, WIDE)
    assert (back.rows, back.config, list(wish)) == (1, '{"n":1}', [0, 1])
    assert [a.tolist() for a in back.inputs] == [a.tolist() for a in call.inputs]
    assert decode_request(METADATA_REQUEST) is None
    assert decode_metadata(200, encode_metadata(WIDE)) == (WIDE, True)
    monkeypatch.setattr(flatbuffer_writer, "LONGEST", 100)
    with pytest.raises(InvalidInput, match=r"the request to 'm': .* bytes"):
        encode_call(call, WIDE)


def io(name: str, shape: Any, number: int) -> TableToWrite:
    return TableToWrite([name, None, Int64s(shape), UInt8(number)])


def test_metadata_of_other_servers() -> None:
    """No name, no texts, and all nodes of a graph on both sides, some without a type."""
    nodes = [io("in:0", (3,), 10), io("op", (-1, 3), 0), io("out:0", (-1, -1), 12)]
    body = write(TableToWrite([None, None, None, None, nodes, nodes]))
    info, batched = decode_metadata(200, body, inputs=["in:0"], outputs=["out:0"])
    assert (info.name, info.inputs) == ("", (TensorInfo("in:0", (3,), "float32"),))
    assert info.outputs == (TensorInfo("out:0", (-1, -1), "bytes"),)
    assert not batched
    with pytest.raises(InvalidOutput, match=r"input 'op' is Null \(0\) \[-1, 3\]"):
        decode_metadata(200, body)
    with pytest.raises(InvalidOutput, match=r"no output 'x'; its outputs are \['in:0', 'op'"):
        decode_metadata(200, body, inputs=["in:0"], outputs=["x"])
    with pytest.raises(InvalidOutput, match=r"'x' is Float32 \(10\) \[-2\]"):
        decode_metadata(200, write(TableToWrite([None] * 4 + [[io("x", (-2,), 10)], []])))
    with pytest.raises(InvalidOutput, match="the server's metadata: the message has 2 bytes"):
        decode_metadata(200, b"ok")


@pytest.mark.slow
def test_metadata_that_share_without_end_cost_nothing() -> None:
    """20,000 tensors over one shape of 20,000 sizes, and over one name of 160 kB."""
    count = 20_000
    shape, name = Int64s([1] * count), "x" * (8 * count)
    for large, slot in ((io("large", shape, 11), 2), (io(name, (1,), 11), 0)):
        small = [io(str(i), (1,), 11) for i in range(count)]
        message = write(TableToWrite([None] * 4 + [[*small, large]]))
        *others, last = root(message).tables(4)
        target = last.vector(slot, 1)[0] - 4
        wrong = bytearray(message)
        for other in others:
            at = other._field(slot, 4)
            assert at is not None
            struct.pack_into("<I", wrong, at, target - at)
        begun = time.process_time()
        with pytest.raises(InvalidOutput):
            decode_metadata(200, bytes(wrong))
        assert time.process_time() - begun < 1.0


def outputs(*tensors: tuple[int, tuple[int, ...], str]) -> bytes:
    """An answer with these tensors of two zeros, or none: type, shape, and type of their data."""
    tables = [TableToWrite([UInt8(n), Int64s(s), np.zeros(2 * all(s), d)]) for n, s, d in tensors]
    return write(TableToWrite([tables]))


def test_outputs_beside_a_list_of_errors_are_the_answer() -> None:
    """With today's flatbuffers, the python package writes a list whose offset points nowhere."""
    tensor = TableToWrite([UInt8(11), Int64s((2,)), np.zeros(2)])
    body = write(TableToWrite([[tensor], [TableToWrite([Int64(3), "none"])]]))
    assert decode_result(INFO, 200, body).outputs[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, b"Invalid shape", InvalidInput, "status 400: Invalid shape"),
        (200, b"<html>", InvalidOutput, "the server's answer: the message has 6 bytes"),
        (200, outputs(), InvalidOutput, "gave 0 outputs; expected 1"),
        (200, outputs((10, (2,), "f4")), InvalidOutput, r"'y' is Float32 \(10\)"),
        (200, outputs((11, (3,), "f8")), InvalidOutput, "'y' has 16 bytes; expected 24"),
        (200, outputs((11, (-2,), "f8")), InvalidOutput, "sizes >= 0"),
        (200, outputs((11, (0, 2**62), "f8")), InvalidOutput, "too large"),
        (200, outputs((11, (2,), "f8"), (11, (2,), "f8")), InvalidOutput, "gave 2 outputs"),
    ],
)
def test_what_is_no_answer(status: int, body: bytes, kind: type[FarmError], text: str) -> None:
    with pytest.raises(kind, match=text):
        decode_result(INFO, status, body)


def test_every_code_has_a_meaning() -> None:
    assert set(ERRORS) == set(TypeCode)
    for code, kind in [(9, ModelFailed), (10, Unavailable), (11, TimeLimitExceeded)]:
        with pytest.raises(kind, match=f"code {code}: m"):
            decode_result(INFO, 200, encode_error(GraphpipeFault(TypeCode(code), "m")))
    with pytest.raises(UnsupportedFeature):
        decode_result(INFO, 200, encode_error(GraphpipeFault(TypeCode.REQUEST_TYPE, "m")))
    with pytest.raises(ModelFailed, match="code 77: m"):
        decode_result(INFO, 200, write(TableToWrite([[], [TableToWrite([Int64(77), "m"])]])))


SEEDS = (RESPONSE, ERROR, encode_metadata(WIDE), encode_result([0], INFO, Result((np.ones(2),))))


@given(st.data())
def test_any_answer_is_one_or_an_error(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(0, 6))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]
    for read in (lambda b: decode_result(INFO, 200, b), lambda b: decode_metadata(200, b)):
        try:
            read(bytes(body))
        except FarmError:
            continue
