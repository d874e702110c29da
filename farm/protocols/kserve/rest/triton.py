"""Decodes HTTP requests as `codec` does; errors have Triton's texts.

Source: NVIDIA Triton Inference Server, `src/http_server.cc`.
"""

from __future__ import annotations

from typing import Any

from farm.encoding.json_numbers import parse
from farm.errors import FarmError, InvalidInput, InvalidRequest
from farm.protocols.kserve.request import REQUEST_KINDS, InferRequest
from farm.protocols.kserve.rest import codec
from farm.protocols.kserve.tensors import DATATYPES
from farm.protocols.kserve.triton import Sent, cut, repeated, sizes_fault

TRAVELS = REQUEST_KINDS
"""Classes that may cross to and from a reader process, in addition to farm's own."""

ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)


def decode_infer(
    model: str, version: str, body: bytes | memoryview, header_length: bytes | None = None
) -> InferRequest:
    """Return the inference request in a body. Arguments and errors are those of `codec`."""
    try:
        return codec.decode_infer(model, version, body, header_length)
    except (InvalidInput, InvalidRequest) as error:
        text = _fault_of(model, body, header_length)
        raise (InvalidInput(text) if text else error) from None


def _fault_of(model: str, body: bytes | memoryview, header_length: bytes | None) -> str:
    """Return Triton's text for the first fault in a body, or ""."""
    end, text = len(body), ""
    if header_length is not None:
        end, text = _json_end(header_length, len(body))
    if text:
        return text
    try:
        message = parse(bytes(body[:end]))
    except FarmError:
        return ""
    inputs = message.get("inputs") if type(message) is dict else None
    if type(inputs) is not list or not all(map(_is_plain, inputs)):
        return ""
    return _inputs_fault(model, message.get("id"), inputs, len(body) - end)


def _json_end(header_length: bytes, size: int) -> tuple[int, str]:
    given = header_length.strip().decode("latin-1")
    digits = given.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return 0, f"Unable to parse Inference-Header-Content-Length, got: {cut(given)}"
    if len(given) > 15 or not 0 <= int(given) <= size:
        what = f"inference header size should be in range (0, {size})"
        return 0, f"{what}, got: {cut(given)}"
    return int(given), ""


def _is_plain(item: Any) -> bool:
    """Whether an input has all members of the right types, so that only its data may be wrong."""
    if type(item) is not dict or type(item.get("shape")) is not list:
        return False
    if type(item.get("name")) is not str or type(item.get("datatype")) is not str:
        return False
    if not all(type(size) is int and size >= 0 for size in item["shape"]):
        return False
    return type(item.get("parameters", {})) is dict


def _inputs_fault(model: str, request_id: Any, inputs: list[dict[str, Any]], tail: int) -> str:
    """tail: bytes behind the JSON."""
    request_id = request_id if type(request_id) is str else None
    text = repeated("input", (item["name"] for item in inputs), request_id)
    sent = []
    for item in inputs:
        if text:
            return text
        name, parameters = item["name"], item.get("parameters", {})
        size = parameters.get("binary_data_size")
        text = _source_fault(item, parameters)
        if text or "binary_data_size" not in parameters:
            text = text or _data_fault(item)
        elif type(size) is not int or size < 0:
            text = "Unable to parse 'binary_data_size'"
        elif size > tail:
            text = (
                f"unexpected size for input '{cut(name)}', expecting {size - tail} additional "
                f"bytes for model '{model}'"
            )
        else:
            tail -= size
            sent.append(Sent(name, item["datatype"], item["shape"], size))
    if text:
        return text
    if tail:
        return f"unexpected additional input data for model '{model}'"
    return sizes_fault(request_id, model, sent)


def _source_fault(item: dict[str, Any], parameters: dict[str, Any]) -> str:
    found = [
        *(["'data'"] if "data" in item else []),
        *(f"'{n}'" for n in ("binary_data_size", "shared_memory_region") if n in parameters),
    ]
    if len(found) == 1:
        return ""
    return f"{ONE_SOURCE} {'set ' + ' '.join(found) if found else 'no field is set'}"


def _data_fault(item: dict[str, Any]) -> str:
    """Return the text for an input whose data is JSON."""
    if item["datatype"] not in DATATYPES:
        return f"invalid datatype for input {cut(item['name'])}"
    if type(item.get("data")) is not list:
        return ""
    elements, most = 0, 1
    for size in item["shape"]:
        most *= size
    left = [item["data"]]
    while left:
        for part in left.pop():
            if type(part) is list:
                left.append(part)
            else:
                elements += 1
    if elements > most:
        return "Unable to parse 'data': shape does not match true shape of 'data' field"
    if elements < most:
        return "Failed to parse 'data' field: shape does not match true shape"
    return ""
