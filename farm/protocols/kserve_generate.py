"""KServe v2's generate extension: a flat JSON object of inputs by name, and the same of outputs.

Source: Triton's generate extension.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from farm.call import ModelInfo, Result, TensorInfo
from farm.errors import FarmError, InvalidInput
from farm.protocols.json_numbers import NonFinite
from farm.protocols.kserve import VERSION, InferInput, InferRequest, Wish
from farm.protocols.kserve_data import array_of_data, data_of_array
from farm.protocols.kserve_json import decode_object, encode_infer, error_body
from farm.protocols.kserve_tensors import datatype_of


def decode_generate(model: str, version: str, body: bytes, info: ModelInfo) -> InferRequest:
    """The request for one evaluation that a flat object is.

    Members that are no inputs are parameters, and `id` is the request's id. Those of an object
    `parameters` count as the object's own. Raises InvalidRequest, InvalidInput, UnsupportedFeature.
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
        raise InvalidInput("id is no string")
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
    """The declared shape, with the one size that it leaves open made to fit."""
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
    """The answer: an output of one element is that element, any other a flat list.

    Raises as `encode_infer`.
    """
    members = [
        b'"model_name":%b,"model_version":"%b"' % (orjson.dumps(wish.model), VERSION.encode())
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
    """The event of an answer on generate_stream. Raises as `encode_infer`."""
    return event(encode_generate(wish, result, non_finite))


def infer_event(wish: Wish, result: Result, non_finite: NonFinite) -> bytes:
    """The event of an answer on infer_stream. Raises as `encode_infer`."""
    # Events are text: raw tensors have no place in them.
    in_json = wish._replace(outputs=[o._replace(binary=False) for o in wish.outputs])
    return event(encode_infer(in_json, result, non_finite)[0])


def event(data: bytes) -> bytes:
    """A server-sent event; `data` has no line breaks, as JSON written by machines has none."""
    return b"data: %b\n\n" % data


def error_event(error: FarmError) -> bytes:
    """The event that tells of an error after the answer has begun."""
    return event(error_body(error.message))
