"""UM-Bridge protocol 1.0, server half: decodes requests, encodes results.

The client half is `client.py`. Vectors in messages are flat: a tensor of shape (8, 8) is a vector
of length 64. Checks run in the order of the protocol's conformity suite: JSON, name, feature, keys
and types; `farm.model.check_call` checks the sizes later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from farm.call import EMPTY_CONFIG, Array, Call, ModelInfo, Operation, Result, TensorInfo
from farm.encoding.config import decode_config, decode_derivative
from farm.encoding.json_numbers import NonFinite, array_text, as_declared, kind_of, parse, vector
from farm.errors import InvalidInput, ModelNotFound, UnsupportedFeature, shortened

PROTOCOL_VERSION = 1.0  # a number; the specification says string, which breaks the clients


class Endpoint(StrEnum):
    """The paths of the protocol; they must be at the server's root."""

    INFO = "/Info"
    MODEL_INFO = "/ModelInfo"
    INPUT_SIZES = "/InputSizes"
    OUTPUT_SIZES = "/OutputSizes"
    EVALUATE = "/Evaluate"
    GRADIENT = "/Gradient"
    APPLY_JACOBIAN = "/ApplyJacobian"
    APPLY_HESSIAN = "/ApplyHessian"


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        Endpoint.EVALUATE: Operation.EVALUATE,
        Endpoint.GRADIENT: Operation.GRADIENT,
        Endpoint.APPLY_JACOBIAN: Operation.APPLY_JACOBIAN,
        Endpoint.APPLY_HESSIAN: Operation.APPLY_HESSIAN,
    }
)
"""The endpoints that run a model."""

FEATURES: Mapping[Operation, str] = MappingProxyType(
    {operation: path.removeprefix("/") for path, operation in OPERATIONS.items()}
)
"""The protocol's name of each operation: the keys of /ModelInfo's `support`."""

SHARED_MEMORY = frozenset({"/TestShMem", *(f"{path}ShMem" for path in OPERATIONS)})
"""Unofficial paths of some clients, which fall back to plain HTTP on any error."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request that runs no model: /Info, /ModelInfo, /InputSizes or /OutputSizes."""

    endpoint: Endpoint
    model: str = ""
    config: str = EMPTY_CONFIG


MOST_VECTORS = 10_000
"""Inputs of a call, each a vector, whatever a model declares: 50 ms of a reader to convert."""

TRAVELS = (Endpoint, Question)
"""Classes that may cross to and from a reader process, in addition to farm's own."""


def decode_request(path: str, body: bytes, models: Mapping[str, ModelInfo]) -> Question | Call:
    """Return the question or call in a request. models: as /Info lists them, for the empty config.

    Raises InvalidRequest, ModelNotFound, UnsupportedFeature, InvalidInput, in the protocol's order
    of checks; Unavailable while no model is served.
    """
    if path == Endpoint.INFO:
        return Question(Endpoint.INFO)
    operation = OPERATIONS.get(path)
    empty = not body or body.isspace()
    message = {} if empty else parse(body)
    if empty and operation is not None and models:
        # The conformity suite asks this way whether the first model offers a feature.
        info = next(iter(models.values()))
    else:
        info = _model_named(message, models)
    if operation is None:
        endpoint = Endpoint(path)
        config = EMPTY_CONFIG if endpoint is Endpoint.MODEL_INFO else decode_config(message, body)
        return Question(endpoint, info.name, config)
    if operation not in info.operations:
        offered = ", ".join(name for op, name in FEATURES.items() if op in info.operations)
        raise UnsupportedFeature(
            f"model {info.name!r} does not offer {FEATURES[operation]}; "
            f"it offers {offered or 'nothing'}"
        )
    if empty:
        raise InvalidInput("the body is empty; expected a JSON object with the keys name and input")
    config = decode_config(message, body)
    return Call(
        model=info.name,
        operation=operation,
        inputs=_inputs(message, info, config),
        config=config,
        derivative=None
        if operation is Operation.EVALUATE
        else decode_derivative(message, operation),
    )


