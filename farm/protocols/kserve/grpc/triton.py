"""Decodes gRPC requests as Triton does: errors have its texts, and answers are always raw.

Source: NVIDIA Triton Inference Server, `src/grpc/infer_handler.cc`.
"""

from __future__ import annotations

from typing import Any

from farm.errors import FarmError, InvalidInput
from farm.protocols.kserve.grpc.codec import FIELDS, decode, infer_request
from farm.protocols.kserve.request import REQUEST_KINDS, InferRequest
from farm.protocols.kserve.triton import Sent, cut, of_request, repeated, sizes_fault

TRAVELS = REQUEST_KINDS
"""Classes that may cross to and from a reader process, in addition to farm's own."""

WIDENED = {
    **dict.fromkeys(("INT8", "INT16"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16"), "uint_contents"),
}
"""Datatypes that travel in the field of a wider one."""

OF_FIELDS = {field: datatype for datatype, field in FIELDS.items() if datatype not in WIDENED}
"""The datatype for which Triton takes each field of typed values."""


def decode_infer(body: bytes) -> tuple[InferRequest, bool]:
    """Return the request in a ModelInferRequest, and True: its answer is raw.

    Raises as `codec.decode_infer`.
    """
    return _request(decode("inference.ModelInferRequest", body)), True


def decode_streamed(body: bytes) -> tuple[str, str, InferRequest | FarmError, bool]:
    """Return what `codec.decode_streamed` does, with Triton's errors and raw answers."""
    message = decode("inference.ModelInferRequest", body)
    try:
        return message.model_name, message.id, _request(message), True
    except FarmError as error:
        return message.model_name, message.id, error, True


def _request(message: Any) -> InferRequest:
    try:
        return infer_request(message)[0]
    except InvalidInput as error:
        text = _fault_of(message)
        raise (InvalidInput(text) if text else error) from None


def _fault_of(message: Any) -> str:
    """Return Triton's text for the first fault in the tensors of a message, or "".

    Triton looks for data of all inputs first, and compares sizes then.
    """
    names, outputs = [t.name for t in message.inputs], [o.name for o in message.outputs]
    text = repeated("input", names, message.id) or repeated("output", outputs, message.id)
    if text:
        return text
    sent: list[Sent] = []
    raw = iter(message.raw_input_contents)
    for tensor in message.inputs:
        where = f"'{cut(tensor.name)}' for model '{cut(message.model_name)}'"
        typed = tensor.contents.ListFields()
        if typed and message.raw_input_contents:
            return f"contents field must not be specified when using raw_input_contents for {where}"
        if typed or tensor.HasField("contents"):
            text = _typed_fault(tensor, typed, where)
            if text:
                return text
            count = sum(len(values) for _, values in typed)
            in_elements = not message.raw_input_contents
            sent.append(Sent(tensor.name, tensor.datatype, tensor.shape, count, in_elements))
            continue
        data = next(raw, None)
        if data is None:
            return f"unable to find data for input tensor {where} in request."
        sent.append(Sent(tensor.name, tensor.datatype, tensor.shape, len(data)))
    if next(raw, None) is not None:
        # Triton ignores these; farm does not lose data silently.
        count = len(message.raw_input_contents)
        return (
            f"{of_request(message.id)}expected {len(names)} raw_input_contents but got {count} "
            f"for model '{cut(message.model_name)}'"
        )
    return sizes_fault(message.id, message.model_name, sent)


def _typed_fault(tensor: Any, typed: list[Any], where: str) -> str:
    what = f"unexpected explicit tensor data for input tensor {where}"
    for i, (field, _) in enumerate(typed):
        if i:
            return f"{what}, binary data was already supplied."
        if FIELDS.get(tensor.datatype) != field.name:
            return (
                f"{what} of type '{OF_FIELDS[field.name]}', expected datatype "
                f"'{cut(tensor.datatype)}'"
            )
    return ""
