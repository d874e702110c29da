"""KServe's V1 protocol: JSON bodies of `:predict`, by row (`instances`) or by column (`inputs`).

V1 has no datatypes: those of the model apply, as strictly as in V2. Shapes are those of the nested
lists. A tensor of shape (1,) may also be given as a bare number or text in each row.
Source: KServe's V1 protocol, and TensorFlow Serving's RESTful API, which it is a part of.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from farm.call import Array, ModelInfo, Result, TensorInfo
from farm.encoding.json_numbers import NonFinite, array_text, kind_of
from farm.encoding.tensors import shown
from farm.errors import InvalidInput
from farm.protocols.kserve.request import REQUEST_KINDS, InferInput, InferRequest, Wish
from farm.protocols.kserve.rest.codec import decode_object, parameters_in
from farm.protocols.kserve.rest.data import array_of_data, flat_of
from farm.protocols.kserve.tensors import BF16, BYTES, bytes_of, checked_shape, datatype_of

TRAVELS = REQUEST_KINDS
"""Classes that may cross to and from a reader process, in addition to farm's own."""

SIGNATURE = "serving_default"
"""The name of a model's only signature, the default one of TensorFlow Serving."""

BINARY_NAME = "_bytes"
"""The end of the names of outputs whose elements are always base64, as in TensorFlow Serving."""

Columns = Mapping[str, Any]


def decode_predict(
    model: str, version: str, body: bytes, info: ModelInfo
) -> tuple[InferRequest, bool]:
    """Return the request in the body of a `:predict`, and whether it is by row.

    Raises InvalidRequest, InvalidInput, UnsupportedFeature.
    """
    message = decode_object(body)
    _check_signature(message.get("signature_name"))
    by_row = "instances" in message
    if by_row == ("inputs" in message):
        raise InvalidInput(
            f"the body has {'both' if by_row else 'neither'} instances "
            f"{'and' if by_row else 'nor'} inputs; expected instances, a list with a row each, "
            "or inputs, with a tensor by name"
        )
    if by_row:
        columns = _columns_of_rows(message["instances"], info)
    else:
        columns = _named_columns(message["inputs"], info)
    inputs = [_input(tensor, columns[tensor.name], by_row) for tensor in info.inputs]
    return InferRequest(model, inputs, version, None, parameters_in(message)), by_row


def _check_signature(name: Any) -> None:
    if name not in (None, "", SIGNATURE):
        raise InvalidInput(
            f"signature_name is {shown(name)}; a model has one signature here: leave it out, "
            f"or send {SIGNATURE!r}"
        )


def _columns_of_rows(rows: Any, info: ModelInfo) -> Columns:
    if type(rows) is not list or not rows:
        what = "an empty list" if type(rows) is list else kind_of(rows)
        raise InvalidInput(f"instances is {what}; expected a list with one row at least")
    names = [tensor.name for tensor in info.inputs]
    if not names and len(rows) > 1:
        raise InvalidInput(
            f"instances has {len(rows)} rows; model {info.name!r} has no inputs: expected [{{}}]"
        )
    if len(names) == 1 and (type(rows[0]) is not dict or _is_binary(rows[0], info.inputs[0])):
        return {names[0]: rows}
    expected = set(names)
    for i, row in enumerate(rows):
        if type(row) is dict and row.keys() == expected:
            continue
        if type(row) is not dict:
            raise InvalidInput(
                f"instances[{i}] is {kind_of(row)}; model {info.name!r} expects an object with "
                f"the inputs {names}"
            )
        raise _other_names(row, info, f"instances[{i}]")
    return {name: [row[name] for row in rows] for name in names}


def _named_columns(given: Any, info: ModelInfo) -> Columns:
    names = [tensor.name for tensor in info.inputs]
    if len(names) == 1 and (type(given) is not dict or _is_binary(given, info.inputs[0])):
        return {names[0]: given}
    if type(given) is not dict:
        raise InvalidInput(
            f"inputs is {kind_of(given)}; model {info.name!r} expects an object with the inputs "
            f"{names}"
        )
    if given.keys() != set(names):
        raise _other_names(given, info, "inputs")
    return given


def _other_names(given: Columns, info: ModelInfo, where: str) -> InvalidInput:
    names = [tensor.name for tensor in info.inputs]
    surplus = next((name for name in given if name not in names), None)
    if surplus is None:
        wrong = f"no {next(name for name in names if name not in given)!r}"
    else:
        wrong = f"{shown(surplus)}, which is no input"
    return InvalidInput(f"{where} has {wrong}; model {info.name!r} expects the inputs {names}")


def _is_binary(value: Any, tensor: TensorInfo) -> bool:
    """Whether a value of the only input is base64, and not an object of inputs by name."""
    return tensor.dtype == "bytes" and tensor.name != "b64" and [*value] == ["b64"]


