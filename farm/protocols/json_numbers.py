"""JSON whose numbers are float64: fast where all are finite, and NaN and Infinity on purpose.

JSON has no NaN and no Infinity, yet a log-likelihood of -inf is everyday business. The literals
`NaN`, `Infinity` and `-Infinity` are read everywhere; how they are written is a choice.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from enum import StrEnum
from typing import Any

import numpy as np
import orjson

from farm.call import Array, TensorInfo, numpy_dtype
from farm.errors import FarmError, InvalidInput, InvalidOutput, InvalidRequest

NUMBERS = frozenset((float, int))  # not bool, whose type is its own
MAX_DIMENSIONS = 16
MOST_CONFIG = 1 << 20
"""Characters of a config: it is read and compared in the front door, with those of other calls."""

EXACT_UP_TO = 2.0**64  # beyond, the fast reader turns whole numbers into floats


class NonFinite(StrEnum):
    """How NaN and the infinities are written."""

    LITERAL = "literal"
    """`NaN`, `Infinity`, `-Infinity`: not JSON, but what Python and Julia read as the number."""
    NULL = "null"
    """`null`: JSON that every parser takes and that says no more than that there is no number."""
    ERROR = "error"
    """InvalidOutput instead of an answer."""


def parse(body: bytes) -> Any:
    """The JSON value of `body`, the literals NaN and Infinity allowed.

    Raises InvalidRequest on anything else, and on numbers too large for a float64: 1e999 is a
    mistake and not an infinity.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in body and b"Infinity" not in body:
            raise InvalidRequest(f"the body is not JSON: {error}") from None
    return parse_slowly(body)


def parse_slowly(body: bytes) -> Any:
    """As `parse`, ten times slower, but whole numbers of any length stay whole numbers."""
    try:
        return json.loads(body.decode(), parse_float=_finite)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"the body is not JSON: {reason}") from None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large for a float64")
    return value


def vector(value: Any, where: str, *, fault: type[FarmError] = InvalidInput) -> Array:
    """A JSON list of numbers as a float64 vector of shape (n,); a bare number counts as n = 1.

    Raises `fault` with `where` and the position of what is no number.
    """
    if type(value) is not list:
        if type(value) not in NUMBERS:
            raise fault(f"{where} is {kind_of(value)}; expected a list of numbers")
        value = [value]  # MATLAB writes a vector of length 1 so
    if not NUMBERS.issuperset(map(type, value)):
        i, wrong = next((i, v) for i, v in enumerate(value) if type(v) not in NUMBERS)
        raise fault(f"{where}[{i}] is {kind_of(wrong)}; expected a number")
    try:
        return np.asarray(array("d", value))
    except OverflowError:
        i = next(i for i, v in enumerate(value) if abs(v) > sys.float_info.max)
        raise fault(f"{where}[{i}] is too large for a float64") from None


def tensor(value: Any, where: str) -> Array:
    """Numbers nested in lists as a float64 array of that shape; a bare number has shape (1,).

    Raises InvalidInput with `where` and the position of what does not fit in.
    """
    if type(value) is not list or list not in map(type, value):
        return vector(value, where)
    if where.count("[") > MAX_DIMENSIONS:
        raise InvalidInput(f"{where} is nested more than {MAX_DIMENSIONS} deep")
    parts = []
    for i, part in enumerate(value):
        if type(part) is not list:
            raise InvalidInput(f"{where}[{i}] is {kind_of(part)}; expected a list as before it")
        parts.append(tensor(part, f"{where}[{i}]"))
        if parts[i].shape != parts[0].shape:
            raise InvalidInput(
                f"{where}[{i}] has shape {parts[i].shape}, {where}[0] has {parts[0].shape}; "
                "expected the same"
            )
    return np.stack(parts)


def as_declared(values: Array, declared: TensorInfo) -> Array:
    """The values as whole numbers where a model declares those and all are: JSON writes 2.0 for 2.

    Anything else is left as it is, for the check of the call to judge.
    """
    if declared.dtype == "float64" or numpy_dtype(declared.dtype).kind not in "iub":
        return values
    with np.errstate(invalid="ignore"):
        whole = values.astype(declared.dtype)
    return whole if np.array_equal(whole, values) else values


def kind_of(value: Any) -> str:
    """What a JSON value is, in the words of an error message."""
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"


def array_text(
    values: Array, non_finite: NonFinite = NonFinite.LITERAL, *, where: str = "output"
) -> bytes:
    """An array of numbers as JSON text, nested like its shape, in the shortest exact decimals.

    Raises InvalidOutput with `where` and the position when `non_finite` is ERROR and one is there.
    """
    if values.ndim == 0:
        return array_text(values.reshape(1), non_finite, where=where)[1:-1]
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    # Numbers give no other letters than e, so `null` stands for non-finite values, in their order.
    if non_finite is NonFinite.NULL or b"null" not in text:
        return text
    flat = values.reshape(-1)
    positions = np.flatnonzero(~np.isfinite(flat))
    if non_finite is NonFinite.ERROR:
        at = ", ".join(map(str, np.unravel_index(positions[0], values.shape)))
        raise InvalidOutput(f"{where}[{at}] is {flat[positions[0]]}; expected a finite number")
    pieces = text.split(b"null")
    parts = [pieces[0]]
    for number, piece in zip(flat[positions].tolist(), pieces[1:], strict=True):
        parts.append(_literal(number))
        parts.append(piece)
    return b"".join(parts)


def _literal(number: float) -> bytes:
    if math.isnan(number):
        return b"NaN"
    return b"Infinity" if number > 0 else b"-Infinity"
