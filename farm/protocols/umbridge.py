"""UM-Bridge protocol 1.0, server half: request bytes to what is asked, results to answer bytes.

The client half is `umbridge_client.py`. Vectors on the wire are flat: a tensor of shape (8, 8) is
a vector of length 64. The order of the checks is that of the protocol's conformity suite: JSON,
name, feature, keys and types; sizes come after, in `farm.model.check_call`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from farm.call import (
    EMPTY_CONFIG,
    Array,
    Call,
    Derivative,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
    canonical_config,
)
from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
    UnsupportedFeature,
    WorkerLost,
)
from farm.protocols.json_numbers import (
    EXACT_UP_TO,
    MOST_CONFIG,
    NonFinite,
    array_text,
    as_declared,
    kind_of,
    parse,
    parse_slowly,
    vector,
)

PROTOCOL_VERSION = 1.0  # a number; the protocol's text says string, which breaks the clients

MAX_CONFIG_DEPTH = 100  # far below what makes a JSON reader run out of stack


class Endpoint(StrEnum):
    """The paths of the protocol; they must lie at the server's root."""

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

ERRORS: Mapping[type[FarmError], tuple[str, int]] = MappingProxyType(
    {
        InvalidRequest: ("InvalidInput", 400),
        InvalidInput: ("InvalidInput", 400),
        ModelNotFound: ("ModelNotFound", 400),
        UnsupportedFeature: ("UnsupportedFeature", 400),
        InvalidOutput: ("InvalidOutput", 500),
        # The protocol names no type for what follows; clients take any.
        ModelFailed: ("ModelFailed", 500),
        WorkerLost: ("WorkerLost", 500),
        TimeLimitExceeded: ("TimeLimitExceeded", 500),
        DeadlineExceeded: ("DeadlineExceeded", 504),
        Cancelled: ("Cancelled", 503),
        Overloaded: ("Overloaded", 503),
        Unavailable: ("Unavailable", 503),
    }
)
"""The type and the status each error is answered with."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request that runs no model: /Info, /ModelInfo, /InputSizes or /OutputSizes."""

    endpoint: Endpoint
    model: str = ""
    config: str = EMPTY_CONFIG


def decode_request(path: str, body: bytes, models: Mapping[str, ModelInfo]) -> Question | Call:
    """What is asked. models: those served, in the order /Info lists them, for the empty config.

    Raises InvalidRequest, ModelNotFound, UnsupportedFeature, InvalidInput, in the order in which
    the protocol checks; Unavailable while no model is served at all.
    """
    if path == Endpoint.INFO:
        return Question(Endpoint.INFO)
    operation = OPERATIONS.get(path)
    empty = not body or body.isspace()
    message = {} if empty else parse(body)
    if empty and operation is not None and models:
        # The conformity suite asks so whether the first model offers a feature.
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
        if not models:
            raise Unavailable("no model is served yet: the farm waits for its first worker")
        raise ModelNotFound(f"no model {_shortened(repr(name))} is served here; {_offer(models)}")
    return info


def _offer(models: Mapping[str, ModelInfo]) -> str:
    names = [repr(name) for name in models]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"the models are {', '.join(names[:20])}{more}"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def decode_config(message: Any, body: bytes) -> str:
    """The canonical text of the request's config; missing and null count as the empty one.

    body: what `message` was read from. Raises InvalidInput.
    """
    config = message.get("config")
    if config is None or config == {}:
        return EMPTY_CONFIG
    if type(config) is not dict:
        raise InvalidInput(f"config is {kind_of(config)}; expected an object")
    if not _is_exact(config):
        config = parse_slowly(body)["config"]
    text = canonical_config(config)
    if len(text) > MOST_CONFIG:
        raise InvalidInput(
            f"config has {len(text)} characters as JSON; expected {MOST_CONFIG} at most"
        )
    return text


def _is_exact(config: Any) -> bool:
    """Whether the fast reader kept every whole number. Raises InvalidInput on a deep nesting."""
    level, exact = [config], True
    for _ in range(MAX_CONFIG_DEPTH):
        inside: list[Any] = []
        for value in level:
            if type(value) is dict:
                inside.extend(value.values())
            elif type(value) is list:
                inside.extend(value)
            elif type(value) is float and abs(value) >= EXACT_UP_TO:
                exact = False
        if not inside:
            return exact
        level = inside
    raise InvalidInput(f"config is nested more than {MAX_CONFIG_DEPTH} deep")


