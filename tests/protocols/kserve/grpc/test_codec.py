"""KServe v2 over gRPC: decoding requests and encoding results, without a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from farm.call import Result
from farm.errors import FarmError, InvalidInput, InvalidRequest, Unavailable
from farm.protocols.kserve.grpc import codec as kserve_grpc
from farm.protocols.kserve.grpc.codec import (
    DESCRIPTORS,
    FIELDS,
    decode,
    decode_infer,
    encode,
    encode_infer,
    encode_stream_error,
    encode_streamed,
    messages,
    parameters_of,
)
from farm.protocols.kserve.request import IN_REGION, OutputForm, Wish, WishedOutput
from farm.protocols.kserve.shared_memory.places import Place
from farm.protocols.kserve.tensors import DATATYPES, raw_bytes
from farm.versions import VERSION
from tests.support.proto import KSERVE, generated
from tests.support.time_limits import scaled

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 1, 255],
    "UINT16": [0, 1, 2**16 - 1],
    "UINT32": [0, 1, 2**32 - 1],
    "UINT64": [0, 1, 2**64 - 1],
    "INT8": [-128, 0, 127],
    "INT16": [-(2**15), 0, 2**15 - 1],
    "INT32": [-(2**31), 0, 2**31 - 1],
    "INT64": [-(2**63), 0, 2**63 - 1],
    "FP16": [-1.5, 0.0, np.inf],
    "FP32": [-1.5, 1e-45, -np.inf],
    "FP64": [-0.0, 5e-324, np.nan],
    "BF16": [-1.5, 0.0, 3.0],
    "BYTES": [b"", b"\x00\xff", "ü".encode()],
}

TYPED = sorted(FIELDS)


def values_of(datatype: str) -> np.ndarray[Any, Any]:
    values = VALUES[datatype]
    if datatype == "BYTES":
        array = np.empty(len(values), object)
        array[:] = values
        return array
    if datatype == "BF16":
        return np.array(values, ml_dtypes.bfloat16)
    return np.array(values, DATATYPES[datatype])


def asked(
    datatype: str = "FP64",
    shape: Sequence[int] = (3,),
    *,
    raw: Sequence[bytes] = (),
    typed: dict[str, list[Any]] | None = None,
    change: Callable[[Any], None] = lambda message: None,
) -> bytes:
    """A request with one input `x`."""
    message = messages()["inference.ModelInferRequest"](model_name="m", raw_input_contents=raw)
    tensor = message.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in (typed or {}).items():
        getattr(tensor.contents, field).extend(values)
    change(message)
    return bytes(message.SerializeToString())


def with_content_type(name: str) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.inputs[0].parameters["content_type"].string_param = name

    return change


def wish_for(datatype: str) -> Wish:
    return Wish("m", "7", [WishedOutput(0, "y", datatype, False)])


def response(body: bytes) -> Any:
    return decode("inference.ModelInferResponse", body)


# Requests


@pytest.mark.parametrize(
    ("datatype", "is_raw"), [(d, True) for d in VALUES] + [(d, False) for d in TYPED]
)
def test_values_of_every_datatype_go_there_and_back(datatype: str, is_raw: bool) -> None:
    values = values_of(datatype)
    sent: dict[str, Any] = {"raw": [raw_bytes(values)]}
    if not is_raw:
        sent = {"typed": {FIELDS[datatype]: values.tolist()}}
    request, raw = decode_infer(asked(datatype, **sent))
    (tensor,) = request.inputs
    assert raw is is_raw
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, (3,))
    np.testing.assert_array_equal(tensor.array, values)
    assert tensor.array.dtype == values.dtype
    assert (request.id, request.version, request.outputs) == (None, "", ())
    assert not request.parameters
    answer = response(encode_infer(wish_for(datatype), Result((values,)), raw))
    assert (answer.model_name, answer.model_version, answer.id) == ("m", VERSION, "7")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("y", datatype, [3])
    assert output.HasField("contents") is not raw
    assert list(answer.raw_output_contents) == ([raw_bytes(values)] if raw else [])
    if not raw:
        found = np.array(list(getattr(output.contents, FIELDS[datatype])), values.dtype)
        np.testing.assert_array_equal(found, values)


def test_bytes_on_the_wire_are_read_by_the_field_numbers_of_the_protocol() -> None:
    tensor = b"\x0a\x01x\x12\x05INT32\x1a\x02\x01\x02"
    typed = tensor + b"\x2a\x04\x12\x02\x05\x06"
    head = b"\x0a\x01m\x12\x011\x1a\x02id\x22\x07\x0a\x01p\x12\x02\x10\x03"
    wanted = b"\x32\x03\x0a\x01y"
    request, raw = decode_infer(head + b"\x2a" + bytes([len(typed)]) + typed + wanted)
    assert not raw
    assert (request.model, request.version, request.id) == ("m", "1", "id")
    assert request.parameters == {"p": 3}
    assert [output.name for output in request.outputs] == ["y"]
    assert request.inputs[0].array.tolist() == [[5, 6]]
    raw_body = head + b"\x2a" + bytes([len(tensor)]) + tensor + b"\x3a\x08\x05\0\0\0\x06\0\0\0"
    request, raw = decode_infer(raw_body)
    assert raw
    assert request.inputs[0].array.tolist() == [[5, 6]]


def test_empty_contents_are_nothing() -> None:
    values = np.arange(3.0)
    body = asked(raw=[values.tobytes()], change=lambda m: m.inputs[0].contents.SetInParent())
    request, raw = decode_infer(body)
    assert raw
    assert request.inputs[0].array.tolist() == values.tolist()
    assert decode_infer(asked(shape=[0]))[0].inputs[0].array.shape == (0,)


def test_parameters_of_every_kind() -> None:
    message = messages()["inference.ModelInferRequest"]()
    message.parameters["b"].bool_param = True
    message.parameters["i"].int64_param = -3
    message.parameters["s"].string_param = "ü"
    message.parameters["d"].double_param = 0.5
    message.parameters["u"].uint64_param = 2**64 - 1
    message.parameters["none"].SetInParent()
    found = parameters_of(message.parameters)
    assert found == {"b": True, "i": -3, "s": "ü", "d": 0.5, "u": 2**64 - 1}
    assert type(found["b"]) is bool


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (b"\xff\xff", InvalidRequest, "not a valid inference.ModelInferRequest"),
        (b"\x0a\x01\xff", InvalidRequest, "not a valid inference.ModelInferRequest"),
        (asked(raw=[b"", b""]), InvalidInput, "2 entries; expected 1"),
        (asked(raw=[bytes(16)]), InvalidInput, "16 bytes; expected 24"),
        (asked(shape=[-1], raw=[bytes(8)]), InvalidInput, "holds -1"),
        (asked("FP99", raw=[bytes(24)]), InvalidInput, "'FP99'"),
        (asked(), InvalidInput, "0 values in fp64_contents; its shape [3] has 3"),
        (
            asked(shape=[10**12, 4], typed={"fp64_contents": [1.0] * 8}),
            InvalidInput,
            "8 values in fp64_contents",
        ),
        (asked(typed={"fp32_contents": [1, 2, 3]}), InvalidInput, "for FP64 use fp64_contents"),
        (
            asked(typed={"fp64_contents": [1, 2, 3], "int_contents": [1]}),
            InvalidInput,
            "values in int_contents",
        ),
        (
            asked(raw=[bytes(24)], typed={"fp64_contents": [1, 2, 3]}),
            InvalidInput,
            "typed contents and raw_input_contents",
        ),
        (
            asked("FP16", typed={"fp32_contents": [1, 2, 3]}),
            InvalidInput,
            "raw_input_contents only",
        ),
        (asked("BF16"), InvalidInput, "raw_input_contents only"),
        (asked("INT8", typed={"int_contents": [0, 300, 0]}), InvalidInput, "expected -128 to 127"),
        (asked("INT16", typed={"int_contents": [0, -40000, 0]}), InvalidInput, "expected -32768"),
        (asked("UINT8", typed={"uint_contents": [256, 0, 0]}), InvalidInput, "expected 0 to 255"),
        (
            asked(raw=[bytes(24)], change=with_content_type("dates")),
            InvalidInput,
            "content_type of input 'x' is 'dates'; expected one of",
        ),
    ],
)
def test_what_does_not_fit_is_refused(body: bytes, error: type[FarmError], text: str) -> None:
    with pytest.raises(error) as caught:
        decode_infer(body)
    assert text in caught.value.message


def place(parameters: Any, byte_size: int = 16) -> None:
    parameters["shared_memory_region"].string_param = "r"
    parameters["shared_memory_byte_size"].int64_param = byte_size


def two_inputs(*placed: int) -> Any:
    """A message with two inputs of two numbers; those that are not in a region are raw."""
    message = messages()["inference.ModelInferRequest"](model_name="m")
    for i in range(2):
        tensor = message.inputs.add(name=f"x{i}", datatype="FP64", shape=[2])
        if i in placed:
            place(tensor.parameters)
        else:
            message.raw_input_contents.append(np.full(2, float(i)).tobytes())
    return message


@pytest.mark.parametrize("placed", [(0,), (1,), (0, 1)])
def test_raw_contents_are_those_of_the_inputs_that_are_in_no_region(
    placed: tuple[int, ...],
) -> None:
    request, raw = decode_infer(two_inputs(*placed).SerializeToString())
    assert raw
    for i, tensor in enumerate(request.inputs):
        if i in placed:
            assert tensor.array is IN_REGION
            assert tensor.parameters["shared_memory_region"] == "r"
        else:
            assert tensor.array.tolist() == [i, i]


@pytest.mark.parametrize("count", [0, 2, 3])
def test_raw_contents_of_another_number_are_refused(count: int) -> None:
    message = two_inputs(0)
    del message.raw_input_contents[:]
    message.raw_input_contents.extend([bytes(16)] * count)
    expected = "values in fp64_contents" if not count else f"has {count} entries; expected 1"
    with pytest.raises(InvalidInput, match=expected):
        decode_infer(message.SerializeToString())
    message = two_inputs(0, 1)
    message.inputs[1].contents.fp64_contents.append(1.0)
    with pytest.raises(InvalidInput, match="'x1' has typed contents and shared_memory_region"):
        decode_infer(message.SerializeToString())


@pytest.mark.parametrize("raw", [True, False])
def test_an_output_in_a_region_has_no_data(raw: bool) -> None:
    outputs = [
        WishedOutput(0, "y", "FP64", False, Place("r", 8, 16, (1, 2))),
        WishedOutput(1, "z", "FP64", False),
    ]
    arrays = Result((np.empty(0, np.uint8), np.array([5.0])))
    body = encode_infer(Wish("m", None, outputs), arrays, raw)
    answer = decode("inference.ModelInferResponse", body)
    y, z = answer.outputs
    assert (y.name, y.datatype, list(y.shape)) == ("y", "FP64", [1, 2])
    assert not y.parameters
    assert not y.HasField("contents")
    assert list(z.shape) == [1]
    if raw:  # clients find the bytes of an output by its position
        assert list(answer.raw_output_contents) == [b"", np.array([5.0]).tobytes()]
    else:
        assert list(z.contents.fp64_contents) == [5.0]


# Answers


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_a_type_without_a_field_makes_the_whole_answer_raw(datatype: str) -> None:
    outputs = [WishedOutput(0, "y", datatype, False), WishedOutput(1, "z", "FP64", False)]
    result = Result((values_of(datatype), np.ones(2)))
    answer = response(encode_infer(Wish("m", None, outputs, lead=(1,)), result, raw=False))
    assert len(answer.raw_output_contents) == 2
    assert not any(output.HasField("contents") for output in answer.outputs)
    assert [list(output.shape) for output in answer.outputs] == [[1, 3], [1, 2]]
    assert answer.id == ""
    texts = np.array(["ü", b"b"], object)
    answer = response(encode_infer(wish_for("BYTES"), Result((texts,)), raw=False))
    assert list(answer.outputs[0].contents.bytes_contents) == ["ü".encode(), b"b"]


# Streams


def test_streamed_answers_say_whether_they_are_the_last() -> None:
    wish = wish_for("FP64")
    for final in (False, True):
        body = encode_streamed(wish, Result((np.ones(3),)), raw=True, final=final)
        message = decode("inference.ModelStreamInferResponse", body)
        assert message.error_message == ""
        assert message.infer_response.id == "7"
        assert len(message.infer_response.raw_output_contents) == 1
        assert message.infer_response.parameters["triton_final_response"].bool_param is final
    body = encode_streamed(wish, None, raw=True, final=True)  # there is no answer
    answer = decode("inference.ModelStreamInferResponse", body).infer_response
    assert (answer.model_name, answer.id, len(answer.outputs)) == ("m", "7", 0)
    assert answer.parameters["triton_final_response"].bool_param


def test_an_error_in_a_stream_has_its_request_and_is_never_without_words() -> None:
    for text, expected in [("no \ud800", "no ?"), ("", "it failed")]:
        body = encode_stream_error("m", "7", InvalidInput(text))
        message = decode("inference.ModelStreamInferResponse", body)
        assert message.error_message == expected
        assert (message.infer_response.model_name, message.infer_response.id) == ("m", "7")


# Other messages


def test_messages_are_filled_from_plain_data() -> None:
    body = encode(
        "inference.RepositoryIndexResponse", {"models": [{"name": "m", "state": "READY"}]}
    )
    (row,) = decode("inference.RepositoryIndexResponse", body).models
    assert (row.name, row.state, row.reason) == ("m", "READY", "")
    assert encode("grpc.health.v1.HealthCheckResponse", {"status": "SERVING"}) == b"\x08\x01"


TRITONS, OURS = "import tritonclient.grpc", "from farm.protocols.kserve.grpc.codec import messages"
USE = (
    "messages()['inference.ModelInferRequest'](model_name='m');"
    "messages()['inference.ModelConfig'](name='m');"
    "tritonclient.grpc.service_pb2.ModelInferRequest(model_name='m')"
)


@pytest.mark.parametrize(
    "order",
    # Tests of Triton's clients use ours after theirs, too.
    [pytest.param((TRITONS, OURS), marks=pytest.mark.slow), (OURS, TRITONS)],
    ids=["after", "before"],
)
def test_tritonclient_and_we_live_in_one_process(order: tuple[str, str]) -> None:
    first, second = order
    early = "messages()" if first == OURS else ""
    program = "\n".join([first, early, second, USE])
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=scaled(60.0))


def test_without_protobuf_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    kserve_grpc.messages.cache_clear()
    try:
        with pytest.raises(Unavailable, match=r'pip install "modelfarm\[kserve\]"'):
            messages()
    finally:
        kserve_grpc.messages.cache_clear()


# Content types


@pytest.mark.parametrize("raw", [True, False])
def test_base64_both_ways(raw: bool) -> None:
    sent: dict[str, Any] = {"typed": {"bytes_contents": [b"/w=="]}}
    if raw:
        sent = {"raw": [b"\4\0\0\0/w=="]}
    request, _ = decode_infer(asked("BYTES", (1,), change=with_content_type("base64"), **sent))
    assert request.inputs[0].array.tolist() == [b"\xff"]
    output = WishedOutput(0, "y", "BYTES", False, form=OutputForm("base64"))
    array = np.array([b"\xff"], object)
    told = messages()["inference.ModelInferResponse"].FromString(
        encode_infer(Wish("m", None, [output], "pd"), Result((array,)), raw)
    )
    assert told.parameters["content_type"].string_param == "pd"
    assert told.outputs[0].parameters["content_type"].string_param == "base64"
    if raw:
        assert list(told.raw_output_contents) == [b"\4\0\0\0/w=="]
    else:
        assert list(told.outputs[0].contents.bytes_contents) == [b"/w=="]


def test_the_descriptors_are_those_of_the_proto_files() -> None:
    assert generated(KSERVE) == DESCRIPTORS, "run: make proto"
