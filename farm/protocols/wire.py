"""farm's own messages between dispatcher, workers and native clients; docs/messages.md tells them.

A message is a list of frames. Frame 0 is an 8-byte head (version, kind, length of the JSON), the
JSON, padding to 8 bytes, and the bytes of small arrays. Large arrays follow as frames of their own,
so that they are never copied on the way. Nothing here is ever unpickled.

Whatever bytes arrive, decoding gives a value or raises InvalidRequest. A call or an answer that
cannot be read though its message can becomes an error in its place: it is answered, not lost.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import orjson

from farm.call import (
    EMPTY_CONFIG,
    Array,
    Call,
    Derivative,
    Hints,
    ModelInfo,
    Operation,
    Result,
    WorkerInfo,
)
from farm.errors import FarmError, InvalidOutput, InvalidRequest, error_named

VERSION = 1

INLINE_BYTES = 32 * 1024
"""Arrays up to this size travel inside frame 0: copying costs less than a frame of their own."""

LONGEST_S = 1e9
"""No time in a message is longer; thirty years, so that sums and timers stay finite."""

MOST_DIMENSIONS = 32

_HEAD = struct.Struct("<BBHI")

_FLOAT64 = np.dtype("<f8")
_DTYPES = {
    dtype.str: dtype
    for code in "?bhiqBHIQefdFD"
    for dtype in (np.dtype(f"<{code}"), np.dtype(f">{code}"))
}
"""Types of entries that travel: plain numbers of a size that all machines agree on."""

Buffer = bytes | bytearray | memoryview
Outcome = Result | FarmError


class Kind(IntEnum):
    """What a message says. W: worker, S: supervisor, C: native client, D: dispatcher."""

    JOIN = 1  # W to D: WorkerInfo, and which life of this worker begins
    WELCOME = 2  # D to W: that life is known; D to C: the number of this acquaintance
    CALLS = 3  # D to W, C to D: tasks
    ANSWERS = 4  # W to D, D to C: results and errors
    TAKE_BACK = 5  # D to W: hand these back if not begun
    TAKEN_BACK = 6  # W to D: these were not begun and will not be
    LEAVE = 7  # W, C to D: drained or done, going
    JOIN_AGAIN = 8  # D to W: your name means nothing here
    PROBE = 9  # D to W, C: are you there; W, C to D: am I known
    STOP = 10  # D to W, S: drain and end
    LOST = 11  # S to D: a worker of mine died, and why
    CANCEL = 12  # C to D: the caller is gone
    ASK = 13  # C to D: models, status
    TELL = 14  # D to C: the answer to an ASK
    RESIZE = 15  # W to D: I now offer this many slots; 0: I am draining
    CALLS_AGAIN = 16  # C to D: the connection broke and I still wait for these
    CHECK = 17  # D to W: you should hold these
    MISSING = 18  # W to D: of those I hold not these
    REFUSED = 19  # D to W, S, C: what you said cannot be used, and why


@dataclass(frozen=True, slots=True)
class Message:
    """One decoded message: its kind, its JSON, and the bytes that arrays are cut from."""

    kind: Kind
    data: Any
    frames: Sequence[Buffer] = ()
    inline_at: int = 0


class Loss(NamedTuple):
    """A supervisor's word on a worker that died; running: None when that cannot be told."""

    worker: str
    reason: str
    running: list[int] | None
    time_limit: bool


def encode(
    kind: Kind, data: Any = None, arrays: bytes = b"", large: Iterable[Array] = ()
) -> list[Buffer]:
    """The frames of a message. Raises TypeError when `data` is not JSON data."""
    text = orjson.dumps(data)
    head = _HEAD.pack(VERSION, kind, 0, len(text)) + text
    if arrays:
        head += bytes(-len(head) % 8) + arrays
    return [head, *(a.view(np.uint8).data for a in large)]


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


# Arrays


