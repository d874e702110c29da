"""KServe v2 over gRPC: decodes messages into requests and encodes answers; no server.

Tensors are sent raw, all of a message in `raw_input_contents`, or typed, each in its `contents`; an
answer has the form of its request. Needs protobuf, from the extra `kserve`.
Source: Open Inference Protocol, "gRPC"; Triton's grpc_service.proto for its additions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from farm.bodies.unpacking import Refused
from farm.call import Array, Result
from farm.encoding.tensors import shaped, shown
from farm.errors import FarmError, InvalidInput, InvalidRequest, Unavailable
from farm.protocols.kserve.forms import CONTENT_TYPE, decoded_content
from farm.protocols.kserve.request import (
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
from farm.protocols.kserve.shared_memory.places import REGION
from farm.protocols.kserve.tensors import (
    BYTES,
    bytes_of,
    checked_shape,
    numpy_type,
    raw_array,
    raw_bytes,
)

DESCRIPTORS = Path(__file__).with_name("messages.binpb").read_bytes()
"""The messages of kserve.proto and grpc_health.proto, which `make proto` writes."""

TRAVELS = REQUEST_KINDS
"""Classes that may cross to and from a reader process, in addition to farm's own."""

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "BOOL": "bool_contents",
        "UINT8": "uint_contents",
        "UINT16": "uint_contents",
        "UINT32": "uint_contents",
        "UINT64": "uint64_contents",
        "INT8": "int_contents",
        "INT16": "int_contents",
        "INT32": "int_contents",
        "INT64": "int64_contents",
        "FP32": "fp32_contents",
        "FP64": "fp64_contents",
        BYTES: "bytes_contents",
    }
)
"""The field for the typed values of each datatype; datatypes without a field are sent raw only."""

INFER_REQUEST, STREAMED = "inference.ModelInferRequest", "inference.ModelStreamInferResponse"

LENGTH_DELIMITED, RAW_INPUT_CONTENTS = 2, 7
"""A wire type of protobuf, and the number of a field of ModelInferRequest."""

QUICK_BYTES, QUICK_FIELDS, QUICK_RAW_BYTES = 32 * 1024, 1000, 16 << 20
"""Limits below which a request is decoded in some milliseconds: bytes other than raw numbers,
fields, and bytes in all."""

FINAL_RESPONSE = "triton_final_response"
EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"

REUSED = "farm_reused"
"""The parameter of an answer from the record, or from another call's run."""


@cache
def messages() -> Mapping[str, Any]:
    """Return the message classes by full name, such as `inference.ModelInferRequest`.

    They have a descriptor pool of their own: other programs' modules, such as tritonclient,
    register messages of the same names in the default pool. Raises Unavailable without protobuf.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise Unavailable('gRPC needs protobuf: pip install "modelfarm[kserve]"') from None
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    classes: Mapping[str, Any] = message_factory.GetMessageClassesForFiles(
        [file.name for file in files], pool
    )
    return MappingProxyType(classes)


def _decode_error() -> Any:
    from google.protobuf.message import DecodeError

    return DecodeError


def decode(name: str, body: bytes) -> Any:
    """Decode a message of this full name. Raises InvalidRequest."""
    try:
        return messages()[name].FromString(body)
    except _decode_error():
        raise InvalidRequest(f"these bytes are not a valid {name}") from None


def encode(name: str, values: Mapping[str, Any]) -> bytes:
    """Encode a message of this full name from values in their JSON form."""
    from google.protobuf import json_format

    message = json_format.ParseDict(values, messages()[name]())
    return bytes(message.SerializeToString())


# Requests


def is_quick(body: bytes | memoryview) -> bool:
    """Whether a long ModelInferRequest is mostly raw numbers, which need no decoding."""
    at, rest, fields, end = 0, 0, 0, len(body)
    if end > QUICK_RAW_BYTES:
        return False
    texts = False
    while at < end:
        tag, at = _varint(body, at)
        if tag & 7 != LENGTH_DELIMITED:
            return False  # no field has this type
        size, at = _varint(body, at)
        fields += 1
        if tag >> 3 != RAW_INPUT_CONTENTS:
            rest += size
            if rest > QUICK_BYTES:
                return False
            texts = texts or b"BYTES" in bytes(body[at : at + size])  # BYTES are split one by one
        if fields > QUICK_FIELDS:
            return False
        at += size
    return not texts


def _varint(body: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number at a position and its end; both len(body) if there is none."""
    value = shift = 0
    while at < len(body) and shift < 64:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return len(body), len(body)


