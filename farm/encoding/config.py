"""Decoding of a call's config and derivative arguments from JSON."""

from __future__ import annotations

from typing import Any

from farm.call import (
    EMPTY_CONFIG,
    TAKE_SENS,
    TAKE_VEC,
    Array,
    Derivative,
    Operation,
    canonical_config,
)
from farm.encoding.json_numbers import EXACT_UP_TO, MOST_CONFIG, kind_of, parse_slowly, vector
from farm.errors import InvalidInput

MAX_CONFIG_DEPTH = 100  # far below the depth at which a JSON reader overflows its stack


def decode_config(message: Any, body: bytes) -> str:
    """Return the canonical text of a request's config; if missing or null, of the empty one.

    body: the bytes from which `message` was parsed. Raises InvalidInput.
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
    """Whether the fast parser kept all integers exactly. Raises InvalidInput if nested too deep."""
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


def decode_derivative(message: dict[str, Any], operation: Operation) -> Derivative:
    """Return the arguments of a derivative call. Raises InvalidInput."""
    hessian = operation is Operation.APPLY_HESSIAN
    return Derivative(
        out_wrt=_index(message, "outWrt"),
        in_wrt=_index(message, "inWrt1" if hessian else "inWrt"),
        in_wrt2=_index(message, "inWrt2") if hessian else 0,
        sens=_vector(message, "sens") if operation in TAKE_SENS else None,
        vec=_vector(message, "vec") if operation in TAKE_VEC else None,
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