class _ArrayWriter:
    """Collects the arrays of one message and says where each lies."""

    __slots__ = ("inline", "large", "length")

    def __init__(self) -> None:
        self.inline: list[bytes] = []
        self.length = 0
        self.large: list[Array] = []

    def put(self, array: Array) -> list[Any]:
        dtype = array.dtype.str
        if dtype not in _DTYPES:
            raise TypeError(f"arrays of {array.dtype} do not travel; float64 does")
        nbytes = array.nbytes
        if nbytes > INLINE_BYTES:
            self.large.append(np.ascontiguousarray(array).reshape(-1))
            return [dtype, array.shape, -len(self.large)]
        at = self.length
        self.inline.append(array.tobytes())
        if nbytes % 8:
            self.inline.append(bytes(-nbytes % 8))
            nbytes += -nbytes % 8
        self.length = at + nbytes
        return [dtype, array.shape, at]


def _array(message: Message, where: Any) -> Array:
    """The array that `where` describes, without copying; it may be written to if its frame may."""
    text, shape, at = where
    dtype = _FLOAT64 if text == "<f8" else _DTYPES[text]
    if len(shape) == 1:
        count = shape[0]
    elif len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"an array of {len(shape)} dimensions; at most {MOST_DIMENSIONS} travel")
    else:
        count = math.prod(shape)
    if count <= 0:
        if count == 0:
            return np.empty(shape, dtype)
        raise ValueError(f"an array of shape {shape}")
    if at < 0:
        return np.frombuffer(message.frames[-at], dtype).reshape(shape)
    array = np.frombuffer(message.frames[0], dtype, count, message.inline_at + at)
    return array if len(shape) == 1 else array.reshape(shape)


_MALFORMED = (TypeError, ValueError, LookupError, AttributeError, OverflowError)
"""What reading JSON data raises that has not the expected form."""


def _malformed(what: str, error: Exception) -> InvalidRequest:
    text = f"{type(error).__name__}: {error}"
    return InvalidRequest(f"malformed {what}: {text[:200]}")


# Calls


def encode_calls(
    tasks: Iterable[tuple[int, Call]], hints: Hints | None = None, *, kind: Kind = Kind.CALLS
) -> list[Buffer]:
    """CALLS: each task's id and call; from a client with its hints, which hold for all of them.

    Raises TypeError when something in a call cannot travel.
    """
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
    return encode(kind, [said, rows], b"".join(writer.inline), writer.large)


def decode_calls(message: Message) -> tuple[Hints | None, list[tuple[int, Call | InvalidRequest]]]:
    """What `encode_calls` wrote; an error in place of a call that cannot be read.

    The arrays are for reading only, as a Call is never changed. Raises InvalidRequest.
    """
    try:
        said, rows = message.data
        hints = None if said is None else _hints(*said)
        tasks: list[tuple[int, Call | InvalidRequest]] = []
        for row in rows:
            task_id = _id(row[0])
            try:
                tasks.append((task_id, _call(message, row)))
            except _MALFORMED as error:
                tasks.append((task_id, _malformed("call", error)))
        return hints, tasks
    except _MALFORMED as error:
        raise _malformed(f"{message.kind.name} message", error) from None


def _hints(client: Any, priority: Any, deadline_s: Any) -> Hints:
    if deadline_s is not None and not -LONGEST_S <= deadline_s <= LONGEST_S:
        raise ValueError(f"a deadline of {deadline_s} s")
    return Hints(_text(client), _id(priority), deadline_s)


def _call(message: Message, row: list[Any]) -> Call:
    inputs = tuple([_array(message, where) for where in row[3]])
    model = _text(row[1])
    operation = _OPERATIONS[row[2]]
    if len(row) == 4:
        return Call(model, operation, inputs)
    config, rows = row[4:6]
    if rows is not None and _id(rows) < 1:
        raise ValueError(f"a call of {rows} rows")
    derivative = None
    if len(row) > 6:
        out_wrt, in_wrt, in_wrt2, sens, vec = row[6:]
        derivative = Derivative(
            _id(out_wrt),
            _id(in_wrt),
            _id(in_wrt2),
            None if sens is None else _array(message, sens),
            None if vec is None else _array(message, vec),
        )
    return Call(model, operation, inputs, _text(config), derivative, rows)


_OPERATIONS = {operation.value: operation for operation in Operation}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


