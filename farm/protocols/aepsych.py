"""Messages of AEPsych: one JSON object a request, one an answer, on a stream of bytes. Pure.

Spoken is the form of release 0.8, understood is also what older clients send. What the messages
mean is `experiment/session.py`; here is only what all of them have in common.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.errors import InvalidInput, InvalidRequest
from farm.protocols.json_numbers import kind_of
from farm.protocols.json_stream import Garbage, JsonObjects, Long, beginning_of, read_object

MAX_MESSAGE_BYTES = 64 * 2**20
"""Longer requests are refused."""
MAX_VALUES = 1_000_000
"""Requests with more values are refused. A million Python objects take 32 MB, and freeing them
blocks the event loop for 10 ms."""
ANSWER_BYTES = 4096
"""What the Python client reads of an answer; an error with a long request is shortened to it."""

TYPES = (
    *("setup", "ask", "tell", "query", "parameters", "exit", "get_config", "finish_strategy"),
    *("info", "resume", "can_model"),
    *("run", "pause", "status"),  # farm's own
)
ALIASES = {"params": "parameters"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request. type: its kind, an alias already in today's spelling; message: its data.

    whole: the object as it was received, which an error answer repeats.
    extra: what stood beside the message and belongs to a trial (`extra_info`).
    """

    type: str
    message: Mapping[str, Any]
    whole: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """What was received instead of a request: answer `encode_error(error, received)`.

    received: what it was, as far as it could be read. close: the stream cannot go on.
    """

    error: str
    received: Any
    close: bool = False


class Framer:
    """Requests out of a stream of bytes, however it is cut.

    limit: bytes of one request; long_bytes: those of a request that is not read here.
    What is no request is answered, and the next one is read. But nothing is read of a stream that
    begins with a capital letter, as HTTP's requests do: a web page can make its reader's browser
    send one here, with an object for a body.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES, long_bytes: int | None = None) -> None:
        self._objects = JsonObjects(limit, long_bytes)
        self._is_first = True
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        self._objects.feed(data)

    @property
    def begun(self) -> bool:
        """Whether a part of a request is there."""
        return self._objects.begun

    def next(self) -> Request | Fault | None:
        """The next request, or what stood there instead; None: more bytes are needed."""
        found = self.next_or_long()
        assert not isinstance(found, Long), "none is, unless asked for"
        return found

    def next_or_long(self) -> Request | Long | Fault | None:
        """The same; a long request is given as it is, for `read_long` and `read_value`."""
        if self._ended or (value := self._objects.next_or_long()) is None:
            return None
        is_first, self._is_first = self._is_first, False
        if isinstance(value, Long):
            return value
        if isinstance(value, Garbage):
            self._ended = value.close or (is_first and value.text[:1].isupper())
            return Fault(value.error.message, value.text, self._ended)
        return read_value(value)


def read_long(whole: bytes) -> dict[str, Any] | Garbage:
    """The object that the text of a long request is, for `read_value`."""
    value = read_object(whole)
    if isinstance(value, Garbage) or (count := _values_in(value)) <= MAX_VALUES:
        return value
    return Garbage(
        InvalidRequest(
            f"the message has {count} values; expected at most {MAX_VALUES}: send several messages"
        ),
        beginning_of(whole),
    )


def _values_in(value: Any) -> int:
    count, waiting = 0, [value]
    while waiting:
        parts = waiting.pop()
        count += len(parts)
        parts = parts.values() if isinstance(parts, dict) else parts
        waiting += [part for part in parts if isinstance(part, dict | list)]
    return count


def read_value(value: dict[str, Any] | Garbage) -> Request | Fault:
    """What an object of the stream, or what stood in its place, says."""
    if isinstance(value, Garbage):
        return Fault(value.error.message, value.text, value.close)
    try:
        return request_of(value)
    except InvalidRequest as error:
        return Fault(error.message, value)


def request_of(whole: Mapping[str, Any]) -> Request:
    """The request that this object is. Raises InvalidRequest."""
    if "type" not in whole:
        raise InvalidRequest(f"'type' is missing; expected one of {', '.join(TYPES)}")
    kind = whole["type"]
    if not isinstance(kind, str):
        raise InvalidRequest(f"'type' is {kind_of(kind)}; expected one of {', '.join(TYPES)}")
    name = ALIASES.get(kind, kind)
    if name not in TYPES:
        raise InvalidRequest(
            f"type {_short(kind)!r} is unknown; expected one of {', '.join(TYPES)}"
        )
    message = whole.get("message")
    if message is None or message == "":
        message = {}
    if not isinstance(message, dict):
        raise InvalidRequest(f"'message' of {name} is {kind_of(message)}; expected an object")
    extra = whole.get("extra_info")
    if not isinstance(extra, dict):
        extra = {} if extra is None or extra == "" else {"extra_info": extra}
    return Request(name, message, whole, extra)


def encode_answer(answer: Mapping[str, Any]) -> bytes:
    """The answer in ASCII JSON; NaN and the infinities are null in it, and -0.0 is 0.0."""
    return json.dumps(_clean(answer), separators=(",", ":"), allow_nan=False).encode("ascii")


def encode_error(error: str, received: Any) -> bytes:
    """An error answer. received: a request's `whole` or a fault's `received`, perhaps shortened."""
    wholes = [received] if _may_fit(received) else []
    for message in (*wholes, *(_shortened(received, length) for length in (400, 40, 4))):
        answer = encode_answer({"server_error": error, "message": message})
        if len(answer) <= ANSWER_BYTES:
            return answer
    # Text that is not ASCII takes up to twelve bytes a character.
    kind = received.get("type") if isinstance(received, Mapping) else None
    named = {"type": _short(kind)} if isinstance(kind, str) else None
    return encode_answer({"server_error": _short(error, 300), "message": named})


def encode_request(
    type: str, message: Mapping[str, Any], extra: Mapping[str, Any] | None = None
) -> bytes:
    """The client's half of `Framer`. extra: sent as `extra_info`, if there is any."""
    request = {"type": type, "message": message}
    return json.dumps(request | ({"extra_info": extra} if extra else {})).encode("ascii")


