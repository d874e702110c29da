"""farm's own messages between dispatcher, workers and native clients; see docs/messages.md.

A message is a list of frames. Frame 0 is an 8-byte head (version, kind, length of the JSON), the
JSON, padding to 8 bytes, and the bytes of small arrays. Large arrays follow as separate frames, so
that they are never copied on the way. Nothing is unpickled.

Calls of tiny models come in hundreds that differ only in their numbers, and so do their answers;
their common part is sent once, as a group.

For any bytes, decoding returns a value or raises InvalidRequest. A malformed call or answer in a
well-formed message becomes an error in its place: it is answered, not lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache, partial
from itertools import chain, starmap
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import orjson

from farm.call import (
    EMPTY_CONFIG,
    LONGEST_NAME,
    MAX_PRIORITY,
    Array,
    Buffer,
    Call,
    Derivative,
    Hints,
    ModelInfo,
    Operation,
    Origin,
    Result,
    WorkerInfo,
    checked_call_id,
    immutable,
)
from farm.errors import FarmError, InvalidOutput, InvalidRequest, LossCause, error_named
from farm.sequences import SequenceId, checked_id, step_of_row
from farm.wire.arrays import ArrayWriter, array_at, calls_of, column_at
from farm.wire.groups import CallGroup, call_group, result_group, rows_group
from farm.wire.runs import A_PIECE, pieces_of, runs_of_answers, runs_of_calls

VERSION = 2

WORTH_A_GROUP = 4
"""Fewer similar calls or answers than this are encoded one by one."""

HEAD = struct.Struct("<BBHI")  # the last: bytes of JSON

Outcome = Result | FarmError
Tasks = list[tuple[int, Call | InvalidRequest]]
SomeTasks = Tasks | CallGroup
Answers = list[tuple[int, Outcome]]


class Kind(IntEnum):
    """The kind of a message. W: worker, S: supervisor, C: native client, D: dispatcher."""

    JOIN = 1  # W to D: WorkerInfo, and an id for this life of the worker
    WELCOME = 2  # D to W: that life is known; D to C: the number of this session
    CALLS = 3  # D to W, C to D: tasks
    ANSWERS = 4  # W to D, D to C: results and errors
    RECALL = 5  # D to W: recall these if not begun
    RECALLED = 6  # W to D: these were not begun and will not be
    LEAVE = 7  # W, C to D: drained or done, leaving
    JOIN_AGAIN = 8  # D to W: your name is unknown, join again
    PROBE = 9  # D to W, C: are you there; W, C to D: am I known; W to D: what I use
    STOP = 10  # D to W, S: drain and end
    LOST = 11  # S to D: a worker of mine died, and why
    CANCEL = 12  # C to D: the caller has cancelled these
    ASK = 13  # C to D: a question about the farm
    TELL = 14  # D to C: the answer to an ASK
    RESIZE = 15  # W to D: I now offer this many slots; 0: I am draining
    CALLS_AGAIN = 16  # C to D: the connection broke and I still wait for these
    CHECK = 17  # D to W: you should hold these
    MISSING = 18  # W to D: I do not hold these
    REFUSED = 19  # D to W, S, C: your message is refused, and why
    END_STREAM = 20  # D to W: answers to these are no longer needed
    RESTART = 21  # D to S: kill these workers of yours and start others
    END_SEQUENCES = 22  # D to W: forget the states of these sequences
    CANCEL_WAITING = 23  # C to D: cancel those of these that no worker has, and answer them


@immutable
class Message:
    """One decoded message: its kind, its JSON, and the frames that hold its arrays."""

    kind: Kind
    data: Any
    frames: Sequence[Buffer] = ()
    inline_at: int = 0


class Loss(NamedTuple):
    """A supervisor's report of a worker's death; running: None if unknown.

    row: for a run of rows the one that was running, if known. detail: the worker's last output.
    """

    worker: str
    reason: str
    running: Sequence[int] | None
    cause: LossCause = LossCause.UNKNOWN
    row: int | None = None
    detail: str = ""


def encode(
    kind: Kind, data: Any = None, arrays: bytes = b"", large: Sequence[Array] = ()
) -> list[Buffer]:
    """Return the frames of a message. Raises TypeError if `data` is not JSON data."""
    text = orjson.dumps(data)
    length = len(text)
    head = HEAD.pack(VERSION, kind, 0, length) + text
    if arrays:
        head += bytes(-length % 8) + arrays  # as the part before the JSON has 8 bytes
    return [head, *(a.view(np.uint8).data for a in large)] if large else [head]


def decode(frames: Sequence[Buffer]) -> Message:
    """Return the message in these frames. Raises InvalidRequest for other bytes or versions."""
    first = frames[0] if frames else b""
    if (size := len(first)) < HEAD.size:
        raise InvalidRequest(f"message of {size} bytes; the head alone has {HEAD.size}")
    version, kind, _, length = HEAD.unpack_from(first)
    if version != VERSION:
        raise InvalidRequest(
            f"message of wire version {version}; this farm speaks {VERSION}: "
            "install the same modelfarm on both sides"
        )
    end = HEAD.size + length
    if end > size:
        raise InvalidRequest(f"message announces {length} bytes of JSON, has {size - 8}")
    try:
        data = orjson.loads(memoryview(first)[HEAD.size : end])
        known = _KINDS[kind]
    except (ValueError, KeyError) as error:
        raise InvalidRequest(f"message of kind {kind} is malformed: {error}") from None
    return Message(known, data, frames, end + -end % 8)


_KINDS = {kind.value: kind for kind in Kind}


def _columns(message: Message, columns: Any, count: int) -> list[Array]:
    return [column_at(message.frames, message.inline_at, where, count) for where in columns]


_MALFORMED = (TypeError, ValueError, LookupError, AttributeError, OverflowError)
"""Exceptions raised when JSON data does not have the expected form."""


def _malformed(what: str, error: Exception) -> InvalidRequest:
    text = f"{type(error).__name__}: {error}"
    return InvalidRequest(f"malformed {what}: {text[:200]}")


# Calls


def encode_calls(
    tasks: Iterable[tuple[int, Call]], hints: Hints | None = None, *, kind: Kind = Kind.CALLS
) -> list[Buffer]:
    """Encode CALLS: each task's id and call; from a client with its hints, common to all of them.

    Raises TypeError if a call contains an unsupported value.
    """
    writer = ArrayWriter()
    rows: list[Any] = []
    tasks = list(tasks)
    many = len(tasks) >= WORTH_A_GROUP
    for run in runs_of_calls(tasks) if many else [tasks]:
        if many and len(run) >= WORTH_A_GROUP:
            rows.append(call_group(writer, run))
        else:
            rows += starmap(partial(_call_row, writer), run)
    said = None if hints is None else hints_row(hints)
    return encode(kind, [said, rows], b"".join(writer.inline), writer.large)


def _call_row(writer: ArrayWriter, task_id: int, call: Call) -> list[Any]:
    put = writer.put
    row: list[Any] = [task_id, call.model, call.operation, list(map(put, call.inputs))]
    wrt, origin = call.derivative, call.origin
    if call.config is not EMPTY_CONFIG or call.rows is not None or wrt or origin or call.step:
        row += [call.config, call.rows]
        if wrt is not None:
            vectors = [None if vector is None else put(vector) for vector in (wrt.sens, wrt.vec)]
            row += [wrt.out_wrt, wrt.in_wrt, wrt.in_wrt2, *vectors]
        if origin is not None or call.step is not None:
            row += last_fields(call)
    return row


def decode_calls(message: Message) -> tuple[Hints | None, Tasks]:
    """Return what `encode_calls` wrote, with an error in place of a malformed call.

    The arrays are read-only, as a Call never changes. Raises InvalidRequest.
    """
    hints, some = decode_some_calls(message)
    return hints, list(chain(*some))


def decode_some_calls(
    message: Message, sender: str = ""
) -> tuple[Hints | None, Iterable[SomeTasks]]:
    """Decode a few hundred calls at a time, grouped ones as CallGroup; iterating may raise, too.

    A single call is decoded at once, to a list. sender: as for `hints_of_row`.
    """
    try:
        said, rows = message.data
        hints = None if said is None else hints_of_row(sender, *said)
        if len(rows) == 1 and type(rows[0][0]) is int:
            return hints, [[(rows[0][0], _call(message, rows[0]))]]
    except _MALFORMED as error:
        raise _malformed(f"{message.kind.name} message", error) from None
    return hints, _some_calls(message, rows)


def _some_calls(message: Message, rows: Iterable[Any]) -> Iterator[SomeTasks]:
    try:
        tasks: Tasks = []
        for row in rows:
            if type(row[0]) is list:
                yield tasks
                tasks = []
                for piece in pieces_of(row, 3, (0,)):
                    yield _calls(message, piece)
                continue
            tasks.append((_id(row[0]), _call(message, row)))
            if len(tasks) >= A_PIECE:
                yield tasks
                tasks = []
        yield tasks
    except _MALFORMED as error:
        raise _malformed(f"{message.kind.name} message", error) from None


def _calls(message: Message, group: list[Any]) -> SomeTasks:
    """Return the calls of a group, or one error for all of them."""
    ids = _ids(group[0])
    try:
        _, model, operation, columns, config, *wrt = group
        known, config = _OPERATIONS[operation], _text(config)
        if config == EMPTY_CONFIG:
            config = EMPTY_CONFIG  # this object, for fast comparison
        arrays = _columns(message, columns, len(ids))
        if known is Operation.EVALUATE and arrays and not wrt:
            return CallGroup(ids, Call(_text(model), known, tuple(arrays), config, rows=len(ids)))
        rows = [list(array) for array in arrays]
        return list(zip(ids, calls_of(model, known, config, rows, wrt), strict=True))
    except _MALFORMED as error:
        wrong = _malformed("group of calls", error)
        return [(task_id, wrong) for task_id in ids]


def _call(message: Message, row: list[Any]) -> Call | InvalidRequest:
    """Return the call of a row, or an error in its place."""
    try:
        _, name, known, arrays, *more = row
        inputs = tuple(map(partial(array_at, message.frames, message.inline_at), arrays))
        model, operation = name if type(name) is str else _text(name), _OPERATIONS[known]
        if not more:
            return Call(model, operation, inputs)
        config, rows = row[4], None if row[5] is None else _rows(row[5])
        step = step_of_row(row.pop()) if len(row) == 8 else None
        said = row.pop() if len(row) in (7, 12) else None
        origin = None if said is None else origin_of(said)
        derivative = None
        if len(row) > 6:
            out_wrt, in_wrt, in_wrt2, sens, vec = row[6:]
            derivative = Derivative(
                _id(out_wrt),
                _id(in_wrt),
                _id(in_wrt2),
                None if sens is None else array_at(message.frames, message.inline_at, sens),
                None if vec is None else array_at(message.frames, message.inline_at, vec),
            )
        return Call(model, operation, inputs, _text(config), derivative, rows, origin, step)
    except _MALFORMED as error:
        return _malformed("call", error)


_OPERATIONS = {operation.value: operation for operation in Operation}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r}")
    return value


def _id(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {value!r}")
    return value


def _ids(values: Any) -> list[int]:
    ids = list(values)
    if set(map(type, ids)) != {int}:
        return [_id(value) for value in ids]
    return ids


def _rows(value: Any) -> int:
    if _id(value) < 1:
        raise ValueError(f"{value} rows")
    return int(value)


# Answers


def encode_answers(
    answers: Iterable[tuple[int, Outcome]], groups: Iterable[tuple[Sequence[int], Result]] = ()
) -> list[Buffer]:
    """Encode ANSWERS: each task's id and its result or error; unsupported values become errors.

    groups: ids, and a `groupable` result with a row for each of them.
    """
    writer = ArrayWriter()
    results: list[Any] = []
    errors: list[Any] = []
    for ids, result in groups:
        results.append(rows_group(writer, ids, result))
    answers = list(answers)
    many = len(answers) >= WORTH_A_GROUP
    runs: Iterable[list[tuple[int, Any]]] = runs_of_answers(answers) if many else [answers]
    for run in runs:
        if many and len(run) >= WORTH_A_GROUP:
            results.append(result_group(writer, run))
            continue
        for task_id, outcome in run:
            if type(outcome) is Result:
                try:
                    results.append(_result_row(writer, task_id, outcome))
                    continue
                except TypeError as error:
                    outcome = InvalidOutput(f"the model's answer cannot be sent: {error}")
            errors.append([task_id, *error_row(outcome)])
    return encode(Kind.ANSWERS, [results, errors], b"".join(writer.inline), writer.large)


def _result_row(writer: ArrayWriter, task_id: int, result: Result) -> list[Any]:
    arrays = list(map(writer.put, result.outputs))
    row = [task_id, arrays, result.run_time_s, result.idle_s, result.queue_time_s]
    times, batch_rows = result.row_times_s, result.batch_rows
    stated = result.info, result.failed, result.copied, result.reused, result.more, result.worker
    if (*stated, batch_rows, times) != (None, None, False, False, False, "", 1, ()):
        info = None if result.info is None else result.info.to_json()
        failed = None if result.failed is None else error_row(result.failed)
        row += [result.worker, info, batch_rows, result.more, failed]
        if result.reused or times:
            row += [result.copied, result.reused, *([times] if times else [])]
        elif result.copied:
            row += [True]
    return row


def error_row(error: FarmError) -> list[str]:
    """Return the kind, message and detail of an error, as texts that JSON can hold."""
    texts = (type(error).__name__, error.message, error.detail)
    return [text.encode("utf-8", "replace").decode() for text in texts]


def decode_answers(message: Message) -> list[tuple[int, Outcome]]:
    """Return what `encode_answers` wrote, with an error in place of a malformed answer.

    The arrays are writable: they have no other owner. Raises InvalidRequest.
    """
    return list(chain.from_iterable(decode_some_answers(message)))


def decode_some_answers(message: Message) -> Iterable[Answers]:
    """Decode a few hundred answers at a time; a single one is decoded at once, to a list."""
    try:
        results, errors = message.data
        frames = [bytearray(message.frames[0]), *message.frames[1:]] if results else ()
        if errors == [] and len(results) == 1 and type(results[0][0]) is int:
            return [[(results[0][0], _result(frames, message.inline_at, results[0]))]]
    except _MALFORMED as error:
        raise _malformed(f"{message.kind.name} message", error) from None
    return _some_answers(Message(message.kind, message.data, frames, message.inline_at))


def _some_answers(message: Message) -> Iterator[Answers]:
    try:
        results, errors = message.data
        answers: Answers = []
        for row in results:
            if type(row[0]) is list:
                yield answers
                answers = []
                for piece in pieces_of(row, 1, (0, 2, 3, 5)):
                    yield list(_results(message, piece))
                continue
            answers.append((_id(row[0]), _result(message.frames, message.inline_at, row)))
            if len(answers) >= A_PIECE:
                yield answers
                answers = []
        for first in range(0, len(errors), A_PIECE):
            yield answers
            answers = [
                (_id(task_id), error_named(_text(name), _text(text), _text(detail)))
                for task_id, name, text, detail in errors[first : first + A_PIECE]
            ]
        yield answers
    except _MALFORMED as error:
        raise _malformed(f"{message.kind.name} message", error) from None


def _results(message: Message, group: list[Any]) -> Iterable[tuple[int, Outcome]]:
    """Yield the results of a group, or one error for all of them."""
    ids = _ids(group[0])
    try:
        _, columns, run_times_s, idle_s, worker, queue_times_s, batch_rows = group
        rows = _rows(batch_rows)
        _check_times(min(run_times_s), min(idle_s), min(queue_times_s))
        _check_times(max(run_times_s), max(idle_s))
        name = _text(worker)
        outputs = zip(*_columns(message, columns, len(ids)), strict=True)
        results = [
            Result(y, run_s, None, name, queue_s, idle, rows)
            for y, run_s, queue_s, idle in zip(
                outputs, run_times_s, queue_times_s, idle_s, strict=True
            )
        ]
        return zip(ids, results, strict=True)
    except _MALFORMED as error:
        unread = InvalidOutput(_malformed("group of answers", error).message)
        return [(task_id, unread) for task_id in ids]


def _check_times(run_time_s: float, idle_s: float, queue_time_s: float = 0.0) -> None:
    fit = 0.0 <= run_time_s <= LONGEST_S and 0.0 <= queue_time_s <= LONGEST_S
    if not (fit and -1.0 <= idle_s <= LONGEST_S):
        raise ValueError(f"a run of {run_time_s} s after {idle_s} and {queue_time_s} s")


def _result(frames: Sequence[Buffer], inline_at: int, row: list[Any]) -> Outcome:
    """Return the result of a row, or an error in its place."""
    try:
        _, arrays, run_s, idle_s, queue_s, *rest = row
        outputs = tuple(map(partial(array_at, frames, inline_at), arrays))
        if not (0.0 <= run_s <= LONGEST_S >= queue_s >= 0.0 and -1.0 <= idle_s <= LONGEST_S):
            _check_times(run_s, idle_s, queue_s)
        if not rest:
            return Result(outputs, run_s, None, "", queue_s, idle_s)
        worker, info, batch_rows, more, failed, *marks = rest
        known = None if info is None else ModelInfo.from_json(info)
        error = None if failed is None else error_named(*map(_text, failed))
        name = worker if type(worker) is str else _text(worker)
        rows = batch_rows if type(batch_rows) is int and batch_rows > 0 else _rows(batch_rows)
        copied, reused, times = marks[:1] == [True], marks[1:2] == [True], tuple(*marks[2:3])
        if times:
            _check_times(min(times), max(times))
        run = run_s, known, name, queue_s, idle_s, rows
        return Result(outputs, *run, bool(more), error, copied, reused, times)
    except _MALFORMED as unread:
        return InvalidOutput(_malformed("answer", unread).message)


# Other messages


def encode_join(life: str, info: WorkerInfo) -> list[Buffer]:
    """Encode JOIN; a new `life` says that the worker has dropped all tasks of the last one."""
    return encode(Kind.JOIN, [life, info.to_json()])


def decode_join(message: Message) -> tuple[str, WorkerInfo]:
    """Return what `encode_join` wrote. Raises InvalidRequest."""
    try:
        life, info = message.data
        return _text(life), WorkerInfo.from_json(info)
    except _MALFORMED as error:
        raise _malformed("JOIN message", error) from None


def encode_loss(loss: Loss) -> list[Buffer]:
    """Encode LOST: a supervisor's report of a worker's death."""
    return encode(Kind.LOST, list(loss))


def decode_loss(message: Message) -> Loss | None:
    """Return what `encode_loss` wrote; None: the supervisor only announces itself.

    Raises InvalidRequest.
    """
    if message.data is None:
        return None
    try:
        worker, reason, running, cause, row, detail = message.data
        ids = None if running is None else [_id(i) for i in running]
        at = None if row is None else _id(row)
        return Loss(_text(worker), _text(reason), ids, LossCause(cause), at, _text(detail))
    except _MALFORMED as error:
        raise _malformed("LOST message", error) from None


def decode_ids(message: Message) -> list[int]:
    """Return the ids of calls in the message. Raises InvalidRequest."""
    return list(chain.from_iterable(decode_some_ids(message)))


def decode_some_ids(message: Message) -> Iterator[list[int]]:
    """Decode a few hundred ids at a time."""
    ids = message.data
    wrong = f"malformed {message.kind.name} message: expected a list of numbers"
    if not isinstance(ids, list):
        raise InvalidRequest(wrong)
    for first in range(0, len(ids), A_PIECE):
        some = ids[first : first + A_PIECE]
        if not all(type(i) is int for i in some):
            raise InvalidRequest(wrong)
        yield some


LONGEST_S = 1e9
"""Maximum of times in a message; thirty years, so that sums and timers stay finite."""


hints_row = attrgetter("client", "priority", "deadline_s", "chain")
"""Returns the hints that a client may give as a row, which `hints_of_row` reads."""


@lru_cache(maxsize=64, typed=True)
def hints_of_row(sender: str, client: Any, priority: Any, deadline_s: Any, chain: Any) -> Hints:
    """Read a row of hints. Raises TypeError and ValueError if it is not one.

    sender: the client's name if it gives none. A native client is patient.
    """
    if not isinstance(client, str) or not isinstance(chain, str | None):
        raise TypeError(f"the names {client!r} and {chain!r}; expected texts")
    if type(priority) is not int:
        raise TypeError(f"the priority {priority!r}; expected a whole number")
    if abs(priority) > MAX_PRIORITY:  # each priority in use costs some time
        raise ValueError(f"the priority {priority}; expected -{MAX_PRIORITY} to {MAX_PRIORITY}")
    if deadline_s is not None and not -LONGEST_S <= deadline_s <= LONGEST_S:
        raise ValueError(f"a deadline of {deadline_s} s")
    client, chain = client[:LONGEST_NAME], None if chain is None else chain[:LONGEST_NAME]
    names = (client, chain) if client or chain else None
    name = client or sender
    return Hints(name, priority, deadline_s, chain=chain, shown_as=names, patient=True)


def last_fields(call: Call) -> list[Any]:
    """Return the last fields of a call's row: its origin, and its place in a sequence if any."""
    origin = None if call.origin is None else [call.origin.call_id, call.origin.client]
    return [origin] if call.step is None else [origin, list(call.step)]


def origin_of(row: Sequence[Any]) -> Origin:
    """Read the origin of a call. Raises TypeError and ValueError if it is none."""
    call_id, client = row
    if not isinstance(client, str) or not checked_call_id(call_id):
        raise ValueError(f"the call id {str(call_id)[:100]!r}; expected visible ASCII characters")
    return Origin(call_id, client[:LONGEST_NAME])


def encode_ended(ended: Iterable[tuple[str, SequenceId]]) -> list[Buffer]:
    """Encode END_SEQUENCES: the model and the id of each sequence."""
    return encode(Kind.END_SEQUENCES, list(ended))


def decode_ended(message: Message) -> list[tuple[str, SequenceId]]:
    """Return what `encode_ended` wrote. Raises InvalidRequest."""
    try:
        ended = [(model, checked_id(sequence)) for model, sequence in message.data]
        if not all(isinstance(model, str) for model, _ in ended):
            raise TypeError("a model is not a text")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"malformed END_SEQUENCES message: {error}"[:300]) from None
    return ended
