"""JSON with float64 numbers: fast if all are finite, and explicit about NaN and infinities.

JSON has neither NaN nor Infinity, but a log-likelihood of -inf is common. The literals `NaN`,
`Infinity` and `-Infinity` are accepted everywhere; how they are written is configurable.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain
from typing import Any

import numpy as np
import orjson

from farm.call import Array, TensorInfo, numpy_dtype
from farm.errors import FarmError, InvalidInput, InvalidOutput, InvalidRequest

NUMBERS = frozenset((float, int))  # not bool, which is a type of its own
MAX_DIMENSIONS = 16
MOST_CONFIG = 1 << 20
"""Maximum length of a config in characters: the server parses it and compares it with others."""

EXACT_UP_TO = 2.0**64  # beyond this the fast parser turns integers into floats


class NonFinite(StrEnum):
    """How NaN and infinities are written."""

    LITERAL = "literal"
    """`NaN`, `Infinity`, `-Infinity`: not JSON, but Python and Julia read them as the numbers."""
    NULL = "null"
    """`null`: valid JSON for every parser, which only says that there is no number."""
    ERROR = "error"
    """Answer with the error InvalidOutput."""


def parse(body: bytes, what: str = "the body") -> Any:
    """Return the JSON value of `body`, in which the literals NaN and Infinity are allowed.

    Raises InvalidRequest if it is not JSON, which names it as `what`, and for numbers too large for
    a float64: 1e999 is a mistake, not infinity.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in body and b"Infinity" not in body:
            raise InvalidRequest(f"{what} is not JSON: {error}") from None
    return parse_slowly(body, what)


def parse_slowly(body: bytes, what: str = "the body") -> Any:
    """Parse as `parse` does, ten times slower, but keep integers of any length exact."""
    try:
        return json.loads(body.decode(), parse_float=_finite)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidRequest(f"{what} is not JSON: {reason}") from None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large for a float64")
    return value


def vector(value: Any, where: str, *, fault: type[FarmError] = InvalidInput) -> Array:
    """Return a JSON list of numbers as a float64 vector of shape (n,); a bare number has n = 1.

    Raises `fault` with `where` and the position of a value that is not a number.
    """
    if type(value) is not list:
        if type(value) not in NUMBERS:
            raise fault(f"{where} is {kind_of(value)}; expected a list of numbers")
        value = [value]  # MATLAB writes a vector of length 1 this way
    if not NUMBERS.issuperset(map(type, value)):
        i, wrong = next((i, v) for i, v in enumerate(value) if type(v) not in NUMBERS)
        raise fault(f"{where}[{i}] is {kind_of(wrong)}; expected a number")
    try:
        return np.asarray(array("d", value))
    except OverflowError:
        i = next(i for i, v in enumerate(value) if abs(v) > sys.float_info.max)
        raise fault(f"{where}[{i}] is too large for a float64") from None


def tensor(value: Any, where: str) -> Array:
    """Return nested lists of numbers as a float64 array of that shape; (1,) for a bare number.

    Raises InvalidInput with `where` and the position of a value that does not fit.
    """
    if type(value) is not list or list not in map(type, value):
        return vector(value, where)
    # Level by level, as there may be a million lists, and each of them may be empty.
    shape: list[int] = []
    level: list[Any] = [value]
    while list in map(type, level):
        if len(shape) > MAX_DIMENSIONS:
            raise InvalidInput(f"{where} is nested more than {MAX_DIMENSIONS} deep")
        if {*map(type, level)} != {list}:
            i, odd = next((i, part) for i, part in enumerate(level) if type(part) is not list)
            at = _position(where, shape, i)
            raise InvalidInput(f"{at} is {kind_of(odd)}; expected a list, as others here")
        size = len(level[0])
        if {*map(len, level)} != {size}:
            i, odd = next((i, part) for i, part in enumerate(level) if len(part) != size)
            at, first = _position(where, shape, i), _position(where, shape, 0)
            lengths = f"{at} has length {len(odd)}, {first} has length {size}"
            raise InvalidInput(f"{lengths}; expected the same")
        shape.append(size)
        level = [*chain.from_iterable(level)]
    if not NUMBERS.issuperset(map(type, level)):
        i, wrong = next((i, v) for i, v in enumerate(level) if type(v) not in NUMBERS)
        at = _position(where, shape, i)
        raise InvalidInput(f"{at} is {kind_of(wrong)}; expected a number")
    try:
        return np.asarray(array("d", level)).reshape(shape)
    except OverflowError:
        i = next(i for i, v in enumerate(level) if abs(v) > sys.float_info.max)
        raise InvalidInput(f"{_position(where, shape, i)} is too large for a float64") from None


def _position(where: str, shape: Sequence[int], index: int) -> str:
    """Return the position of an entry of an array of this shape, such as `input[2][0]`."""
    return where + "".join(f"[{i}]" for i in np.unravel_index(index, shape)) if shape else where


def as_declared(values: Array, declared: TensorInfo) -> Array:
    """Convert the values to integers if the model declares integers and all are: JSON may have 2.0.

    Other values are returned unchanged, for the check of the call to report.
    """
    if declared.dtype == "float64" or numpy_dtype(declared.dtype).kind not in "iub":
        return values
    with np.errstate(invalid="ignore"):
        whole = values.astype(declared.dtype)
    return whole if np.array_equal(whole, values) else values


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, for an error message."""
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
    """Return an array of numbers as JSON text, nested like its shape, in shortest exact decimals.

    Raises InvalidOutput with `where` and the position of a non-finite value if `non_finite` is
    ERROR.
    """
    if values.ndim == 0:
        return array_text(values.reshape(1), non_finite, where=where)[1:-1]
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    # Finite numbers contain no letter but e, so each `null` stands for a non-finite value, in
    # order. To search for one letter takes a tenth of the time.
    if non_finite is NonFinite.NULL or b"n" not in text:
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
