"""farm's request for many evaluations, client half: encodes calls, decodes lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from farm.call import DERIVATIVES, Array, Call, Operation, Result
from farm.encoding.json_numbers import NonFinite, array_text, kind_of, parse, tensor
from farm.errors import FarmError, InvalidInput, InvalidOutput, InvalidRequest, error_named

IN_REQUESTS = DERIVATIVES | {Operation.EVALUATE}
"""Operations whose calls may share a request for many points."""


def encode_points(calls: Sequence[Call]) -> bytes:
    """Encode the request for these calls, which are `alike`; inputs are in order."""
    message: dict[str, Any] = {
        "inputs": [[_fragment(x) for x in call.inputs] for call in calls],
        "config": orjson.Fragment(calls[0].config),
        "non_finite": NonFinite.LITERAL,
    }
    wrt = calls[0].derivative
    if wrt is not None:
        message["operation"] = calls[0].operation
        message["outWrt"] = wrt.out_wrt
        if calls[0].operation is Operation.APPLY_HESSIAN:
            message["inWrt1"], message["inWrt2"] = wrt.in_wrt, wrt.in_wrt2
        else:
            message["inWrt"] = wrt.in_wrt
        every = [call.derivative for call in calls if call.derivative is not None]
        message |= _vectors("sens", [each.sens for each in every])
        message |= _vectors("vec", [each.vec for each in every])
    return orjson.dumps(message)


def _vectors(key: str, vectors: Sequence[Array | None]) -> dict[str, Any]:
    """Return the vectors of all calls: none, one if all calls share it, or one for each."""
    first = vectors[0]
    if first is None:
        return {}
    if all(vector is first for vector in vectors):
        return {key: _fragment(first.reshape(-1))}
    return {key: [_fragment(v.reshape(-1)) for v in vectors if v is not None]}


def alike(call: Call, other: Call) -> bool:
    """Whether two calls may share a request."""
    if call.operation is not other.operation or call.operation not in IN_REQUESTS:
        return False
    wrt, of_other = call.derivative, other.derivative
    if wrt is not None and of_other is not None:
        where = wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2
        if where != (of_other.out_wrt, of_other.in_wrt, of_other.in_wrt2):
            return False
    return (
        call.rows is other.rows is None
        and call.model == other.model
        and call.config == other.config
    )


def _fragment(values: Array) -> orjson.Fragment:
    return orjson.Fragment(array_text(values))


def decode_line(line: bytes) -> tuple[int, Result | FarmError]:
    """Return the position of a point among the calls, and its outcome.

    Outputs are float64, in the tensors' shapes. Raises InvalidRequest if it is not such a line.
    """
    told = parse(line)
    try:
        index = told["index"]
        if type(index) is not int:
            raise TypeError(f"index is {kind_of(index)}")
        if told["status"] == "failed":
            error = told["error"]
            return index, error_named(str(error["type"]), str(error["message"]))
        outputs = [tensor(y, f"output[{i}]") for i, y in enumerate(told["outputs"])]
        if "gradient" in told:
            outputs.append(tensor(told["gradient"], "gradient"))
        return index, Result(
            tuple(outputs),
            run_time_s=float(told["run_time_s"]),
            worker=str(told["worker"]),
            queue_time_s=float(told["queue_time_s"]),
            copied=told.get("copied") is True,
            reused=told.get("reused") is True,
        )
    except InvalidInput as error:
        return index, InvalidOutput(error.message)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the farm's answer has an unknown form: {error!r}") from None