def _model_named(message: Any, models: Mapping[str, ModelInfo]) -> ModelInfo:
    if type(message) is not dict:
        raise InvalidInput(
            f"the body is {kind_of(message)}; expected a JSON object with the key name"
        )
    name = message.get("name")
    if type(name) is not str:
        what = kind_of(name) if "name" in message else "missing"
        raise InvalidInput(f"name is {what}; expected the name of a model as a string")
    info = models.get(name)
    if info is None:
        named = shortened(repr(name), 80)
        raise ModelNotFound(f"no model {named} is served here; {_offer(models)}")
    return info


def _offer(models: Mapping[str, ModelInfo]) -> str:
    names = [repr(name) for name in models]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"the models are {', '.join(names[:20])}{more}"


def _inputs(message: dict[str, Any], info: ModelInfo, config: str) -> tuple[Array, ...]:
    value = message.get("input")
    if type(value) is not list:
        what = kind_of(value) if "input" in message else "missing"
        raise InvalidInput(f"input is {what}; expected a list of vectors, such as [[1.0, 2.0]]")
    count, expected = len(value), len(info.inputs)
    if count > MOST_VECTORS and count > expected:
        raise InvalidInput(
            f"input has {count} entries; expected a list of at most {MOST_VECTORS} vectors, "
            "such as [[1.0, 2.0]]"
        )
    inputs = tuple([vector(v, f"input[{i}]") for i, v in enumerate(value)])
    # Sizes are checked where those of this config are known; this only explains a frequent mistake.
    if count == expected:
        return tuple(map(as_declared, inputs, info.inputs))
    if config == EMPTY_CONFIG and inputs and list not in map(type, value):
        raise InvalidInput(
            f"input is a flat list of {count} numbers; model {info.name!r} expects a list of "
            f"{expected} vectors, such as [[1.0, 2.0]]"
        )
    return inputs


def encode_info(models: Mapping[str, ModelInfo]) -> bytes:
    """Encode the answer to /Info."""
    return orjson.dumps({"protocolVersion": PROTOCOL_VERSION, "models": list(models)})


def encode_model_info(info: ModelInfo) -> bytes:
    """Encode the answer to /ModelInfo: all four keys, because some clients require them."""
    support = {name: operation in info.operations for operation, name in FEATURES.items()}
    return orjson.dumps({"support": support})


def encode_sizes(endpoint: Endpoint, info: ModelInfo) -> bytes:
    """Encode the answer to /InputSizes or /OutputSizes from the description for the config."""
    if endpoint is Endpoint.INPUT_SIZES:
        return orjson.dumps({"inputSizes": _sizes(info.inputs)})
    return orjson.dumps({"outputSizes": _sizes(info.outputs)})


def _sizes(tensors: tuple[TensorInfo, ...]) -> list[int]:
    return [tensor.size for tensor in tensors]


def encode_result(call: Call, result: Result, non_finite: NonFinite = NonFinite.LITERAL) -> bytes:
    """Encode the answer to a call: a list of vectors for evaluate, one flat vector for derivatives.

    Raises InvalidOutput for a non-finite number when `non_finite` is ERROR.
    """
    if call.operation is not Operation.EVALUATE:
        return b'{"output":%b}' % _vector_text(result.outputs[0], non_finite, "output")
    parts = [b'{"output":[']
    for i, y in enumerate(result.outputs):
        if i:
            parts.append(b",")
        parts.append(_vector_text(y, non_finite, f"output[{i}]"))
    parts.append(b"]}")
    return b"".join(parts)  # one copy of the texts, which may be long


def _vector_text(values: Array, non_finite: NonFinite, where: str) -> bytes:
    # All numbers are sent as float64, even a model's bool or float32.
    if values.dtype.hasobject:
        raise UnsupportedFeature(f"{where} holds texts; UM-Bridge carries numbers only")
    if values.ndim != 1 or values.dtype != np.float64:
        values = np.asarray(values, np.float64).reshape(-1)
    return array_text(values, non_finite, where=where)
