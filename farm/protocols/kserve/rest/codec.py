"""KServe v2 over HTTP, server half: JSON bodies with or without raw tensors behind them.

In the binary form a body is JSON, then the raw tensors in the order of `inputs`; the header
Inference-Header-Content-Length is the length of the JSON. NaN and the infinities are the bare words
that Python and tritonclient write and read.
Source: Open Inference Protocol (REST); Triton's binary tensor data and generate extensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from farm.call import ModelInfo, Result
from farm.encoding.errors import valid_text
from farm.encoding.json_numbers import NonFinite, kind_of, parse
from farm.encoding.tensors import shaped, shown
from farm.errors import FarmError, InvalidInput, InvalidRequest
from farm.protocols.kserve.forms import CONTENT_TYPE, decoded_content
from farm.protocols.kserve.request import (
    ERRORS,
    IN_REGION,
    NO_PARAMETERS,
    REQUEST_KINDS,
    InferInput,
    InferRequest,
    Parameters,
    RequestedOutput,
    Wish,
    presented,
)
from farm.protocols.kserve.rest.data import array_of_data, data_of_array
from farm.protocols.kserve.shared_memory.places import REGION
from farm.protocols.kserve.tensors import (
    BYTES,
    Raw,
    checked_shape,
    datatype_of,
    numpy_type,
    raw_array,
    raw_view,
)

TRAVELS = REQUEST_KINDS
"""Classes that may cross to and from a reader process, in addition to farm's own."""

HEADER_LENGTH = b"inference-header-content-length"
"""The header's name in lower case."""


def decode_infer(
    model: str, version: str, body: bytes | memoryview, header_length: bytes | None = None
) -> InferRequest:
    """Return the inference request in a body. model, version: from the path.

    body: a view only if raw tensors follow the JSON; arrays are then views of it. header_length:
    value of `HEADER_LENGTH`, None if it was not sent. Every tensor is checked against the received
    data. Raises InvalidRequest, InvalidInput, UnsupportedFeature.
    """
    if header_length is None:
        message, tail = parse(bytes(body)), NO_TAIL
    else:
        end = _json_length(header_length, len(body))
        message, tail = parse(bytes(body[:end])), _Tail(memoryview(body)[end:])
    if type(message) is not dict:
        raise InvalidRequest(f"the body is {kind_of(message)}; expected a JSON object")
    inputs = [_input(item, i, tail) for i, item in enumerate(_objects(message, "inputs"))]
    tail.check_end()
    return InferRequest(
        model,
        inputs,
        version,
        _id(message),
        parameters_in(message),
        [_output(o, i) for i, o in enumerate(_objects(message, "outputs", needed=False))],
    )


def decode_raw(model: str, version: str, body: bytes | memoryview, info: ModelInfo) -> InferRequest:
    """Return the request in a body of length 0 of JSON: the one input's data, and nothing else.

    A text is one element; numbers are rows, or one row if its sizes vary. The outputs are wished in
    raw form too. Raises InvalidInput if the data do not determine the input.
    """
    sizes = info.inputs[0].shape if len(info.inputs) == 1 else (-1, -1)
    if sizes.count(-1) > 1:
        raise InvalidInput(
            f"a body without JSON is for models with one input and at most one size that varies; "
            f"send model {info.name!r} its inputs with JSON"
        )
    name, datatype = info.inputs[0].name, datatype_of(info.inputs[0].dtype)
    where = f"input {shown(name)}"
    if datatype == BYTES:
        array = np.array([bytes(body)], object)
        shape: tuple[int, ...] = (1, *(abs(size) for size in sizes))
        array = shaped(array, shape, where)
    elif not body:
        raise InvalidInput("the body is empty; expected JSON, or the data of the one input")
    else:
        row = numpy_type(datatype, where).itemsize * math.prod(abs(size) for size in sizes)
        count = len(body) // row if row else 0
        varies = -1 in sizes
        shape = (1 if varies else count, *(count if size == -1 else size for size in sizes))
        array = raw_array(body, datatype, shape, where)
    return InferRequest(
        model,
        [InferInput(name, datatype, shape, array)],
        version,
        parameters={"binary_data_output": True},
    )


