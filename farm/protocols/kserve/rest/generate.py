"""KServe v2's generate extension: flat JSON objects of inputs and of outputs by name.

Source: Triton's generate extension.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from farm.call import ModelInfo, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError, InvalidInput
from farm.protocols.kserve.request import REQUEST_KINDS, InferInput, InferRequest, Wish
from farm.protocols.kserve.rest.codec import decode_object, encode_infer, error_body
from farm.protocols.kserve.rest.data import array_of_data, data_of_array
from farm.protocols.kserve.tensors import datatype_of

TRAVELS = REQUEST_KINDS
"""Classes that may cross to and from a reader process, in addition to farm's own."""


def decode_generate(model: str, version: str, body: bytes, info: ModelInfo) -> InferRequest:
    """Return the request for one evaluation in a flat object.

    Members that are not inputs are parameters, and `id` is the request's id. The members of an
    object `parameters` count as members of the outer object. Raises InvalidRequest, InvalidInput,
    UnsupportedFeature.
    """
    message = decode_object(body)
    names = [tensor.name for tensor in info.inputs]
    if type(message.get("parameters")) is dict and "parameters" not in names:
        message = message.pop("parameters") | message
    inputs = []
    for tensor in info.inputs:
        if tensor.name in message:
            inputs.append(_input(tensor, message.pop(tensor.name)))
    request_id = message.pop("id", None)
    if request_id is not None and type(request_id) is not str:
        raise InvalidInput("id is not a string")
    return InferRequest(model, inputs, version, request_id, message)


def _input(tensor: TensorInfo, value: Any) -> InferInput:
    where = f"input {tensor.name!r}"
    datatype = datatype_of(tensor.dtype)
    flat = value if type(value) is list else [value]
    while flat and all(type(part) is list for part in flat):
        flat = [element for part in flat for element in part]
    shape = _shape(tensor, len(flat))
    return InferInput(tensor.name, datatype, shape, array_of_data(flat, datatype, shape, where))


def _shape(tensor: TensorInfo, count: int) -> tuple[int, ...]:
    """Return the declared shape, with its one open size computed from `count`."""
    if tensor.shape.count(-1) > 1:
        raise InvalidInput(
            f"input {tensor.name!r} has more than one size that is open: {list(tensor.shape)}; "
            "send it to infer, which takes shapes"
        )
    if -1 not in tensor.shape:
        return tensor.shape
    known = math.prod(size for size in tensor.shape if size >= 0)
    return tuple([size if size >= 0 else count // max(known, 1) for size in tensor.shape])


def encode_generate(wish: Wish, result: Result, non_finite: NonFinite = NonFinite.LITERAL) -> bytes:
    """Encode the answer: an output of one element as that element, any other as a flat list.

    Raises as `encode_infer`.
    """
    members = [
        b'"model_name":%b,"model_version":"%b"' % (orjson.dumps(wish.model), wish.version.encode())
    ]
    if wish.id is not None:
        members.append(b'"id":%b' % orjson.dumps(wish.id))
    for output in wish.outputs:
        array = result.outputs[output.position]
        data = data_of_array(array, output.datatype, f"output {output.name!r}", non_finite)
        name = orjson.dumps(output.name)
        members.append(b"%b:%b" % (name, data[1:-1] if array.size == 1 else data))
    return b"{%b}" % b",".join(members)


def generate_event(wish: Wish, result: Result, non_finite: NonFinite) -> bytes:
    """Return the event of one answer on generate_stream. Raises as `encode_infer`."""
    return event(encode_generate(wish, result, non_finite))


def infer_event(wish: Wish, result: Result, non_finite: NonFinite) -> bytes:
    """Return the event of one answer on infer_stream. Raises as `encode_infer`."""
    # Events are text, so they cannot contain raw tensors.
    in_json = wish._replace(outputs=[o._replace(binary=False) for o in wish.outputs])
    return event(encode_infer(in_json, result, non_finite)[0])


def event(data: bytes) -> bytes:
    """Return a server-sent event; `data` must have no line breaks, as generated JSON has none."""
    return b"data: %b\n\n" % data


def error_event(error: FarmError) -> bytes:
    """Return the event that reports an error after the answer has begun."""
    return event(error_body(error.message))
