"""HTTP requests in Triton's dialect: faults of their data have Triton's texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farm.errors import InvalidInput, InvalidRequest
from farm.protocols.kserve.rest.triton import decode_infer


def body_of(
    *inputs: dict[str, Any], tail: bytes = b"", **members: Any
) -> tuple[bytes, bytes | None]:
    """Return a body and its header for the length of the JSON."""
    text = json.dumps({"inputs": inputs, **members}).encode()
    return text + tail, b"%d" % len(text) if tail else None


def tensor(name: str = "x", datatype: str = "INT32", **members: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1, 2], "datatype": datatype, **members}


def sized(size: object) -> dict[str, Any]:
    return {"parameters": {"binary_data_size": size}}


def test_right_requests() -> None:
    body, length = body_of(tensor(data=[1, 2]), tensor("y", **sized(8)), tail=bytes(8))
    request = decode_infer("simple", "", body, length)
    assert [each.array.tolist() for each in request.inputs] == [[[1, 2]], [[0, 0]]]


SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


@pytest.mark.parametrize(
    ("inputs", "tail", "text"),
    [
        (
            [tensor(**sized(12))],
            8,
            "unexpected size for input 'x', expecting 4 additional bytes for model 'simple'",
        ),
        (
            [tensor(**sized(8)), tensor("y", **sized(8))],
            12,
            "unexpected size for input 'y', expecting 4 additional bytes for model 'simple'",
        ),
        (
            [tensor(**sized(8))],
            9,
            "unexpected additional input data for model 'simple'",
        ),
        (
            [tensor(**sized(4))],
            4,
            "[request id: <id_unknown>] input byte size mismatch for input 'x' for model 'simple'. "
            "Expected 8, got 4",
        ),
        ([tensor(**sized("8"))], 8, "Unable to parse 'binary_data_size'"),
        ([tensor()], 0, SOURCES + "no field is set"),
        (
            [tensor(data=[1, 2], **sized(8))],
            8,
            SOURCES + "set 'data' 'binary_data_size'",
        ),
        (
            [tensor(data=[[1, 2], [3]])],
            0,
            "Unable to parse 'data': shape does not match true shape of 'data' field",
        ),
        ([tensor(data=[1])], 0, "Failed to parse 'data' field: shape does not match true shape"),
        ([tensor(datatype="INT128", data=[1, 2])], 0, "invalid datatype for input x"),
        (
            [tensor(data=[1]) | {"shape": [2**62, 2**62]}],  # which costs nothing
            0,
            "Failed to parse 'data' field: shape does not match true shape",
        ),
    ],
)
def test_wrong_data(inputs: list[dict[str, Any]], tail: int, text: str) -> None:
    body, length = body_of(*inputs, tail=bytes(tail))
    with pytest.raises(InvalidInput) as caught:
        decode_infer("simple", "", body, length)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (b"twelve", "Unable to parse Inference-Header-Content-Length, got: twelve"),
        (b"-1", "inference header size should be in range (0, 14), got: -1"),
        (b"15", "inference header size should be in range (0, 14), got: 15"),
        (b"9" * 30, "inference header size should be in range (0, 14), got: " + "9" * 30),
    ],
)
def test_wrong_lengths_of_the_json(length: bytes, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_infer("simple", "", b'{"inputs": []}', length)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "JSON"),
        (b"{}", "inputs is missing"),
        (b'{"inputs": [1]}', "expected an object"),
        (b'{"inputs": [{"name": 1, "shape": [1], "datatype": "FP64"}]}', "expected a string"),
        (b'{"inputs": [{"name": "x", "shape": [-1], "datatype": "FP64"}]}', "shape of input 'x'"),
        (
            b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "parameters": 1}]}',
            "parameters of input 'x'",
        ),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": ["a"]}]}', "string"),
        (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP64", "data": 1}]}', "data of"),
    ],
)
def test_other_faults_keep_their_text(body: bytes, text: str) -> None:
    with pytest.raises((InvalidInput, InvalidRequest)) as caught:
        decode_infer("simple", "", body)
    assert text in caught.value.message
