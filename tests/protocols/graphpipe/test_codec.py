"""GraphPipe, server half: recorded messages, every decision and every code, hostile requests."""

from __future__ import annotations

import json
import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.call import ModelInfo, Operation, Result, TensorInfo
from farm.errors import (
    DeadlineExceeded,
    FarmError,
    InvalidRequest,
    ModelFailed,
    Overloaded,
)
from farm.protocols.graphpipe import flatbuffer_writer
from farm.protocols.graphpipe.codec import (
    ERRORS,
    GraphpipeRequest,
    call_of,
    decode_request,
    encode_error,
    encode_metadata,
    encode_result,
    metadata_json,
)
from farm.protocols.graphpipe.flatbuffer import root
from farm.protocols.graphpipe.flatbuffer_writer import Int64s, TableToWrite, UInt8, write
from farm.protocols.graphpipe.tensors import (
    NUMBERS,
    GraphpipeFault,
    TypeCode,
    number_of,
    tensor_record,
)
from tests.support.graphpipe_bytes import ERROR, INFER_REQUEST, METADATA_REQUEST, WITH_CONFIG

INFO = ModelInfo("m", (TensorInfo("x", (2,)),), (TensorInfo("y", (2,)), TensorInfo("s", ())))
TWO = ModelInfo("two", (TensorInfo("a", (2,)), TensorInfo("b", (1,))), INFO.outputs)


def tensor(array: Any, dtype: str = "float64", shape: Any = None, **fields: Any) -> TableToWrite:
    """Return a Tensor of this array; fields replace its shape, type or data."""
    number = fields.get("type", NUMBERS[dtype])
    if dtype == "bytes":
        shape = (len(array),) if shape is None else shape
        return TableToWrite([UInt8(number), Int64s(shape), None, list(array)])
    array = np.asarray(array)
    shape = array.shape if shape is None else shape
    return TableToWrite([UInt8(number), Int64s(shape), fields.get("data", array.astype(dtype))])


def request(
    *tensors: TableToWrite,
    inputs: Any = None,
    outputs: Any = None,
    config: Any = None,
    kind: int = 1,
) -> bytes:
    return write(
        TableToWrite([UInt8(kind), TableToWrite([config, inputs, list(tensors), outputs])])
    )


A, B = tensor([1, 2]), tensor([3])


def asked(message: bytes, info: ModelInfo = INFO) -> tuple[Any, Any]:
    decoded = decode_request(message)
    assert isinstance(decoded, GraphpipeRequest)
    return call_of(decoded, info)


def code_of(message: bytes, info: ModelInfo = INFO) -> tuple[int, str]:
    """Return code and text with which a request is refused."""
    try:
        asked(message, info)
    except (FarmError, GraphpipeFault) as error:
        table = next(root(encode_error(error)).tables(1))
        return table.int64(0), table.text(1)
    raise AssertionError("it was accepted")


def test_the_recorded_requests() -> None:
    assert decode_request(METADATA_REQUEST) is None
    call, wish = asked(WITH_CONFIG)
    assert (call.model, call.operation, call.config, call.rows) == ("m", "evaluate", "{}", 1)
    assert call.inputs[0].tolist() == [[1.0, 2.5]]
    assert list(wish) == [0]
    with pytest.raises(InvalidRequest, match="config 'cfg' is not a JSON object"):
        decode_request(INFER_REQUEST)


def test_every_error_has_a_code() -> None:
    assert encode_error(GraphpipeFault(TypeCode.INPUT, 'unknown input "q"')) == ERROR
    assert set(ERRORS) == set(FarmError.__subclasses__())
    for kind, code in ((Overloaded, 10), (DeadlineExceeded, 11), (ModelFailed, 9)):
        answer = root(encode_error(kind("too many")))
        assert answer.vector(0, 4)[1] == 0
        (error,) = answer.tables(1)
        assert (error.int64(0), error.text(1)) == (code, "too many")