def read_answer(data: bytes) -> dict[str, Any] | None:
    """The client's half of `encode_answer`: the answer, or None if there is more to come.

    Raises InvalidInput with the server's error, InvalidRequest for what is no answer.
    """
    objects = JsonObjects(MAX_MESSAGE_BYTES)
    objects.feed(data)
    answer = objects.next()
    if isinstance(answer, Garbage):
        raise answer.error
    if answer is not None and "server_error" in answer:
        raise InvalidInput(str(answer["server_error"]))
    return answer


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None  # -0.0 + 0.0 is 0.0
    if isinstance(value, Mapping):
        return {str(key): _clean(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(entry) for entry in value]
    return value


def _may_fit(value: Any) -> bool:
    """Whether an answer has room for so much text and so many values.

    Of a long value little is looked at: to encode all of it would hold up every other client.
    """
    left, waiting = ANSWER_BYTES, [value]
    while waiting and left >= 0:
        entry = waiting.pop()
        if isinstance(entry, str | Mapping | list | tuple):
            left -= len(entry)
            if isinstance(entry, Mapping) and left >= 0:
                waiting += [*entry.keys(), *entry.values()]
            elif not isinstance(entry, str) and left >= 0:
                waiting += entry
    return left >= 0


def _shortened(value: Any, length: int) -> Any:
    """The value with its long texts cut to `length` characters and long lists to as many."""
    if isinstance(value, str):
        return _short(value, length)
    if isinstance(value, Mapping):
        some = list(value.items())[:length]
        short = {_short(key, length): _shortened(entry, length) for key, entry in some}
        return short if len(value) <= length else short | {"...": f"{len(value)} entries in all"}
    if isinstance(value, list | tuple):
        some = [_shortened(entry, length) for entry in value[:length]]
        return some if len(value) <= length else [*some, f"... {len(value)} entries in all"]
    return value


def _short(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[:length]}..."