def _inputs(message: dict[str, Any], info: ModelInfo, config: str) -> tuple[Array, ...]:
    value = message.get("input")
    if type(value) is not list:
        what = kind_of(value) if "input" in message else "missing"
        raise InvalidInput(f"input is {what}; expected a list of vectors, such as [[1.0, 2.0]]")
    inputs = tuple([vector(v, f"input[{i}]") for i, v in enumerate(value)])
    # Sizes are checked where those of this config are known; here a frequent slip is told apart.
    wrong_count = config == EMPTY_CONFIG and len(inputs) != len(info.inputs)
    if wrong_count and inputs and list not in map(type, value):
        raise InvalidInput(
            f"input is a flat list of {len(value)} numbers; model {info.name!r} expects a list of "
            f"{len(info.inputs)} vectors, such as [[1.0, 2.0]]"
        )
    if len(inputs) != len(info.inputs):
        return inputs
    return tuple([as_declared(x, t) for x, t in zip(inputs, info.inputs, strict=True)])


def decode_derivative(message: dict[str, Any], operation: Operation) -> Derivative:
    """The arguments of a derivative call. Raises InvalidInput."""
    hessian = operation is Operation.APPLY_HESSIAN
    return Derivative(
        out_wrt=_index(message, "outWrt"),
        in_wrt=_index(message, "inWrt1" if hessian else "inWrt"),
        in_wrt2=_index(message, "inWrt2") if hessian else 0,
        sens=None if operation is Operation.APPLY_JACOBIAN else _vector(message, "sens"),
        vec=None if operation is Operation.GRADIENT else _vector(message, "vec"),
    )


def _index(message: dict[str, Any], key: str) -> int:
    value = message.get(key)
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not int:
        what = kind_of(value) if key in message else "missing"
        raise InvalidInput(f"{key} is {what}; expected a whole number, and indices count from 0")
    return value


def _vector(message: dict[str, Any], key: str) -> Array:
    if key not in message:
        raise InvalidInput(f"{key} is missing; expected a list of numbers")
    return vector(message[key], key)


def encode_info(models: Mapping[str, ModelInfo]) -> bytes:
    """The answer to /Info."""
    return orjson.dumps({"protocolVersion": PROTOCOL_VERSION, "models": list(models)})


def encode_model_info(info: ModelInfo) -> bytes:
    """The answer to /ModelInfo: all four keys, as some clients read them without looking."""
    support = {name: operation in info.operations for operation, name in FEATURES.items()}
    return orjson.dumps({"support": support})


def encode_sizes(endpoint: Endpoint, info: ModelInfo) -> bytes:
    """The answer to /InputSizes or /OutputSizes, from the model's description for the config."""
    if endpoint is Endpoint.INPUT_SIZES:
        return orjson.dumps({"inputSizes": _sizes(info.inputs)})
    return orjson.dumps({"outputSizes": _sizes(info.outputs)})


def _sizes(tensors: tuple[TensorInfo, ...]) -> list[int]:
    return [tensor.size for tensor in tensors]


def encode_result(call: Call, result: Result, non_finite: NonFinite = NonFinite.LITERAL) -> bytes:
    """The answer to a call: a list of vectors for evaluate, one flat vector for derivatives.

    Raises InvalidOutput for a non-finite number when `non_finite` is ERROR.
    """
    if call.operation is not Operation.EVALUATE:
        return b'{"output":%b}' % _vector_text(result.outputs[0], non_finite, "output")
    texts = [_vector_text(y, non_finite, f"output[{i}]") for i, y in enumerate(result.outputs)]
    return b'{"output":[%b]}' % b",".join(texts)


def _vector_text(values: Array, non_finite: NonFinite, where: str) -> bytes:
    # Everything is a float64 on this wire: a bool or a float32 of a model, too.
    if values.dtype.hasobject:
        raise UnsupportedFeature(f"{where} holds texts; UM-Bridge carries numbers only")
    return array_text(np.asarray(values, np.float64).reshape(-1), non_finite, where=where)


def encode_error(error: FarmError) -> tuple[int, bytes]:
    """The status and the body an error is answered with."""
    kind, status = ERRORS[type(error)]
    return status, error_body(kind, error.message)


def error_body(kind: str, message: str) -> bytes:
    """The protocol's one form for whatever is not an answer."""
    return orjson.dumps({"error": {"type": kind, "message": valid_text(message)}})


def valid_text(text: str) -> str:
    """`text` without the halves of surrogate pairs that a model's message may hold."""
    return text.encode("utf-8", "replace").decode()
