"""UM-Bridge protocol 1.0, client half: encodes calls as requests, and decodes answers.

The official servers deviate from their own protocol; this module accepts the deviations seen on the
wire: `nan`, `inf` and `np.float64(1.0)` from the Python server, `null` for NaN and an empty body
with the header EXCEPTION_WHAT from the C++ server, plain text with status 500 from both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from farm.call import Array, Call, Operation, Result
from farm.encoding.json_numbers import array_text, kind_of, parse, vector
from farm.errors import (
    FarmError,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    Unavailable,
    error_named,
    shortened,
)
from farm.protocols.umbridge.codec import FEATURES, PROTOCOL_VERSION, Endpoint, Question

Headers = Mapping[str, str]
"""Response headers: a mapping that ignores case, or one with names in lower case."""


def encode_question(question: Question) -> tuple[str, bytes]:
    """Return path and body of a request that runs no model; an empty body (/Info) means GET."""
    if question.endpoint is Endpoint.INFO:
        return question.endpoint, b""
    message: dict[str, Any] = {"name": question.model}
    if question.endpoint is not Endpoint.MODEL_INFO:
        message["config"] = orjson.Fragment(question.config)
    return question.endpoint, orjson.dumps(message)


def encode_request(call: Call) -> tuple[str, bytes]:
    """Return path and body of the request for a call of one row; non-finite inputs are literals.

    Raises InvalidRequest for a batch of rows, which the protocol does not support.
    """
    if call.rows is not None:
        raise InvalidRequest("UM-Bridge takes one point a call, not a batch of rows")
    message: dict[str, Any] = {"name": call.model}
    if call.derivative is not None:
        wrt = call.derivative
        message["outWrt"] = wrt.out_wrt
        if call.operation is Operation.APPLY_HESSIAN:
            message["inWrt1"] = wrt.in_wrt
            message["inWrt2"] = wrt.in_wrt2
        else:
            message["inWrt"] = wrt.in_wrt
    message["input"] = [_fragment(x) for x in call.inputs]
    if call.derivative is not None:
        if call.derivative.sens is not None:
            message["sens"] = _fragment(call.derivative.sens)
        if call.derivative.vec is not None:
            message["vec"] = _fragment(call.derivative.vec)
    message["config"] = orjson.Fragment(call.config)
    return f"/{FEATURES[call.operation]}", orjson.dumps(message)


def _fragment(values: Array) -> orjson.Fragment:
    return orjson.Fragment(array_text(np.asarray(values, np.float64).reshape(-1)))


def decode_response(call: Call, status: int, headers: Headers, body: bytes) -> Result:
    """Return the result of a call, each output a flat float64 vector; the caller checks sizes.

    `null` counts as NaN: the C++ server writes NaN and the infinities so. A farm's own headers
    carry run time, queue time and worker. Raises the FarmError that the answer reports, or
    InvalidOutput if the data is not an answer.
    """
    output = _member(_answer(status, headers, body), "output")
    return Result(
        _outputs(call, output),
        run_time_s=_seconds(headers.get("farm-run-time")),
        worker=headers.get("farm-worker") or "",
        queue_time_s=_seconds(headers.get("farm-queue-time")),
        copied=headers.get("farm-copied") == "true",
        reused=headers.get("farm-reused") == "true",
    )


def _outputs(call: Call, output: Any) -> tuple[Array, ...]:
    if call.operation is not Operation.EVALUATE:
        return (_numbers(output, "output"),)
    if type(output) is not list:
        raise InvalidOutput(f"output is {kind_of(output)}; expected a list of vectors")
    return tuple([_numbers(y, f"output[{i}]") for i, y in enumerate(output)])


def decode_info(status: int, headers: Headers, body: bytes) -> tuple[str, ...]:
    """Return the names of a server's models. Raises InvalidRequest if it is no UM-Bridge server."""
    answer = _answer(status, headers, body)
    if answer.get("protocolVersion") not in (PROTOCOL_VERSION, str(PROTOCOL_VERSION)):
        version = _shown(repr(answer.get("protocolVersion")))
        raise InvalidRequest(f"the server speaks UM-Bridge {version}; expected {PROTOCOL_VERSION}")
    names = _member(answer, "models")
    if type(names) is not list or not all(type(name) is str for name in names):
        raise InvalidOutput("models in the answer to /Info is not a list of names")
    return tuple(names)