def test_the_rank_decides() -> None:
    assert asked(request(tensor([1, 2])))[0].rows is None
    assert asked(request(tensor([[1, 2]] * 3)))[0].rows == 3
    assert asked(request(tensor([], shape=(0, 2))))[0].rows == 0
    call = asked(request(tensor([[1, 2]] * 3), tensor([[1]] * 3)), TWO)[0]
    assert [x.shape for x in call.inputs] == [(3, 2), (3, 1)]
    scalar = ModelInfo("s", (TensorInfo("x", ()),), ())
    assert asked(request(tensor(3.0)), scalar)[0].inputs[0].shape == ()


def test_names_and_what_stands_for_them() -> None:
    def order(*tensors: TableToWrite, inputs: Any) -> list[Any]:
        return [x.tolist() for x in asked(request(*tensors, inputs=inputs), TWO)[0].inputs]

    assert order(B, A, inputs=["b", "a"]) == [[1, 2], [3]]
    for names in (None, [], ["", "b"], ["", ""], ["a", "b", "a", "b"]):
        assert order(A, B, inputs=names) == [[1, 2], [3]]
    for names in (["a"], ["a", "b", "a"], ["a", "b", "b"], ["a", "b", "b", "a"], ["a", "a", "b"]):
        with pytest.raises(GraphpipeFault, match="expected one for each of 2 input tensors") as e:
            order(A, B, inputs=names)
        assert e.value.code is TypeCode.COUNT


def test_a_tensor_has_numbers_or_texts() -> None:
    numbers, texts = TensorInfo("x", (2,)), TensorInfo("x", (2,), "bytes")
    both = (Int64s((2,)), np.ones(2), [b"a", b"b"])
    for wanted in (numbers, texts):
        got = TableToWrite([UInt8(number_of(wanted)), *both])
        with pytest.raises(GraphpipeFault, match="'x' has both data and string_val"):
            asked(request(got), ModelInfo("m", (wanted,), ()))


def test_outputs_are_those_asked_for_in_that_order() -> None:
    for names in (None, [], [""], ["", ""], ["", "s"]):
        assert list(asked(request(A, outputs=names))[1]) == [0, 1]
    assert list(asked(request(A, outputs=["s"]))[1]) == [1]
    assert list(asked(request(A, outputs=["s", "y", "s"]))[1]) == [1, 0, 1]