def _json_length(text: bytes, body_length: int) -> int:
    text = text.strip()
    if not (text.isdigit() and len(text) < 20) or int(text) > body_length:
        raise InvalidRequest(
            f"Inference-Header-Content-Length is {text[:40].decode('latin-1')!r}; expected the "
            f"length of the JSON, at most the body's {body_length} bytes"
        )
    return int(text)


class _Tail:
    """The raw tensors after the JSON, taken one after the other."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self._position = 0

    def take(self, size: Any, where: str) -> bytes | memoryview:
        left = len(self._data) - self._position
        if type(size) is not int or not 0 <= size <= left:
            raise InvalidInput(
                f"binary_data_size of {where} is {shown(size)}; expected a whole number of bytes, "
                f"{left} are left behind the JSON"
            )
        start, self._position = self._position, self._position + size
        return self._data[start : self._position]

    def check_end(self) -> None:
        left = len(self._data) - self._position
        if left:
            raise InvalidInput(f"{left} bytes are left behind the last input's data")


NO_TAIL = _Tail(b"")


def _objects(message: dict[str, Any], key: str, *, needed: bool = True) -> Sequence[Any]:
    value = message.get(key)
    if value is None and not needed:
        return ()
    if type(value) is not list:
        what = kind_of(value) if key in message else "missing"
        raise InvalidInput(f"{key} is {what}; expected a list of objects")
    for i, item in enumerate(value):
        if type(item) is not dict:
            raise InvalidInput(f"{key}[{i}] is {kind_of(item)}; expected an object")
    return value


def _id(message: dict[str, Any]) -> str | None:
    value = message.get("id")
    if value is None:
        return None
    if type(value) is not str:
        raise InvalidInput(f"id is {kind_of(value)}; expected a string")
    return _text(value, "id")


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # only the slow parser accepts it
        raise InvalidRequest(f"{where} holds half a surrogate pair") from None
    return value


def parameters_in(holder: dict[str, Any], where: str = "the request") -> Parameters:
    """Return the parameters of a JSON object of a request. Raises InvalidInput."""
    value = holder.get("parameters")
    if value is None:
        return NO_PARAMETERS
    if type(value) is not dict:
        raise InvalidInput(f"parameters of {where} is {kind_of(value)}; expected an object")
    return value


def _name(holder: dict[str, Any], where: str) -> str:
    name = holder.get("name")
    if type(name) is not str:
        what = kind_of(name) if "name" in holder else "missing"
        raise InvalidInput(f"name of {where} is {what}; expected a string")
    return name


def _input(item: dict[str, Any], index: int, tail: _Tail) -> InferInput:
    name = _name(item, f"inputs[{index}]")
    where = f"input {shown(name)}"
    datatype, sizes = item.get("datatype"), item.get("shape")
    if type(sizes) is not list:
        what = kind_of(sizes) if "shape" in item else "missing"
        raise InvalidInput(f"shape of {where} is {what}; expected a list of whole numbers")
    shape = checked_shape(sizes, where)
    if type(datatype) is not str:
        what = kind_of(datatype) if "datatype" in item else "missing"
        raise InvalidInput(f"datatype of {where} is {what}; expected a string, such as FP64")
    parameters, size = parameters_in(item, where), None
    if parameters:
        size = parameters.get("binary_data_size")
    if parameters and REGION in parameters:
        if size is not None or item.get("data") is not None:
            raise InvalidInput(f"{where} has both {REGION} and data; expected one of them")
        array = IN_REGION
    elif size is None:
        if "data" not in item:
            raise InvalidInput(f"{where} has neither data nor the parameter binary_data_size")
        array = array_of_data(item["data"], datatype, shape, where)
    elif item.get("data") is not None:
        raise InvalidInput(f"{where} has both data and binary_data_size; expected one of them")
    else:
        array = raw_array(tail.take(size, where), datatype, shape, where)
    if CONTENT_TYPE in parameters:
        array = decoded_content(array, datatype, parameters, where)
    return InferInput(name, datatype, shape, array, parameters)


def _output(item: dict[str, Any], index: int) -> RequestedOutput:
    name = _name(item, f"outputs[{index}]")
    return RequestedOutput(name, parameters_in(item, f"output {shown(name)}"))


def has_short_json(body: memoryview, header_length: bytes | None, most: int) -> bool:
    """Whether a body is raw numbers after at most `most` bytes of JSON, so quickly decoded."""
    text = (header_length or b"").strip()
    if not (text.isdigit() and len(text) < 20 and int(text) <= most):
        return False
    return b"BYTES" not in bytes(body[: int(text)])  # BYTES are split one by one


def encode_infer(
    wish: Wish, result: Result, non_finite: NonFinite = NonFinite.LITERAL
) -> tuple[bytes, int | None]:
    """Return the answer's body, and the length of its JSON if raw tensors follow it.

    Raises InvalidInput for BYTES that are not UTF-8 in a JSON answer, InvalidOutput for a
    non-finite number if `non_finite` is ERROR.
    """
    parts, tail = [_head(wish.model, wish.version)], list[Raw]()
    if wish.id is not None:
        parts += (b'"id":', orjson.dumps(wish.id), b",")
    if wish.content_type:
        parts.append(b'"parameters":{%b},' % _content_type(wish.content_type))
    parts.append(b'"outputs":[')
    for i, output in enumerate(wish.outputs):
        if i:
            parts.append(b",")
        if output.place is not None and output.place.shape is not None:
            # Without parameters: Triton's client for C++ takes any for those of a raw tensor.
            parts += (_output_head(output.name, output.datatype, output.place.shape), b"}")
            continue
        array, content_type = result.outputs[output.position], b""
        if output.form is not None:
            array, content_type = presented(array, output), _content_type(output.form.content_type)
        parts.append(_output_head(output.name, output.datatype, wish.lead + array.shape))
        if output.binary:
            raw = raw_view(array)
            size = b'"binary_data_size":%d' % len(raw)
            parts += (b',"parameters":{', content_type and content_type + b",", size, b"}}")
            tail.append(raw)
        else:
            if content_type:
                parts.append(b',"parameters":{%b}' % content_type)
            data = data_of_array(array, output.datatype, f"output {output.name!r}", non_finite)
            parts += (b',"data":', data, b"}")
    parts.append(b"]}")
    if not tail:
        return b"".join(parts), None
    length = sum(map(len, parts))
    return b"".join([*parts, *tail]), length  # the only copy of the numbers


@lru_cache(maxsize=1024)
def _head(model: str, version: str) -> bytes:
    return b'{"model_name":%b,"model_version":"%b",' % (orjson.dumps(model), version.encode())


@lru_cache(maxsize=4096)
def _output_head(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    head = {"name": name, "datatype": datatype, "shape": shape}
    return orjson.dumps(head)[:-1]


def _content_type(content_type: str) -> bytes:
    return b'"content_type":%b' % orjson.dumps(content_type) if content_type else b""


def encode_error(error: FarmError) -> tuple[int, bytes]:
    """Return status and body of the answer to an error."""
    return ERRORS[type(error)], error_body(error.message)


def error_body(message: str) -> bytes:
    """Return the body of an error, the same form for all of them."""
    return orjson.dumps({"error": valid_text(message)})


def ready_only(message: dict[str, Any]) -> bool:
    """Whether a repository's index is requested for ready models only. Raises InvalidInput."""
    ready = message.get("ready")
    if ready is not None and type(ready) is not bool:
        raise InvalidInput(f"ready is {kind_of(ready)}; expected true or false")
    return bool(ready)


def decode_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object; an empty body is an empty object. Raises InvalidRequest."""
    message = parse(body) if body and not body.isspace() else {}
    if type(message) is not dict:
        raise InvalidRequest(f"the body is {kind_of(message)}; expected a JSON object")
    return message