def decode_model_info(status: int, headers: Headers, body: bytes) -> frozenset[Operation]:
    """Return the operations that a model offers; a missing key counts as not offered."""
    support = _member(_answer(status, headers, body), "support")
    if type(support) is not dict:
        raise InvalidOutput(f"support is {kind_of(support)}; expected an object")
    return frozenset(op for op, name in FEATURES.items() if support.get(name) is True)


def decode_sizes(question: Question, status: int, headers: Headers, body: bytes) -> tuple[int, ...]:
    """Return the lengths of a model's input or output vectors, according to the question."""
    key = "inputSizes" if question.endpoint is Endpoint.INPUT_SIZES else "outputSizes"
    sizes = _numbers(_member(_answer(status, headers, body), key), key).tolist()
    if not all(n >= 0 and n.is_integer() for n in sizes):
        raise InvalidOutput(f"{key} is {_shown(repr(sizes))}; expected whole numbers from 0 on")
    return tuple(int(n) for n in sizes)


def _numbers(value: Any, where: str) -> Array:
    try:
        return vector(value, where, fault=InvalidOutput)
    except InvalidOutput:
        if type(value) is not list or None not in value:
            raise
    numbers = [np.nan if v is None else v for v in value]
    return vector(numbers, where, fault=InvalidOutput)


def _member(answer: dict[str, Any], key: str) -> Any:
    if key not in answer:
        raise InvalidOutput(f"the answer has no {key!r}; its keys are {_shown(repr(list(answer)))}")
    return answer[key]


def _seconds(text: str | None) -> float:
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0


def decode_error(status: int, headers: Headers, body: bytes) -> FarmError:
    """Return the error that an answer with a status other than 200 reports."""
    try:
        _answer(status, headers, body)
    except FarmError as error:
        return error
    return _failure(status, headers, body)


def _answer(status: int, headers: Headers, body: bytes) -> dict[str, Any]:
    """Return the answer's JSON object. Raises the error that it reports in any known form."""
    try:
        answer = _parse_kindly(body)
        flaw = f"is {kind_of(answer)}; expected an object"
    except InvalidRequest as error:
        answer, flaw = None, f"cannot be read: {error.message}"
    told = answer.get("error") if type(answer) is dict else None
    if type(told) is dict:
        raise error_named(_shown(str(told.get("type"))), str(told.get("message")))
    if status != 200:
        raise _failure(status, headers, body)
    if type(answer) is not dict:
        raise InvalidOutput(f"the server's answer {flaw}")
    return answer


def _parse_kindly(body: bytes) -> Any:
    try:
        return parse(body)
    except InvalidRequest:
        # The official Python server writes lists with str(): nan, inf, None, True, np.float64(1.0).
        for python, as_json in PYTHON_WORDS:
            body = python.sub(as_json, body)
        return parse(body)


PYTHON_WORDS = (
    (re.compile(rb"\bnp\.\w+\(([^()]*)\)"), rb"\1"),
    (re.compile(rb"\bnan\b"), b"NaN"),
    (re.compile(rb"\binf\b"), b"Infinity"),
    (re.compile(rb"\bTrue\b"), b"true"),
    (re.compile(rb"\bFalse\b"), b"false"),
    (re.compile(rb"\bNone\b"), b'"None"'),  # not a number, nor the NaN that null means
)


def _failure(status: int, headers: Headers, body: bytes) -> FarmError:
    """Return the error for an answer outside the protocol: a proxy's page, a crash."""
    what = headers.get("exception_what")  # sent by the C++ server with an empty body
    if what:
        return ModelFailed(what)
    text = _shown(" ".join(body[:2000].decode("utf-8", "replace").split())) or "an empty body"
    if status >= 500 and status not in (502, 503, 504):
        return ModelFailed(f"the model server failed with status {status}: {text}")
    if status in (401, 403, 407):
        return Unavailable(
            f"the server wants credentials (status {status}): write http://user:password@host:port"
        )
    return Unavailable(f"the server answered with status {status}: {text}")


def _shown(text: str) -> str:
    return shortened(text, 200)
