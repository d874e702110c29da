"""KServe v2 over HTTP, client half: encodes calls as requests, and decodes answers.

It accepts known deviations of other servers: `null` for a number that is not finite (MLServer,
KServe's SDK), errors as plain text or under other keys, nested data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from farm.call import Array, Call, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.errors import decode_error
from farm.encoding.json_numbers import kind_of, parse
from farm.encoding.tensors import shown
from farm.errors import FarmError, InvalidInput, InvalidOutput, InvalidRequest
from farm.protocols.kserve.rest.data import array_of_data
from farm.protocols.kserve.tensors import (
    DATATYPES,
    checked_shape,
    datatype_of,
    numpy_type,
    raw_array,
    raw_bytes,
)

HEADER_LENGTH = "Inference-Header-Content-Length"

Headers = Mapping[str, str]
"""Response headers: a mapping that ignores case, or one with names in lower case."""


def model_path(model: str, verb: str = "") -> str:
    """Return the path of a model, or of its `infer`, `ready`, `config`."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/{verb}" if verb else path


def encode_call(call: Call, info: ModelInfo) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of the request for an evaluation, with all outputs in raw form.

    call: its inputs are in the model's order and fit it; info: names and types of the tensors.
    Raises UnsupportedFeature for tensors without a KServe datatype.
    """
    inputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    lead = () if call.rows is None else (call.rows,)
    for array, tensor in zip(call.inputs, info.inputs, strict=True):
        datatype = datatype_of(tensor.dtype)
        array = _as_sent(array, tensor, datatype, lead)
        tail.append(raw_bytes(array))
        inputs.append(
            {
                "name": tensor.name,
                "shape": array.shape,
                "datatype": datatype,
                "parameters": {"binary_data_size": len(tail[-1])},
            }
        )
    text = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join([text, *tail]), headers


def _as_sent(array: Array, tensor: TensorInfo, datatype: str, lead: tuple[int, ...]) -> Array:
    """Return the array in the tensor's type, with the full shape, which a call may leave out."""
    array = np.asarray(array, numpy_type(datatype, tensor.name))
    shape = lead + tensor.shape
    return array if array.ndim == len(shape) else array.reshape(shape)


def decode_result(info: ModelInfo, status: int, headers: Headers, body: bytes) -> Result:
    """Return the result of an inference: the outputs in the model's order and types.

    The caller checks whether their shapes fit. Raises the FarmError that the answer reports, or
    InvalidOutput if the data is not an answer.
    """
    length = headers.get(HEADER_LENGTH.lower()) or headers.get(HEADER_LENGTH)
    end = len(body)
    if length is not None and status == 200:
        if not length.strip().isdigit() or int(length) > end:
            raise InvalidOutput(f"{HEADER_LENGTH} of the answer is {shown(length)}; it has {end}")
        end = int(length)
    outputs = _list(_answer(status, body[:end]), "outputs")
    try:
        arrays = _arrays(outputs, memoryview(body)[end:])
    except (InvalidInput, InvalidRequest) as error:  # errors of the checks that requests share
        raise InvalidOutput(f"in the server's answer: {error.message}") from None
    missing = [tensor.name for tensor in info.outputs if tensor.name not in arrays]
    if missing:
        raise InvalidOutput(f"the answer has no output {missing[0]!r}; it has {shown([*arrays])}")
    return Result(tuple([_typed(arrays[tensor.name], tensor) for tensor in info.outputs]))


def _arrays(outputs: Sequence[dict[str, Any]], tail: memoryview) -> dict[str, Array]:
    arrays, position = {}, 0
    for output in outputs:
        name, datatype = str(output.get("name")), output.get("datatype")
        where = f"output {shown(name)}"
        shape = checked_shape(_list(output, "shape", of=int), where)
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            data = _without_null(output.get("data"), datatype)
            arrays[name] = array_of_data(data, str(datatype), shape, where)
            continue
        if type(size) is not int or not 0 <= size <= len(tail) - position:
            raise InvalidOutput(f"binary_data_size of {where} is {shown(size)}")
        raw = tail[position : position + size]
        arrays[name] = raw_array(raw, str(datatype), shape, where)
        position += size
    return arrays


