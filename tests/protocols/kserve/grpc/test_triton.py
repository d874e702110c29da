"""gRPC requests in Triton's dialect: answers are raw, and errors have Triton's texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farm.errors import FarmError, InvalidInput, InvalidRequest
from farm.protocols.kserve.grpc.codec import messages
from farm.protocols.kserve.grpc.triton import decode_infer, decode_streamed

Change = Callable[[Any], object]


def message(*changes: Change, datatype: str = "INT32", raw: bool = False) -> bytes:
    """Return a request of two inputs with two values each, changed."""
    asked = messages()["inference.ModelInferRequest"](model_name="simple", id="7")
    for name in ("INPUT0", "INPUT1"):
        tensor = asked.inputs.add(name=name, datatype=datatype, shape=[1, 2])
        if raw:
            asked.raw_input_contents.append(np.zeros(2, np.int32).tobytes())
        else:
            tensor.contents.int_contents.extend([1, 2])
    for change in changes:
        change(asked)
    return bytes(asked.SerializeToString())


def contents(asked: Any) -> Any:
    """The typed values of the first input."""
    return asked.inputs[0].contents


def repeated(asked: Any) -> None:
    asked.inputs[1].name = "INPUT0"
    asked.inputs[1].contents.int_contents.append(3)


@pytest.mark.parametrize("raw", [True, False])
def test_answers_are_raw_whatever_the_request_is(raw: bool) -> None:
    request, answers_raw = decode_infer(message(raw=raw))
    assert answers_raw
    assert [tensor.array.shape for tensor in request.inputs] == [(1, 2), (1, 2)]
    model, request_id, streamed, answers_raw = decode_streamed(message(raw=raw))
    assert (model, request_id, answers_raw) == ("simple", "7", True)
    assert not isinstance(streamed, FarmError)


@pytest.mark.parametrize(
    ("raw", "change", "text"),
    [
        (
            True,
            lambda m: contents(m).int_contents.append(1),
            "contents field must not be specified when using raw_input_contents for 'INPUT0' for "
            "model 'simple'",
        ),
        (
            True,
            lambda m: m.raw_input_contents.pop(1),
            "unable to find data for input tensor 'INPUT1' for model 'simple' in request.",
        ),
        (
            True,
            lambda m: m.raw_input_contents.__setitem__(1, bytes(4)),
            "[request id: 7] input byte size mismatch for input 'INPUT1' for model 'simple'. "
            "Expected 8, got 4",
        ),
        (
            True,
            lambda m: m.raw_input_contents.append(bytes(8)),
            "[request id: 7] expected 2 raw_input_contents but got 3 for model 'simple'",
        ),
        (
            False,
            lambda m: contents(m).int64_contents.append(1),
            "unexpected explicit tensor data for input tensor 'INPUT0' for model 'simple', binary "
            "data was already supplied.",
        ),
        (
            False,
            lambda m: setattr(m.inputs[0], "datatype", "INT64"),
            "unexpected explicit tensor data for input tensor 'INPUT0' for model 'simple' of type "
            "'INT32', expected datatype 'INT64'",
        ),
        (
            False,
            lambda m: m.inputs[0].ClearField("contents"),
            "unable to find data for input tensor 'INPUT0' for model 'simple' in request.",
        ),
        (
            False,
            lambda m: contents(m).int_contents.pop(1),
            "[request id: 7] input byte size mismatch for input 'INPUT0' for model 'simple'. "
            "Expected 8, got 4",
        ),
        (False, repeated, "[request id: 7] input 'INPUT0' already exists in request"),
    ],
)
def test_wrong_tensors(raw: bool, change: Change, text: str) -> None:
    body = message(change, raw=raw)
    with pytest.raises(InvalidInput) as caught:
        decode_infer(body)
    assert caught.value.message == text
    _, _, error, _ = decode_streamed(body)
    assert isinstance(error, InvalidInput)
    assert error.message == text


def unknown_type(asked: Any) -> None:
    asked.inputs[0].datatype = "INT128"
    asked.inputs[0].ClearField("contents")
    asked.inputs[0].contents.SetInParent()


def texts_of_two_rows(asked: Any) -> None:
    for tensor in asked.inputs:
        tensor.datatype = "BYTES"
        tensor.ClearField("contents")
        tensor.contents.bytes_contents.append(b"1")


def in_shared_memory(asked: Any) -> None:
    asked.inputs[0].parameters["shared_memory_region"].string_param = "region"


@pytest.mark.parametrize(
    ("datatype", "change", "kind", "text"),
    [
        (
            "INT8",
            lambda m: contents(m).int_contents.__setitem__(0, 300),
            InvalidInput,
            "values beyond INT8",
        ),
        ("INT32", unknown_type, InvalidInput, "'INT128'; expected one of"),
        ("INT32", texts_of_two_rows, InvalidInput, "1 values in bytes_contents"),
        ("INT32", in_shared_memory, InvalidInput, "typed contents and shared_memory_region"),
    ],
)
def test_faults_that_triton_does_not_name_keep_their_text(
    datatype: str, change: Change, kind: type[FarmError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        decode_infer(message(change, datatype=datatype))
    assert text in caught.value.message


def test_what_is_no_message() -> None:
    for decode in (decode_infer, decode_streamed):
        with pytest.raises(InvalidRequest, match="not a valid"):
            decode(b"\xff\xff")
