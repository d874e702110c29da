"""Messages of AEPsych: one JSON object per request and per answer on a byte stream. Pure.

It writes the form of release 0.8, and also reads the form of older clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from farm.encoding.json_numbers import kind_of
from farm.errors import InvalidRequest
from farm.protocols.aepsych.json_stream import (
    JsonObjects,
    Long,
    StreamFault,
    beginning_of,
    read_object,
)

TRAVELS = (StreamFault,)
"""Classes that may cross to and from a reader process, in addition to farm's own."""

MAX_MESSAGE_BYTES = 64 * 2**20
"""Longer requests are refused."""
MAX_VALUES = 1_000_000
"""Requests with more values are refused: freeing a million blocks the event loop for 10 ms."""
ANSWER_BYTES = 4096
"""Bytes of an answer that the Python client reads; errors are shortened to this."""

TYPES = (
    *("setup", "ask", "tell", "query", "parameters", "exit", "get_config", "finish_strategy"),
    *("info", "resume", "can_model"),
    *("run", "pause", "status"),  # farm's own
)
ALIASES = {"params": "parameters"}


@dataclass(frozen=True, slots=True)
class AepsychRequest:
    """One request. type: its kind, with aliases replaced; message: its data.

    whole: the object as received. extra: data of a trial beside the message (`extra_info`).
    """

    type: str
    message: Mapping[str, Any]
    whole: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)


class AepsychFramer:
    """Splits a byte stream into requests, however the bytes are split.

    limit: bytes of one request; long_bytes: size above which a request is not decoded here. After
    data that is not a request, the next request is read. But nothing more is read of a stream that
    begins with a capital letter: a web page can make a browser send an HTTP request here.
    """

    def __init__(self, limit: int = MAX_MESSAGE_BYTES, long_bytes: int | None = None) -> None:
        self._objects = JsonObjects(limit, long_bytes)
        self._is_first = True
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._objects.feed(data)

    @property
    def begun(self) -> bool:
        """Whether a part of a request has been received."""
        return self._objects.begun

    def next(self) -> AepsychRequest | StreamFault | None:
        """Return the next request or fault; None: more bytes are needed."""
        request = self.next_or_long()
        assert not isinstance(request, Long), "none is, unless asked for"
        return request

    def next_or_long(self) -> AepsychRequest | Long | StreamFault | None:
        """The same, but return a long request undecoded, for `read_long` and `read_value`."""
        if self._ended or (value := self._objects.next()) is None:
            return None
        is_first, self._is_first = self._is_first, False
        if isinstance(value, Long):
            return value
        if isinstance(value, StreamFault):
            self._ended = value.close or (is_first and value.received[:1].isupper())
            return replace(value, close=self._ended)
        return read_value(value)


def read_long(whole: bytes) -> dict[str, Any] | StreamFault:
    """Decode the text of a long request into an object, for `read_value`."""
    value = read_object(whole)
    if isinstance(value, StreamFault) or (count := _values_in(value)) <= MAX_VALUES:
        return value
    return StreamFault(
        f"the message has {count} values; expected at most {MAX_VALUES}: send several messages",
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


def read_value(value: dict[str, Any] | StreamFault) -> AepsychRequest | StreamFault:
    """Return the request that a decoded object contains, or a fault."""
    if isinstance(value, StreamFault):
        return value
    try:
        return request_of(value)
    except InvalidRequest as error:
        return StreamFault(error.message, value)


def request_of(whole: Mapping[str, Any]) -> AepsychRequest:
    """Return the request that this object contains. Raises InvalidRequest."""
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
    return AepsychRequest(name, message, whole, extra)


def encode_answer(answer: Mapping[str, Any]) -> bytes:
    """Return the answer in ASCII JSON; NaN and the infinities become null, and -0.0 becomes 0.0."""
    return json.dumps(_clean(answer), separators=(",", ":"), allow_nan=False).encode("ascii")


def encode_error(error: str, received: Any) -> bytes:
    """Return an error answer that repeats `received`, shortened if it is too long."""
    wholes = [received] if _may_fit(received) else []
    for message in (*wholes, *(_shortened(received, length) for length in (400, 40, 4))):
        answer = encode_answer({"server_error": error, "message": message})
        if len(answer) <= ANSWER_BYTES:
            return answer
    # Text that is not ASCII takes up to twelve bytes per character.
    kind = received.get("type") if isinstance(received, Mapping) else None
    named = {"type": _short(kind)} if isinstance(kind, str) else None
    return encode_answer({"server_error": _short(error, 300), "message": named})


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None  # -0.0 + 0.0 is 0.0
    if isinstance(value, Mapping):
        return {str(key): _clean(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(entry) for entry in value]
    return value


def _may_fit(value: Any) -> bool:
    """Whether the value's text and entries may fit into an answer; reads a part of a long one."""
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
    """Return the value with long texts and lists cut to `length` characters or items."""
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


@dataclass(frozen=True, slots=True)
class AepsychReply:
    """An answer to a client; close: the connection ends after it."""

    answer: Mapping[str, Any]
    close: bool = False