def _id(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {value!r}")
    return value


# Answers


def encode_answers(answers: Iterable[tuple[int, Outcome]]) -> list[Buffer]:
    """ANSWERS: each task's id and its result or error; an error too for what cannot travel."""
    writer = _ArrayWriter()
    put = writer.put
    results: list[Any] = []
    errors: list[Any] = []
    for task_id, outcome in answers:
        if isinstance(outcome, Result):
            try:
                arrays = [put(a) for a in outcome.outputs]
            except TypeError as error:
                outcome = InvalidOutput(f"the model's answer cannot be sent: {error}")
            else:
                row = [task_id, arrays, outcome.run_time_s, outcome.idle_s]
                if outcome.info is not None or outcome.worker:
                    info = None if outcome.info is None else outcome.info.to_json()
                    row += [outcome.worker, outcome.queue_time_s, info]
                results.append(row)
                continue
        texts = (type(outcome).__name__, outcome.message, outcome.detail)
        errors.append([task_id, *(t.encode("utf-8", "replace").decode() for t in texts)])
    return encode(Kind.ANSWERS, [results, errors], b"".join(writer.inline), writer.large)


def decode_answers(message: Message) -> list[tuple[int, Outcome]]:
    """What `encode_answers` wrote; an error in place of an answer that cannot be read.

    The arrays may be written to: nobody else has them. Raises InvalidRequest.
    """
    try:
        results, errors = message.data
        answers: list[tuple[int, Outcome]] = []
        if results:
            frames = [bytearray(message.frames[0]), *message.frames[1:]]
            message = Message(message.kind, message.data, frames, message.inline_at)
        for row in results:
            task_id = _id(row[0])
            try:
                answers.append((task_id, _result(message, row)))
            except _MALFORMED as error:
                unread = _malformed("answer", error).message
                answers.append((task_id, InvalidOutput(unread)))
        for task_id, name, text, detail in errors:
            answers.append((_id(task_id), error_named(_text(name), _text(text), _text(detail))))
        return answers
    except _MALFORMED as error:
        raise _malformed("ANSWERS message", error) from None


def _result(message: Message, row: list[Any]) -> Result:
    outputs = tuple([_array(message, where) for where in row[1]])
    run_time_s, idle_s = row[2], row[3]
    if not (0.0 <= run_time_s <= LONGEST_S and -1.0 <= idle_s <= LONGEST_S):
        raise ValueError(f"a run of {run_time_s} s after {idle_s} s")
    if len(row) == 4:
        return Result(outputs, run_time_s, idle_s=idle_s)
    worker, queue_time_s, info = row[4:]
    known = None if info is None else ModelInfo.from_json(info)
    return Result(outputs, run_time_s, known, _text(worker), float(queue_time_s), idle_s)


# The rest


def encode_join(life: str, info: WorkerInfo) -> list[Buffer]:
    """JOIN; `life` is new each time that the worker begins anew, and what it held then is void."""
    return encode(Kind.JOIN, [life, info.to_json()])


def decode_join(message: Message) -> tuple[str, WorkerInfo]:
    """What `encode_join` wrote. Raises InvalidRequest."""
    try:
        life, info = message.data
        return _text(life), WorkerInfo.from_json(info)
    except _MALFORMED as error:
        raise _malformed("JOIN message", error) from None


def encode_loss(loss: Loss) -> list[Buffer]:
    """LOST: a supervisor's word on a worker that died."""
    return encode(Kind.LOST, list(loss))


def decode_loss(message: Message) -> Loss | None:
    """What `encode_loss` wrote; None: a supervisor says no more than that it is there.

    Raises InvalidRequest.
    """
    if message.data is None:
        return None
    try:
        worker, reason, running, time_limit = message.data
        ids = None if running is None else [_id(i) for i in running]
        return Loss(_text(worker), _text(reason), ids, bool(time_limit))
    except _MALFORMED as error:
        raise _malformed("LOST message", error) from None


def decode_ids(message: Message) -> list[int]:
    """The ids of calls that the message is about. Raises InvalidRequest."""
    ids = message.data
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise InvalidRequest(f"malformed {message.kind.name} message: expected a list of numbers")
    return ids