def test_config_is_a_json_object() -> None:
    for text, config in [("", "{}"), ('{"b": 1, "a": [2]}', '{"a":[2],"b":1}')]:
        assert asked(request(tensor([1, 2]), config=text))[0].config == config
    wrong: tuple[str | bytes, ...] = ("null", "[]", "1", "{", "{} {}", "[" * 100_000, b"\xff")
    for text_or_bytes in wrong:
        assert code_of(request(tensor([1, 2]), config=text_or_bytes))[0] == TypeCode.MALFORMED


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (b"", 1, "the message has 0 bytes"),
        (request(kind=0), 2, r"request type 0; expected 1 \(InferRequest\) or 2"),
        (request(kind=3), 2, "request type 3"),
        (write(TableToWrite([UInt8(1)])), 1, "type InferRequest but contains none"),
        (write(TableToWrite([])), 2, "request type 0"),
        (request(), 3, r"0 input tensors; model 'm' expects 1: \['x'\]"),
        (request(tensor([1, 2]), tensor([1, 2])), 3, "2 input tensors"),
        (request(tensor([1, 2]), inputs=["x", "y"]), 3, r"2 names \['x', 'y'\]; expected one"),
        (request(tensor([1, 2], "float32")), 4, r"'x' has type Float32 \(10\); .*Float64 \(11\)"),
        (request(tensor([1, 2], type=0)), 4, "Null"),
        (request(tensor([1, 2], type=13)), 4, "type 13"),
        (request(tensor([b"", b""], "bytes")), 4, "String"),
        (request(tensor([1, 2, 3])), 5, r"shape \[3\]; model 'm' expects \[2\], or \[-1, 2\]"),
        (request(tensor([1, 2], shape=(2, 2))), 5, "16 bytes; expected 32"),
        (request(tensor([1, 2], shape=(1, 2), data=np.zeros(15, np.uint8))), 5, "15 bytes"),
        (request(tensor([1, 2], data=np.zeros(17, np.uint8))), 5, "17 bytes; expected 16"),
        (request(tensor([1, 2], data=None)), 5, "0 bytes; expected 16"),
        (request(tensor([1, 2], shape=(-1, 2))), 5, "sizes >= 0"),
        (request(tensor([1, 2], shape=(-(2**63), 2))), 5, "sizes >= 0"),
        (request(tensor([], shape=(2**62, 2))), 5, f"expected {2**66}"),
        (request(tensor([1, 2], shape=(1,) * 33)), 5, "33 entries; expected 32 at most"),
        (request(tensor([1, 2]), inputs=["q"]), 6, "unknown input 'q'; model 'm' has the inputs"),
        (request(tensor([1, 2]), outputs=["q"]), 7, "unknown output 'q'"),
        (request(tensor([1, 2]), outputs=["y", "s", ""]), 7, "unknown output ''"),
        (request(tensor([1, 2]), outputs=["y"] * 4101), 8, "4101 names of outputs; expected 4100"),
        (request(tensor([1, 2]), inputs=["x"] * 4101), 8, "4101 names of inputs"),
        (request(tensor([1, 2]), inputs=[b"\xff"]), 1, "not UTF-8"),
    ],
)
def test_each_code(message: bytes, code: int, text: str) -> None:
    found, told = code_of(message)
    assert found == code, told
    assert re.search(text, told), told


STREAMS = ModelInfo("m", INFO.inputs, INFO.outputs, frozenset({Operation.STREAM}))
FLAGS = ModelInfo("m", (TensorInfo("x", (2,), "bool"),), ())


@pytest.mark.parametrize(
    ("message", "info", "code", "text"),
    [
        (request(A, B, inputs=["a"]), TWO, 3, "1 names ['a']; expected one"),
        (request(A, B, inputs=["a", "a"]), TWO, 6, "input 'a' is given more than once"),
        (request(A, B, inputs=["b", ""]), TWO, 6, "input 'b' is given more than once"),
        (request(tensor([[1, 2]] * 3), B), TWO, 5, "the shapes 'a' [3, 2], 'b' [1]; expected"),
        (request(A), STREAMS, 2, "it has no evaluate"),
        (request(A), FLAGS, 4, "'x' is bool; GraphPipe has uint8"),
    ],
)
def test_codes_of_other_models(message: bytes, info: ModelInfo, code: int, text: str) -> None:
    found, told = code_of(message, info)
    assert (found, text in told) == (code, True), told


@pytest.mark.parametrize("dtype", list(NUMBERS))
def test_all_types_there_and_back(dtype: str) -> None:
    info = ModelInfo("m", (TensorInfo("x", (3,), dtype),), (TensorInfo("y", (3,), dtype),))
    texts = dtype == "bytes"
    x = np.array([b"", b"\xff\0b", b"abc\0"] if texts else [1, 0, 100], object)
    x = x if texts else x.astype(dtype)
    call, wish = asked(request(tensor(x, dtype)), info)
    assert call.inputs[0].dtype == x.dtype
    assert call.inputs[0].tolist() == x.tolist()
    back = request(*root_tensors(encode_result(wish, info, Result(call.inputs))))
    assert asked(back, info)[0].inputs[0].tolist() == x.tolist()


def root_tensors(answer: bytes) -> list[TableToWrite]:
    """Return the tensors of an answer in the form of a request."""
    found = []
    for table in root(answer).tables(0):
        start, count = table.vector(2, 1)
        data = np.frombuffer(answer, np.uint8, count, start) if count else None
        strings: Any = table.strings(3, most_bytes=10**6) or None
        found.append(TableToWrite([UInt8(table.uint8(0)), Int64s(table.int64s(1)), data, strings]))
    return found


