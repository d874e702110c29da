"""Encoding of the arguments and results of codecs that run in a reader process.

A value is a list of frames: JSON, the bytes of small arrays, and each large array in a frame of its
own, so that a large array is neither copied nor inspected. Besides plain data, arrays and
FarmErrors, only the classes that both ends name are encoded: `PLAIN_KINDS`, and the `TRAVELS` of
the codec's module. Nothing is unpickled.

A value whose JSON is longer than `MOST_HEAD_BYTES` is refused: reading it would take too much of
the server's time.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np

from farm.call import (
    Array,
    Buffer,
    Call,
    Derivative,
    Hints,
    ModelInfo,
    Operation,
    Result,
    TensorInfo,
)
from farm.encoding.json_numbers import NonFinite
from farm.errors import FarmError, InvalidInput, error_named
from farm.wire.arrays import INLINE_BYTES, ArrayWriter, array_at

MOST_HEAD_BYTES = 1 << 20
"""About 20 ms of reading time."""

MOST_DEPTH = 150
"""Maximum nesting; far below the depth at which a JSON reader overflows its stack."""

LONG_TEXT = 16 * 1024
"""Number of characters from which a text is sent as an array."""

LONG_LIST = 32
"""Length from which a list of numbers is sent as an array."""

LIST_STEP = 16 * 1024

LARGEST_EXACT = 2**53
"""Integers below this are exact as floats, and no others become a float below it."""

PLAIN_KINDS = (Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo, NonFinite)
"""farm's own classes that can be encoded."""


class Kinds:
    """The classes that can be encoded: frozen dataclasses, named tuples, enums, and exceptions.

    An exception must have an attribute for each argument of its constructor.
    """

    def __init__(self, more: Iterable[type[Any]] = ()) -> None:
        """more: further classes besides `PLAIN_KINDS`."""
        self.by_name = {
            f"{kind.__module__}.{kind.__name__}": kind for kind in (*PLAIN_KINDS, *more)
        }
        self.names = {kind: name for name, kind in self.by_name.items()}


PLAIN = Kinds()


def kinds_of(codec: ModuleType) -> Kinds:
    """Return the classes that a codec's functions take and return: the module's `TRAVELS`."""
    return Kinds(getattr(codec, "TRAVELS", ()))


def encode(value: Any, body: object = None, kinds: Kinds = PLAIN) -> list[Buffer]:
    """Return the frames of a value. body: an object in it that the receiver already has.

    Raises TypeError for an unsupported class, InvalidInput for a value with too many parts.
    """
    writer = _ValueWriter(body, kinds)
    head = json.dumps(writer.plain(value, 0), separators=(",", ":")).encode("ascii")
    if len(head) > MOST_HEAD_BYTES:
        raise _too_many_parts()
    return [head, b"".join(writer.inline), *(a.view(np.uint8).data for a in writer.large)]


def _too_many_parts() -> InvalidInput:
    return InvalidInput(
        "the message has too many parts beside its numbers; "
        f"{MOST_HEAD_BYTES} bytes of them are the limit here"
    )


def decode(frames: Sequence[Buffer], body: object = None, kinds: Kinds = PLAIN) -> Any:
    """Return the value that `encode` wrote; its arrays are views of the frames."""
    head, *frames = frames
    return _Reader(frames, body, kinds).value(json.loads(bytes(head)))