def decode_streamed(body: bytes) -> tuple[str, str, InferRequest | FarmError, bool]:
    """Return model, id and request of a streamed message, and whether its tensors are raw.

    An error may take the place of the request. Raises InvalidRequest if it is not a message at all.
    """
    message = decode(INFER_REQUEST, body)
    try:
        request, raw = infer_request(message)
    except FarmError as error:
        return message.model_name, message.id, error, False
    return message.model_name, message.id, request, raw


def decode_infer(body: bytes) -> tuple[InferRequest, bool]:
    """Return the request in a ModelInferRequest, and whether its tensors are raw.

    Raises InvalidRequest, InvalidInput; UnsupportedFeature for shared memory.
    """
    return infer_request(decode(INFER_REQUEST, body))


def start_of_numbers(body: bytes, numbers: bytes) -> int:
    """Return where the only raw contents of a ModelInferRequest begin; 0: not at its end.

    All that is before them is whole fields, so that other numbers after it change nothing else.
    """
    kind = messages()[INFER_REQUEST]
    end = kind(raw_input_contents=[numbers]).SerializeToString()
    if not numbers or not body.endswith(end):
        return 0
    try:
        before = kind.FromString(body[: -len(end)])
    except _decode_error():
        return 0
    return 0 if before.raw_input_contents else len(body) - len(numbers)


def infer_request(message: Any) -> tuple[InferRequest, bool]:
    """The same for a message that has been parsed."""
    given, raw = message.inputs, message.raw_input_contents
    if raw and len(raw) != len(given):
        _check_count(len(raw), sum(REGION not in tensor.parameters for tensor in given))
    inputs, sent = [], 0  # sent: inputs whose data is in the message
    for tensor in given:
        parameters = parameters_of(tensor.parameters)
        if parameters and REGION in parameters:
            inputs.append(_input_in_region(tensor, parameters))
        else:
            inputs.append(_input(tensor, raw[sent] if raw else None, parameters))
            sent += 1
    if raw:
        _check_count(len(raw), sent)
    outputs = message.outputs
    request = InferRequest(
        model=message.model_name,
        inputs=inputs,
        version=message.model_version,
        id=message.id or None,
        parameters=parameters_of(message.parameters),
        outputs=[RequestedOutput(o.name, parameters_of(o.parameters)) for o in outputs]
        if outputs
        else (),
    )
    return request, bool(raw) or not sent


def _check_count(found: int, expected: int) -> None:
    """Raise InvalidInput unless the message has the data of each input that it should have."""
    if found != expected:
        raise InvalidInput(
            f"raw_input_contents has {found} entries; expected {expected}, one for each input"
        )


def _input_in_region(tensor: Any, parameters: Parameters) -> InferInput:
    where = f"input {shown(tensor.name)}"
    if tensor.HasField("contents") and tensor.contents.ListFields():
        raise InvalidInput(f"{where} has typed contents and {REGION}; expected one of them")
    shape = checked_shape(tensor.shape, where)
    return InferInput(tensor.name, tensor.datatype, shape, IN_REGION, parameters)


def _input(tensor: Any, raw: bytes | None, parameters: Parameters) -> InferInput:
    name, datatype = tensor.name, tensor.datatype
    where = f"input {shown(name)}"
    shape = checked_shape(tensor.shape, where)
    if raw is None:
        array = _typed_array(tensor.contents, datatype, shape, where)
    elif tensor.HasField("contents") and tensor.contents.ListFields():
        # Some converters leave an empty `contents` beside raw bytes; that is accepted.
        raise InvalidInput(f"{where} has typed contents and raw_input_contents; expected one")
    else:
        array = raw_array(raw, datatype, shape, where)
    if CONTENT_TYPE in parameters:
        array = decoded_content(array, datatype, parameters, where)
    return InferInput(name, datatype, shape, array, parameters)