def test_an_answer() -> None:
    result = Result((np.array([2.0, 5.0]), np.array(7.0)))
    answer = root(encode_result([1, 0, 1], INFO, result))
    tensors = list(answer.tables(0))
    assert [t.int64s(1) for t in tensors] == [(1,), (2,), (1,)]
    assert [t.vector(2, 1)[1] for t in tensors] == [8, 16, 8]
    assert [t.vector(2, 1)[0] % 8 for t in tensors] == [0, 0, 0]
    assert answer.vector(1, 4)[1] == 0
    empty = ModelInfo("m", (), (TensorInfo("y", (-1,)),))
    (nothing,) = root(encode_result([0], empty, Result((np.empty(0),)))).tables(0)
    assert (nothing.int64s(1), nothing.vector(2, 1)[0] > 0) == ((0,), True)


@pytest.mark.parametrize("dtype", [t for t in NUMBERS if t != "bytes"])
def test_one_small_tensor_is_written_as_any_other(dtype: str) -> None:
    """By a faster way, which reuses the bytes before the data from an earlier answer."""
    for shape, declared in [((3,), (3,)), ((2, 3), (-1, 3)), ((0,), (0,)), ((), ())]:
        info = ModelInfo("m", (), (TensorInfo("y", declared, dtype),))
        for first in (1, 2):
            y = np.full(shape, first, dtype)
            long_way = write(TableToWrite([[tensor_record(y, info.outputs[0])]]))
            assert encode_result(range(1), info, Result((y,))) == long_way
            other = y.astype(y.dtype.newbyteorder(">"))
            assert encode_result(range(1), info, Result((other,))) == long_way


def test_an_answer_too_large_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatbuffer_writer, "LONGEST", 1000)
    with pytest.raises(
        GraphpipeFault, match=r"the answer: \d+ bytes; the offsets of a flatbuffer reach"
    ):
        encode_result([0], INFO, Result((np.zeros(2000), np.zeros(()))))


def test_metadata_as_flatbuffer_and_json_say_the_same() -> None:
    info = ModelInfo(
        "grüß",
        (TensorInfo("x", (2, -1), "float32"),),
        (TensorInfo("y", (), "bytes"),),
        description="what it is",
    )
    table, told = root(encode_metadata(info)), json.loads(metadata_json(info))
    assert [table.text(i) for i in (0, 2, 3)] == ["grüß", "farm", "what it is"]
    assert [told[k] for k in ("Name", "Server", "Description")] == ["grüß", "farm", "what it is"]
    assert table.text(1) == told["Version"]
    for slot, key in ((4, "Inputs"), (5, "Outputs")):
        (tensor,) = table.tables(slot)
        assert told[key] == [
            {
                "Name": tensor.text(0),
                "Description": tensor.text(1),
                "Shape": list(tensor.int64s(2)),
                "Type": tensor.uint8(3),
            }
        ]
    assert told["Inputs"][0] == {"Name": "x", "Description": "", "Shape": [-1, 2, -1], "Type": 10}
    assert told["Outputs"][0]["Shape"] == [-1]
    with pytest.raises(GraphpipeFault, match="'x' is bool; GraphPipe has uint8"):
        encode_metadata(FLAGS)


# --- hostile messages ----------------------------------------------------------------------------

TEXTS = ModelInfo("texts", (TensorInfo("t", (-1,), "bytes"),), INFO.outputs)
MANY = ModelInfo("many", tuple(TensorInfo(f"x{i}", (-1,)) for i in range(400)), ())
MATRIX = ModelInfo("matrix", (TensorInfo("x", (-1, -1)),), ())
EMPTY = ModelInfo("empty", (TensorInfo("x", (0,)),), ())