def _without_null(data: Any, datatype: Any) -> Any:
    """Replace null by NaN among numbers: some servers write all non-finite numbers as null."""
    if datatype not in ("FP16", "FP32", "FP64"):
        return data
    if type(data) is list:
        return [_without_null(part, datatype) for part in data] if _has_null(data) else data
    return math.nan if data is None else data


def _has_null(data: list[Any]) -> bool:
    return any(part is None or (type(part) is list and _has_null(part)) for part in data)


def _typed(array: Array, tensor: TensorInfo) -> Array:
    dtype = numpy_type(datatype_of(tensor.dtype), tensor.name)
    if array.dtype != dtype:
        raise InvalidOutput(f"output {tensor.name!r} is {array.dtype}; its metadata says {dtype}")
    return array


def decode_metadata(status: int, body: bytes, *, max_batch: int | None = None) -> ModelInfo:
    """Return a server's metadata of a model as farm's own description.

    max_batch: from `decode_max_batch`, None if the server has no configuration. If every tensor
    begins with -1, that is taken as the batch axis, unless max_batch is 0, which means that there
    is none. Raises the FarmError that the answer reports, or InvalidOutput.
    """
    answer = _answer(status, body)
    inputs, outputs = _tensors(answer, "inputs"), _tensors(answer, "outputs")
    if max_batch != 0 and all(t.shape[:1] == (-1,) for t in (*inputs, *outputs)):
        inputs, outputs = _rows(inputs), _rows(outputs)
    return ModelInfo(
        str(answer.get("name")),
        inputs,
        outputs,
        frozenset({Operation.EVALUATE}),
        max_batch=max(1, max_batch or 1),
    )


def _tensors(answer: dict[str, Any], key: str) -> tuple[TensorInfo, ...]:
    tensors = []
    for item in _list(answer, key):
        datatype = item.get("datatype")
        if type(item.get("name")) is not str or datatype not in DATATYPES:
            raise InvalidOutput(f"{key} of the model's metadata hold {shown(item)}")
        shape = tuple(_list(item, "shape", of=int))
        if any(type(size) is not int or size < -1 for size in shape):
            raise InvalidOutput(f"shape in the model's metadata is {shown(shape)}")
        tensors.append(TensorInfo(item["name"], shape, DATATYPES[datatype]))
    return tuple(tensors)


def _rows(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(t.name, t.shape[1:], t.dtype) for t in tensors)


def decode_max_batch(status: int, body: bytes) -> int | None:
    """Return `max_batch_size` of a model's configuration, None from servers that have none."""
    try:
        value = _answer(status, body).get("max_batch_size", 0)
    except FarmError:
        return None
    return value if type(value) is int and value >= 0 else None


def decode_models(status: int, body: bytes) -> tuple[str, ...]:
    """Return the names of the ready models in a repository's index.

    Raises the FarmError that the answer reports, or InvalidOutput.
    """
    answer = _answer(status, body, kind=list)
    rows = [row for row in answer if type(row) is dict and type(row.get("name")) is str]
    # MLServer and Triton send READY; a row without a state comes from an older server.
    return tuple(dict.fromkeys(r["name"] for r in rows if r.get("state", "READY") == "READY"))


def _list(holder: dict[str, Any], key: str, *, of: type = dict) -> list[Any]:
    value = holder.get(key)
    if type(value) is not list or not all(type(item) is of for item in value):
        what = shown(value) if key in holder else "missing"
        raise InvalidOutput(f"{key} in the server's answer is {what}")
    return value


def _answer(status: int, body: bytes, *, kind: type = dict) -> Any:
    if status != 200:
        raise decode_error(status, body)
    try:
        answer = parse(body)
    except InvalidRequest as error:
        raise InvalidOutput(f"the server's answer: {error.message}") from None
    if type(answer) is not kind:
        raise InvalidOutput(f"the server's answer is {kind_of(answer)}")
    return answer
