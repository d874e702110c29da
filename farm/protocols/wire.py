"""farm's own messages between dispatcher, workers and native clients; docs/messages.md tells them.

A message is a list of frames. Frame 0 is an 8-byte head (version, kind, length of the JSON), the
JSON, padding to 8 bytes, and the bytes of small arrays. Large arrays follow as frames of their own,
so that they are never copied on the way. Nothing here is ever unpickled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import orjson

from farm.call import EMPTY_CONFIG, Array, Call, Derivative, Hints, ModelInfo, Operation, Result
from farm.errors import FarmError, InvalidRequest, error_named

VERSION = 1

INLINE_BYTES = 32 * 1024
"""Arrays up to this size travel inside frame 0: copying costs less than a frame of their own."""

_HEAD = struct.Struct("<BBHI")

Buffer = bytes | memoryview
Outcome = Result | FarmError


class Kind(IntEnum):
    """What a message says. W: worker, S: supervisor, C: native client, D: dispatcher."""

    JOIN = 1  # W to D: WorkerInfo
    WELCOME = 2  # D to W, C: you are known; to C with the number of this acquaintance
    CALLS = 3  # D to W, C to D: tasks
    ANSWERS = 4  # W to D, D to C: results and errors
    TAKE_BACK = 5  # D to W: hand these back if not begun
    TAKEN_BACK = 6  # W to D: these were not begun and will not be
    LEAVE = 7  # W to D: drained, going
    JOIN_AGAIN = 8  # D to W: your name means nothing here
    PROBE = 9  # D to W, C: are you there; needs no answer
    STOP = 10  # D to W, S: drain and end
    LOST = 11  # S to D: a worker of mine died, and why
    CANCEL = 12  # C to D: the caller is gone
    ASK = 13  # C to D: models, status
    TELL = 14  # D to C: the answer to an ASK
    RESIZE = 15  # W to D: I now offer this many slots; 0: I am draining


@dataclass(frozen=True, slots=True)
class Message:
    """One decoded message: its kind, its JSON, and the bytes that arrays are cut from."""

    kind: Kind
    data: Any
    frames: Sequence[Buffer] = ()
    inline_at: int = 0


def encode(
    kind: Kind, data: Any = None, arrays: bytes = b"", large: Iterable[Array] = ()
) -> list[Buffer]:
    """The frames of a message."""
    text = orjson.dumps(data)
    head = _HEAD.pack(VERSION, kind, 0, len(text)) + text
    if arrays:
        head += bytes(-len(head) % 8) + arrays
    return [head, *(a.data.cast("B") for a in large)]


def decode(frames: Sequence[Buffer]) -> Message:
    """The message in these frames. Raises InvalidRequest when it is none of this version."""
    first = frames[0] if frames else b""
    if len(first) < _HEAD.size:
        raise InvalidRequest(f"message of {len(first)} bytes; the head alone has {_HEAD.size}")
    version, kind, _, length = _HEAD.unpack_from(first)
    if version != VERSION:
        raise InvalidRequest(
            f"message of wire version {version}; this farm speaks {VERSION}: "
            "install the same modelfarm on both sides"
        )
    end = _HEAD.size + length
    if end > len(first):
        raise InvalidRequest(f"message announces {length} bytes of JSON, has {len(first) - 8}")
    try:
        data = orjson.loads(memoryview(first)[_HEAD.size : end])
        known = Kind(kind)
    except ValueError as error:
        raise InvalidRequest(f"message of kind {kind} is malformed: {error}") from None
    return Message(known, data, frames, end + -end % 8)


class _ArrayWriter:
    """Collects the arrays of one message and says where each lies."""

    __slots__ = ("inline", "large", "length")

    def __init__(self) -> None:
        self.inline: list[bytes] = []
        self.length = 0
        self.large: list[Array] = []

    def put(self, array: Array) -> list[Any]:
        nbytes = array.nbytes
        if nbytes > INLINE_BYTES:
            self.large.append(np.ascontiguousarray(array).reshape(-1))
            return [array.dtype.str, array.shape, -len(self.large)]
        at = self.length
        self.inline.append(array.tobytes())
        if nbytes % 8:
            self.inline.append(bytes(-nbytes % 8))
            nbytes += -nbytes % 8
        self.length = at + nbytes
        return [array.dtype.str, array.shape, at]


def _array(message: Message, where: Any) -> Array:
    """The array that `where` describes; read-only, without copying."""
    text, shape, at = where
    if text == "<f8":
        dtype: np.dtype[Any] = _FLOAT64
    else:
        dtype = np.dtype(text)
        if dtype.kind not in "biufc":
            raise ValueError(f"arrays of {text} do not travel")
    if at < 0:
        return np.frombuffer(message.frames[-at], dtype).reshape(shape)
    count = shape[0] if len(shape) == 1 else math.prod(shape)
    array = np.frombuffer(message.frames[0], dtype, count, message.inline_at + at)
    return array if len(shape) == 1 else array.reshape(shape)


_FLOAT64 = np.dtype("<f8")


def encode_calls(tasks: Iterable[tuple[int, Call]], hints: Hints | None = None) -> list[Buffer]:
    """CALLS: each task's id and call; from a client with its hints, which hold for all of them."""
    writer = _ArrayWriter()
    put = writer.put
    rows: list[Any] = []
    for task_id, call in tasks:
        row: list[Any] = [task_id, call.model, call.operation, [put(a) for a in call.inputs]]
        wrt = call.derivative
        if call.config is not EMPTY_CONFIG or call.rows is not None or wrt is not None:
            row += [call.config, call.rows]
            if wrt is not None:
                row += [
                    wrt.out_wrt,
                    wrt.in_wrt,
                    wrt.in_wrt2,
                    None if wrt.sens is None else put(wrt.sens),
                    None if wrt.vec is None else put(wrt.vec),
                ]
        rows.append(row)
    said = None if hints is None else [hints.client, hints.priority, hints.deadline_s]
    return encode(Kind.CALLS, [said, rows], b"".join(writer.inline), writer.large)