class _ValueWriter(ArrayWriter):
    """Collects arrays, and converts the rest to JSON data, in which each list starts with a tag."""

    def __init__(self, body: object, kinds: Kinds) -> None:
        super().__init__()
        self._body = body
        self._kinds = kinds
        self._parts = 0

    def plain(self, value: Any, depth: int) -> Any:
        """Return JSON data for a value."""
        self._parts += 1
        if self._parts > MOST_HEAD_BYTES // 2:  # each takes at least two bytes
            raise _too_many_parts()
        if depth > MOST_DEPTH:
            raise InvalidInput(f"the message is nested more than {MOST_DEPTH} deep")
        if value is None or type(value) in (bool, int, float):
            return value
        if self._body is not None and value is self._body:
            return ["@"]
        if type(value) is str:
            if len(value) < LONG_TEXT:
                return value
            raw = value.encode("utf-8", "surrogatepass")
            return ["s", self.put(np.frombuffer(raw, np.uint8))]
        if isinstance(value, np.ndarray):
            return ["a", self.put(value)]
        if isinstance(value, bytes | bytearray | memoryview):
            return ["b", self.put(np.frombuffer(value, np.uint8))]
        if isinstance(value, Mapping):
            if not all(type(key) is str for key in value):
                raise TypeError("a mapping whose keys are not texts cannot be sent")
            return {key: self.plain(part, depth + 1) for key, part in value.items()}
        if type(value) is list and len(value) > LONG_LIST:
            numbers = _numbers(value)
            if numbers is not None:
                return ["n", *map(self.put, numbers)]
        tag, parts = _parts_of(value, self._kinds)
        return [tag, *[self.plain(part, depth + 1) for part in parts]]


def _numbers(value: list[Any]) -> tuple[Array, ...] | None:
    """Return numbers as an array, and if mixed which are integers; None for other lists."""
    kinds = set(map(type, value))
    if kinds == {float}:
        return (np.array(value, np.float64),)
    if not kinds <= {int, float}:
        return None
    try:
        if kinds == {int}:
            return (np.array(value, np.int64),)
        floats = np.array(value, np.float64)
    except OverflowError:
        return None
    whole = np.array([type(number) is int for number in value])
    exact = bool(np.all(np.abs(floats[whole]) < LARGEST_EXACT))
    return (floats, whole) if exact else None


def _listed(numbers: Array, whole: Array | None = None) -> list[Any]:
    """Return the array as a list again, in steps between which other threads may run."""
    found: list[Any] = []
    for at in range(0, len(numbers), LIST_STEP):
        part = numbers[at : at + LIST_STEP].tolist()
        if whole is not None:
            for place in np.flatnonzero(whole[at : at + LIST_STEP]).tolist():
                part[place] = int(part[place])
        found += part
    return found


def _parts_of(value: Any, kinds: Kinds) -> tuple[str, Iterable[Any]]:
    """Return the tag of a value with several parts, and the parts."""
    if isinstance(value, FarmError):
        return "!", (type(value).__name__, value.message, value.detail)
    name = kinds.names.get(type(value))
    if name is not None:
        return name, _fields(value)
    tag = _TAGS.get(type(value))
    if tag is None:
        raise TypeError(f"a {type(value).__name__} cannot be sent")
    return tag, value


_TAGS: Mapping[type[Any], str] = {list: "l", tuple: "t", frozenset: "f"}


def _fields(value: Any) -> Sequence[Any]:
    if isinstance(value, Enum):
        return (value.value,)
    if isinstance(value, tuple):
        return value
    if isinstance(value, Exception):
        return [getattr(value, name) for name in signature(type(value)).parameters]
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


class _Reader:
    """Builds values from JSON data and the accompanying arrays."""

    def __init__(self, frames: Sequence[Buffer], body: object, kinds: Kinds) -> None:
        self._frames = frames
        self._body = body
        self._kinds = kinds.by_name

    def value(self, data: Any) -> Any:
        """Return the value for some JSON data."""
        if type(data) is dict:
            return {key: self.value(part) for key, part in data.items()}
        if type(data) is not list:
            return data
        tag, *parts = data
        if tag == "@":
            return self._body
        if tag == "a":
            return self._array(parts[0])
        if tag == "n":
            return _listed(*map(self._array, parts))
        if tag in ("b", "s"):
            raw = self._array(parts[0])
            if tag == "s":
                return raw.tobytes().decode("utf-8", "surrogatepass")
            return raw.tobytes() if raw.nbytes <= INLINE_BYTES else raw.data
        values = [self.value(part) for part in parts]
        if tag == "l":
            return values
        if tag == "t":
            return tuple(values)
        if tag == "f":
            return frozenset(values)
        if tag == "!":
            return error_named(*values)
        return self._kinds[tag](*values)

    def _array(self, where: Any) -> Array:
        return array_at(self._frames, 0, where)