def claiming_strings() -> bytes:
    """Strings that overlap: 25,000 of 100 kB in a message of 200 kB."""
    count, size = 25_000, 100_000
    message = request(tensor([b"%d" % i for i in range(count)], "bytes"))
    inner = root(message).table(1)
    assert inner is not None
    start, found = next(inner.tables(2)).vector(3, 4)
    assert found == count
    first = start + struct.unpack_from("<I", message, start)[0]
    wrong = bytearray(message)
    for at in range(first, len(wrong) - size - 4, 4):
        struct.pack_into("<I", wrong, at, size)
    return bytes(wrong)


LONG = b"x" * 100_000
ONE = tensor([1, 2])
HOSTILE: dict[str, Callable[[], tuple[bytes, ModelInfo, int]]] = {
    "a tensor shared 50,000 times": lambda: (request(*[ONE] * 50_000), INFO, 3),
    "a name shared 50,000 times": lambda: (request(ONE, inputs=["x"] * 50_000), INFO, 8),
    "an output shared 50,000 times": lambda: (request(ONE, outputs=["y"] * 50_000), INFO, 8),
    "a long name shared": lambda: (request(ONE, outputs=[LONG] * 4000), INFO, 8),
    "a long string shared": lambda: (request(tensor([LONG] * 50_000, "bytes")), TEXTS, 8),
    "strings over one another": lambda: (claiming_strings(), TEXTS, 8),
    "a long tensor shared": lambda: (request(*[tensor(np.zeros(10_000))] * 400), MANY, 8),
    "2^32 x 2^32": lambda: (request(tensor([], shape=(2**32, 2**32))), INFO, 5),
    "2^62 x 4": lambda: (request(tensor([1, 2], shape=(2**62, 4))), MATRIX, 5),
    "0 x 2^62": lambda: (request(tensor([], shape=(0, 2**62))), MATRIX, 5),
    "2^62 rows of 0": lambda: (request(tensor([], shape=(2**62, 0))), EMPTY, 5),
    "2^62 strings": lambda: (request(tensor([b""], "bytes", shape=(2**62,))), TEXTS, 5),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_harm_is_refused_soon_and_costs_no_memory(name: str) -> None:
    message, info, code = HOSTILE[name]()
    begun = time.process_time()
    assert code_of(message, info)[0] == code
    assert time.process_time() - begun < 1.0
    tracemalloc.start()
    try:
        code_of(message, info)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(message) + 20 * 2**20


def test_sharing_within_reason_is_legal() -> None:
    strings = asked(request(tensor([b"category"] * 1000, "bytes")), TEXTS)[0].inputs[0]
    assert strings.tolist() == [b"category"] * 1000
    arrays = asked(request(*[tensor([1, 2, 3])] * 400), MANY)[0].inputs
    assert [x.tolist() for x in arrays] == [[1, 2, 3]] * 400


def answered(message: bytes, info: ModelInfo) -> None:
    """The message is a request, or is refused as the protocol requires."""
    try:
        decoded = decode_request(message)
        if decoded is not None:
            call, _ = call_of(decoded, info)
            assert all(x.nbytes <= len(message) for x in call.inputs)
    except (FarmError, GraphpipeFault) as error:
        encode_error(error)


SEEDS = (
    WITH_CONFIG,
    request(tensor([1, 2]), tensor([3]), inputs=["a", "b"], outputs=["y", "s"], config="{}"),
    request(tensor([b"a", b"bc"], "bytes")),
)


@given(st.data())
def test_any_few_changed_bytes(data: st.DataObject) -> None:
    wrong = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(wrong) - 1))
        wrong[at] = data.draw(st.integers(0, 255))
    for info in (INFO, TWO, TEXTS):
        answered(bytes(wrong), info)


def test_every_cut() -> None:
    for message in SEEDS:
        for end in range(len(message)):
            for info in (INFO, TWO, TEXTS):
                answered(message[:end], info)
