"""farm's request for many evaluations, client half: encodes calls, decodes lines."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from farm.call import Array, Call, Result
from farm.encoding.json_numbers import NonFinite, array_text, kind_of, parse, tensor
from farm.errors import FarmError, InvalidInput, InvalidOutput, InvalidRequest, error_named


def encode_points(calls: Sequence[Call]) -> bytes:
    """Encode the request for these calls of one model and config; inputs are in order."""
    return orjson.dumps(
        {
            "inputs": [[_fragment(x) for x in call.inputs] for call in calls],
            "config": orjson.Fragment(calls[0].config),
            "non_finite": NonFinite.LITERAL,
        }
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
        return index, Result(
            tuple([tensor(y, f"output[{i}]") for i, y in enumerate(told["outputs"])]),
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