def _input(tensor: TensorInfo, value: Any, by_row: bool) -> InferInput:
    where = f"input {tensor.name!r}"
    datatype = datatype_of(tensor.dtype)
    nested = checked_shape(_shape_of(value), where)
    # Bare values are rows of one.
    shape = (*nested, 1) if tensor.shape == (1,) and len(nested) == 1 else nested
    if by_row and len(shape) != 1 + len(tensor.shape):
        raise InvalidInput(
            f"instances have shape {shown(list(shape[1:]))} at {where}; "
            f"expected {list(tensor.shape)}"
        )
    if datatype == BYTES:
        array = _texts(value, nested, where)
    else:
        array = array_of_data(value, datatype, nested, where)
    return InferInput(tensor.name, datatype, shape, array.reshape(shape))


def _shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of nested lists, by the first element of each; others may differ."""
    sizes = []
    while type(value) is list:
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


def _texts(value: Any, shape: tuple[int, ...], where: str) -> Array:
    flat = flat_of(value, shape, where) if shape else [value]
    if set(map(type, flat)) == {str}:  # the usual case, in half the time
        return array_of_data(flat, BYTES, (len(flat),), where).reshape(shape)
    elements = np.empty(len(flat), object)
    elements[:] = [_element(element, i, where) for i, element in enumerate(flat)]
    return elements.reshape(shape)


def _element(element: Any, position: int, where: str) -> bytes:
    if type(element) is str:
        return bytes_of(element)
    if type(element) is dict and [*element] == ["b64"] and type(element["b64"]) is str:
        try:
            return base64.b64decode(element["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidInput(
                f"b64 of {where} at position {position} is not base64: {error}"
            ) from None
    what = shown(element) if type(element) in (int, float, dict) else kind_of(element)
    raise InvalidInput(
        f"{where} has {what} at position {position}; "
        'expected a string, or {"b64": "base64"} for bytes'
    )


def encode_predict(
    wish: Wish,
    result: Result,
    non_finite: NonFinite,
    by_row: bool,
    no_inputs: bool = False,
) -> bytes:
    """Encode the answer: the only output without its name, several by name.

    by_row: `predictions`, a list with a row each; otherwise `outputs`. no_inputs: the model has
    none, so only `instances` has the row's axis. Raises InvalidOutput for a non-finite number if
    `non_finite` is ERROR.
    """
    lead = (1,) if by_row and no_inputs else wish.lead
    names = [output.name for output in wish.outputs]
    arrays = [
        _printable(result.outputs[output.position], output.name, output.datatype, lead)
        for output in wish.outputs
    ]
    key = b"predictions" if by_row else b"outputs"
    if len(names) == 1:
        return b'{"%b":%b}' % (key, _text(arrays[0], names[0], non_finite))
    if not by_row:
        return b'{"%b":%b}' % (key, _object(names, arrays, non_finite))
    columns = [_row_texts(a, name, non_finite) for a, name in zip(arrays, names, strict=True)]
    row = _template(names)
    return b'{"%b":[%b]}' % (key, b",".join([row % texts for texts in zip(*columns, strict=True)]))


def _object(names: Sequence[str], values: Sequence[Any], non_finite: NonFinite) -> bytes:
    texts = [_text(value, name, non_finite) for name, value in zip(names, values, strict=True)]
    return _template(names) % tuple(texts)


def _template(names: Sequence[str]) -> bytes:
    """Return the format of an object with these names."""
    members = [orjson.dumps(name).replace(b"%", b"%%") + b":%b" for name in names]
    return b"{%b}" % b",".join(members)


def _row_texts(array: Array, name: str, non_finite: NonFinite) -> list[bytes]:
    """Return the JSON text of each row of an output, with numbers all written at once."""
    if array.dtype.hasobject or not array.size:
        return [_text(row, name, non_finite) for row in array]
    depth = array.ndim - 1
    opening, closing = b"[" * depth, b"]" * depth
    inner = array_text(array, non_finite, where=f"output {name!r}")[depth + 1 : -depth - 1]
    return [opening + row + closing for row in inner.split(closing + b"," + opening)]


def _printable(array: Array, name: str, datatype: str, lead: tuple[int, ...]) -> Array:
    """Return an output in its shape; BF16 becomes FP32, BYTES become values for JSON."""
    if datatype == BF16:
        array = array.astype(np.float32)
    elif datatype == BYTES:
        binary = name.endswith(BINARY_NAME)
        values = np.empty(array.size, object)
        values[:] = [_printable_bytes(bytes_of(e), binary) for e in array.reshape(-1)]
        array = values.reshape(array.shape)
    return array.reshape(lead + array.shape)


def _printable_bytes(element: bytes, binary: bool) -> str | dict[str, str]:
    try:
        if not binary:
            return element.decode()
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(element).decode()}


def _text(value: Any, name: str, non_finite: NonFinite) -> bytes:
    """Return an array, or an element of one, as JSON text."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return array_text(value, non_finite, where=f"output {name!r}")
    return orjson.dumps(value.tolist() if isinstance(value, np.ndarray) else value)