def _typed_array(contents: Any, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    dtype = numpy_type(datatype, where)
    field = FIELDS.get(datatype)
    if field is None:
        raise InvalidInput(f"{where} is {datatype}, which travels in raw_input_contents only")
    for other, _ in contents.ListFields():
        if other.name != field:
            raise InvalidInput(f"{where} has values in {other.name}; for {datatype} use {field}")
    values = getattr(contents, field)
    count = math.prod(shape)
    if len(values) != count:
        raise InvalidInput(
            f"{where} has {len(values)} values in {field}; "
            f"its shape {shown(list(shape))} has {count}"
        )
    if dtype.kind in "iu" and dtype.itemsize < 4:
        flat = np.fromiter(values, np.int64, count)
        limits = np.iinfo(dtype)
        if count and not (limits.min <= flat.min() and flat.max() <= limits.max):
            raise InvalidInput(
                f"{where} has values beyond {datatype}: expected {limits.min} to {limits.max}"
            )
        flat = flat.astype(dtype)
    else:
        flat = np.fromiter(values, dtype, count)
    return shaped(flat, shape, where)


def parameters_of(given: Any) -> Parameters:
    """Return a message's parameters as plain values; parameters without a value are left out."""
    if not given:
        return NO_PARAMETERS
    found = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(parameter, kind)
    return found


# Answers


def encode_infer(wish: Wish, result: Result, raw: bool) -> bytes:
    """Encode a model's outputs. Raises InvalidInput for values that BYTES cannot hold."""
    response = messages()["inference.ModelInferResponse"]()
    _fill(response, wish, result, raw)
    return bytes(response.SerializeToString())


def encode_streamed(wish: Wish, result: Result | None, raw: bool, final: bool) -> bytes:
    """Encode one of a request's answers in a stream; result None: there are no more."""
    message = messages()[STREAMED]()
    response = message.infer_response
    _fill(response, wish, result, raw)
    response.parameters[FINAL_RESPONSE].bool_param = final
    return bytes(message.SerializeToString())


def encode_stream_error(model: str, request_id: str, error: FarmError | Refused) -> bytes:
    """Encode the error of one request in a stream; the stream continues."""
    message = messages()[STREAMED]()
    message.error_message = error.message.encode("utf-8", "replace").decode() or "it failed"
    response = message.infer_response
    response.model_name, response.id = model, request_id
    response.parameters[FINAL_RESPONSE].bool_param = True
    return bytes(message.SerializeToString())


def _fill(response: Any, wish: Wish, result: Result | None, raw: bool) -> None:
    response.model_name, response.model_version = wish.model, wish.version
    if wish.id is not None:
        response.id = wish.id
    if result is None:
        return
    if wish.content_type:
        response.parameters[CONTENT_TYPE].string_param = wish.content_type
    if result.reused:
        response.parameters[REUSED].bool_param = True
    # An output without a typed field makes the whole answer raw: clients read one form or the
    # other.
    raw = raw or not all(w.datatype in FIELDS for w in wish.outputs)
    for wished in wish.outputs:
        if wished.place is not None and wished.place.shape is not None:
            shape = wished.place.shape
            response.outputs.add(name=wished.name, datatype=wished.datatype, shape=shape)
            if raw:
                response.raw_output_contents.append(b"")  # clients find the others by position
            continue
        array = result.outputs[wished.position]
        if wished.form is not None:
            array = presented(array, wished)
        output = response.outputs.add(
            name=wished.name, datatype=wished.datatype, shape=wish.lead + array.shape
        )
        if wished.form is not None and wished.form.content_type:
            output.parameters[CONTENT_TYPE].string_param = wished.form.content_type
        if raw:
            response.raw_output_contents.append(raw_bytes(array))
        else:
            values: list[Any] = array.reshape(-1).tolist()
            if wished.datatype == BYTES:
                values = [bytes_of(value) for value in values]
            getattr(output.contents, FIELDS[wished.datatype]).extend(values)
