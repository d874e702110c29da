"""The arguments and results of codecs as bytes, for codecs that run in a reader process.

A value is a list of frames: JSON, the bytes of small arrays, and each large array in a frame of its
own, so that a large array is neither copied nor looked at. Beside plain data and arrays only the
classes of `KINDS` travel. Nothing is ever unpickled.

A value whose JSON is longer than `MOST_HEAD_BYTES` is refused: the front door would spend too much
of its own time to read it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from farm.call import Array, Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo
from farm.errors import FarmError, InvalidInput, error_named
from farm.protocols import (
    graphpipe_tensors,
    json_stream,
    kserve,
    points,
    points_batches,
    umbridge,
)
from farm.protocols.json_numbers import NonFinite
from farm.protocols.wire_arrays import INLINE_BYTES, ArrayWriter, Buffer, array_at

MOST_HEAD_BYTES = 1 << 20
"""About 20 ms of the time of whoever reads it."""

MOST_DEPTH = 150
"""Levels of nesting; far below what makes a JSON reader run out of stack."""

LONG_TEXT = 16 * 1024
"""Characters from which a text travels as an array."""

LONG_LIST = 32
"""Numbers in a list from which they travel as an array."""

LIST_STEP = 16 * 1024

LARGEST_EXACT = 2**53
"""Whole numbers below this are exact as floats, and no other ones become one below it."""

KINDS: Mapping[str, type[Any]] = {
    f"{kind.__module__.removeprefix('farm.')}.{kind.__name__}": kind
    for kind in (
        *(Call, Derivative, Hints, ModelInfo, Operation, Result, TensorInfo, NonFinite),
        *(umbridge.Question, umbridge.Endpoint),
        *(kserve.InferInput, kserve.RequestedOutput, kserve.InferRequest),
        *(kserve.Wish, kserve.WishedOutput),
        *(points.Form, points_batches.Batches, json_stream.Garbage),
    )
}
"""The classes that travel: frozen dataclasses, named tuples and enums, each by its fields."""

_NAMES = {kind: name for name, kind in KINDS.items()}


def encode(value: Any, body: object = None) -> list[Buffer]:
    """The frames of a value. body: an object in it that the receiver has already.

    Raises TypeError for what cannot travel, InvalidInput for what has too many parts.
    """
    writer = _Writer(body)
    head = json.dumps(writer.plain(value, 0), separators=(",", ":")).encode("ascii")
    if len(head) > MOST_HEAD_BYTES:
        raise _too_many_parts()
    return [head, b"".join(writer.inline), *(a.view(np.uint8).data for a in writer.large)]


def _too_many_parts() -> InvalidInput:
    return InvalidInput(
        "the message has too many parts beside its numbers; "
        f"{MOST_HEAD_BYTES} bytes of them are the limit here"
    )


def decode(frames: Sequence[Buffer], body: object = None) -> Any:
    """The value that `encode` wrote; its arrays are views of the frames."""
    head, *frames = frames
    return _value(json.loads(bytes(head)), frames, body)


class _Writer(ArrayWriter):
    """Collects arrays, and makes JSON data of the rest: a list begins with what it stands for."""

    def __init__(self, body: object) -> None:
        super().__init__()
        self._body = body
        self._parts = 0

    def plain(self, value: Any, depth: int) -> Any:
        """JSON data for a value."""
        self._parts += 1
        if self._parts > MOST_HEAD_BYTES // 2:  # each takes two bytes and more
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
                raise TypeError("a mapping whose keys are no texts does not travel")
            return {key: self.plain(part, depth + 1) for key, part in value.items()}
        if type(value) is list and len(value) > LONG_LIST:
            numbers = _numbers(value)
            if numbers is not None:
                return ["n", *map(self.put, numbers)]
        tag, parts = _parts_of(value)
        return [tag, *[self.plain(part, depth + 1) for part in parts]]


def _numbers(value: list[Any]) -> tuple[Array, ...] | None:
    """A list of numbers as an array, and where they are mixed, which ones are whole; else None."""
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
    """The list again, in steps between which other threads may run."""
    found: list[Any] = []
    for at in range(0, len(numbers), LIST_STEP):
        part = numbers[at : at + LIST_STEP].tolist()
        if whole is not None:
            for place in np.flatnonzero(whole[at : at + LIST_STEP]).tolist():
                part[place] = int(part[place])
        found += part
    return found


def _parts_of(value: Any) -> tuple[str, Iterable[Any]]:
    """What a value of several parts is called, and these."""
    if isinstance(value, FarmError):
        return "!", (type(value).__name__, value.message, value.detail)
    if isinstance(value, graphpipe_tensors.Fault):
        return "!!", (value.code.value, value.message)
    name = _NAMES.get(type(value))
    if name is not None:
        return name, _fields(value)
    tag = _TAGS.get(type(value))
    if tag is None:
        raise TypeError(f"a {type(value).__name__} does not travel")
    return tag, value


_TAGS: Mapping[type[Any], str] = {list: "l", tuple: "t", frozenset: "f"}


def _fields(value: Any) -> Sequence[Any]:
    if isinstance(value, Enum):
        return (value.value,)
    if isinstance(value, tuple):
        return value
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def _value(data: Any, frames: Sequence[Buffer], body: object) -> Any:
    if type(data) is dict:
        return {key: _value(part, frames, body) for key, part in data.items()}
    if type(data) is not list:
        return data
    tag, *parts = data
    if tag == "@":
        return body
    if tag == "a":
        return array_at(frames, 0, parts[0])
    if tag == "n":
        return _listed(*[array_at(frames, 0, part) for part in parts])
    if tag in ("b", "s"):
        raw = array_at(frames, 0, parts[0])
        if tag == "s":
            return raw.tobytes().decode("utf-8", "surrogatepass")
        return raw.tobytes() if raw.nbytes <= INLINE_BYTES else raw.data
    values = [_value(part, frames, body) for part in parts]
    if tag == "l":
        return values
    if tag == "t":
        return tuple(values)
    if tag == "f":
        return frozenset(values)
    if tag == "!":
        return error_named(*values)
    if tag == "!!":
        return graphpipe_tensors.Fault(graphpipe_tensors.Code(values[0]), values[1])
    return KINDS[tag](*values)