def decode_calls(message: Message) -> tuple[Hints | None, list[tuple[int, Call]]]:
    """What `encode_calls` wrote. Raises InvalidRequest."""
    try:
        said, rows = message.data
        hints = None if said is None else Hints(str(said[0]), int(said[1]), said[2])
        return hints, [_call(message, row) for row in rows]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise InvalidRequest(f"malformed CALLS message: {error}") from None


def _call(message: Message, row: list[Any]) -> tuple[int, Call]:
    inputs = tuple([_array(message, where) for where in row[3]])
    operation = _OPERATIONS[row[2]]
    if len(row) == 4:
        return row[0], Call(row[1], operation, inputs)
    derivative = None
    if len(row) > 6:
        out_wrt, in_wrt, in_wrt2, sens, vec = row[6:]
        derivative = Derivative(
            out_wrt,
            in_wrt,
            in_wrt2,
            None if sens is None else _array(message, sens),
            None if vec is None else _array(message, vec),
        )
    return row[0], Call(row[1], operation, inputs, row[4], derivative, row[5])


_OPERATIONS = {operation.value: operation for operation in Operation}


def encode_answers(answers: Iterable[tuple[int, Outcome]]) -> list[Buffer]:
    """ANSWERS: each task's id and its result or error."""
    writer = _ArrayWriter()
    put = writer.put
    results: list[Any] = []
    errors: list[Any] = []
    for task_id, outcome in answers:
        if isinstance(outcome, FarmError):
            texts = (type(outcome).__name__, outcome.message, outcome.detail)
            errors.append([task_id, *(t.encode("utf-8", "replace").decode() for t in texts)])
            continue
        row = [task_id, [put(a) for a in outcome.outputs], outcome.run_time_s, outcome.idle_s]
        if outcome.info is not None or outcome.worker:
            info = None if outcome.info is None else outcome.info.to_json()
            row += [outcome.worker, outcome.queue_time_s, info]
        results.append(row)
    return encode(Kind.ANSWERS, [results, errors], b"".join(writer.inline), writer.large)


def decode_answers(message: Message) -> list[tuple[int, Outcome]]:
    """What `encode_answers` wrote. Raises InvalidRequest."""
    try:
        results, errors = message.data
        answers: list[tuple[int, Outcome]] = [(row[0], _result(message, row)) for row in results]
        answers.extend((row[0], error_named(*row[1:])) for row in errors)
        return answers
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise InvalidRequest(f"malformed ANSWERS message: {error}") from None


def _result(message: Message, row: list[Any]) -> Result:
    outputs = tuple([_array(message, where) for where in row[1]])
    if len(row) == 4:
        return Result(outputs, row[2], idle_s=row[3])
    info = None if row[6] is None else ModelInfo.from_json(row[6])
    return Result(outputs, row[2], info, row[4], row[5], row[3])
