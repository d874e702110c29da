"""Splits a byte stream without frames into JSON objects, whose brackets show where each one ends.

The beginning of an object is checked token by token, so that a mistake is reported at once. The
rest is only searched for the end, and parsed when it is complete. Each byte is examined once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.encoding import json_numbers
from farm.errors import InvalidRequest

MAX_DEPTH = 100
"""Maximum nesting of braces and brackets; a message of AEPsych has five levels."""
MAX_NUMBER_BYTES = 4000
"""Maximum length of a number; by default, Python reads integers of up to 4300 digits."""
CHECKED_BYTES = 4096
"""Tokens that begin within this many bytes of an object are checked at once, in at most 8 ms."""
SKIMMED_BYTES = 64 * 1024
"""Maximum number of bytes searched for the end in one step."""
SHOWN_BYTES = 60
"""Maximum number of received bytes that an error quotes."""
BOM = b"\xef\xbb\xbf"

START, VALUE, FIRST_VALUE, NAME, FIRST_NAME, COLON, IN_LIST, IN_OBJECT = range(8)
"""The parser's states, each named after the token that may come next."""

_VALUES = {b"{": FIRST_NAME, b"[": FIRST_VALUE, b'"': None}
_MORE = "',' or the end of the list or object"
GRAMMAR: dict[int, tuple[str, dict[bytes, int | None]]] = {
    START: ("'{', as a message is an object", {b"{": FIRST_NAME}),
    VALUE: ("a value", _VALUES),
    FIRST_VALUE: ("a value or ']'", {**_VALUES, b"]": None}),
    NAME: ("a name in quotes", {b'"': COLON}),
    FIRST_NAME: ("a name in quotes or '}'", {b'"': COLON, b"}": None}),
    COLON: ("':'", {b":": VALUE}),
    IN_LIST: (_MORE, {b",": VALUE, b"]": None}),
    IN_OBJECT: (_MORE, {b",": NAME, b"}": None}),
}
"""The description of each state for errors, and the next state by received byte. None: the state
after a value, IN_LIST or IN_OBJECT."""

SPACE = re.compile(rb"[ \t\r\n]*+")
# A text contains no control characters, and no bytes that never occur in UTF-8.
TEXT = re.compile(rb'(?:[^"\\\x00-\x1f\xc0\xc1\xf5-\xff]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
ESCAPE_BEGUN = re.compile(rb"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")
WORD = re.compile(rb"[-+.0-9A-Za-z]*+")
SCALAR = re.compile(
    rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|true|false|null|NaN|-?Infinity"
)
NUMBER_BEGUN = re.compile(rb"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][-+]?[0-9]*)?)?")
LITERALS = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")

DEEPER = np.zeros(256, np.int8)
DEEPER[list(b"{[")], DEEPER[list(b"}]")] = 1, -1


@dataclass(frozen=True, slots=True)
class StreamFault:
    """Input that is not an object or not a request, and the reason.

    received: as far as it could be parsed, or its beginning. close: the rest cannot be read.
    """

    error: str
    received: Any
    close: bool = False


@dataclass(frozen=True, slots=True)
class Long:
    """A long, complete object that is not parsed yet; `read_object` parses it."""

    text: bytes | bytearray


def read_object(whole: bytes) -> dict[str, Any] | StreamFault:
    """Return the object in a complete text, or why it cannot be parsed."""
    try:
        return dict(json_numbers.parse(whole))
    except InvalidRequest as error:  # such as text that is not UTF-8, or a number too large
        reason = error.message.removeprefix("the body is not JSON: ")
        return StreamFault(f"the message is not JSON: {reason}", beginning_of(whole))


class _Broken(Exception):
    """The received text is not the beginning of any object."""


class JsonObjects:
    """Splits a stream into its objects, in order.

    limit: maximum bytes of one object; long_bytes: a longer object is returned as `Long`.

    Whitespace, byte order marks or nothing may separate objects. After a fault, the rest of its
    line is dropped, and so are received lines after it that do not begin an object.
    """

    def __init__(self, limit: int, long_bytes: int | None = None) -> None:
        self._limit = limit
        self._long = limit if long_bytes is None else long_bytes
        self._buffer = bytearray()
        self._begin()

    def _begin(self) -> None:
        # State of the object being read; the bytes before `_at` have been examined.
        self._at = 0
        self._open = bytearray()  # its open brackets, while tokens are checked
        self._depth = 0
        self._expected = START
        self._in_text = False

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._buffer += data

    def next(self) -> dict[str, Any] | Long | StreamFault | None:
        """Return the next object, or the fault in its place; None: more bytes are needed."""
        if not self.begun and not self._start():
            return None
        try:
            complete = self._scan()
        except _Broken as broken:
            return self._fault(f"the message is not JSON: {broken}")
        if (self._at if complete else len(self._buffer)) > self._limit:
            self._buffer.clear()
            self._begin()
            too_long = f"a message has more than {self._limit} bytes, which is the limit"
            return StreamFault(too_long, "", close=True)
        if not complete:
            return None
        whole, self._buffer = self._buffer, self._buffer[self._at :]
        del whole[self._at :]  # in place, so that a long object is not copied
        self._begin()
        return Long(whole) if len(whole) > self._long else read_object(bytes(whole))

    @property
    def begun(self) -> bool:
        """Whether part of an object has been read."""
        return self._depth > 0

    def _start(self) -> bool:
        """Drop separators before an object; return whether anything follows them."""
        buffer = self._buffer
        while True:
            del buffer[: _end(SPACE, buffer, 0)]
            if not buffer.startswith(BOM):
                break
            del buffer[: len(BOM)]
        return bool(buffer) and not BOM.startswith(buffer)

    def _fault(self, error: str) -> StreamFault:
        buffer = self._buffer
        text = beginning_of(buffer)
        at = buffer.find(b"\n", self._at)
        while at >= 0 and not buffer.startswith(b"{", at := _end(SPACE, buffer, at)):
            at = buffer.find(b"\n", at)
        del buffer[: at if at >= 0 else len(buffer)]
        self._begin()
        return StreamFault(error, text)

    def _scan(self) -> bool:
        """Advance to the object's end; return whether it has arrived. Raises _Broken."""
        buffer = self._buffer
        while self._at < len(buffer):
            if self._at >= CHECKED_BYTES:
                step = self._skim
            elif self._in_text:
                step = self._text
            else:
                self._at = _end(SPACE, buffer, self._at)
                step = self._token
            if self._at == len(buffer) or not step():
                return False
            if not self.begun:
                return True
        return False

    def _skim(self) -> bool:
        """Search the next bytes for the object's end; return whether any were consumed."""
        if len(self._buffer) - self._at < SKIMMED_BYTES and self._buffer.find(b"}", self._at) < 0:
            return False  # the object does not end here, and one search of many bytes is faster
        piece = self._buffer[self._at : self._at + SKIMMED_BYTES]
        plain = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__").removesuffix(b"\\")
        read = np.frombuffer(plain, np.uint8)
        in_text = ((read == ord('"')).cumsum(dtype=np.uint8) + self._in_text) % 2 == 1
        depths = (DEEPER[read] * ~in_text).cumsum(dtype=np.int32) + self._depth
        if (ends := np.flatnonzero(depths == 0)).size:
            read, in_text, depths = (x[: ends[0] + 1] for x in (read, in_text, depths))
        if (controls := np.flatnonzero(in_text & (read < 0x20))).size:
            raise _control_in_text(self._at + int(controls[0]))
        if (deep := np.flatnonzero(depths > MAX_DEPTH)).size:
            raise _too_deep(self._at + int(deep[0]))
        if read.size:
            self._at += read.size
            self._in_text, self._depth = bool(in_text[-1]), int(depths[-1])
        return bool(read.size)

    def _text(self) -> bool:
        """Advance past the closing quote of a text; return whether it has arrived."""
        buffer = self._buffer
        self._at = _end(TEXT, buffer, self._at)
        if self._at == len(buffer):
            return False
        if buffer.startswith(b'"', self._at):
            self._at += 1
            self._in_text = False
            return True
        if _end(ESCAPE_BEGUN, buffer, self._at) == len(buffer):
            return False
        if buffer[self._at] < 0x20:
            raise _control_in_text(self._at)
        if buffer[self._at] >= 0x80:
            raise _Broken(f"byte {self._at} is not UTF-8")
        raise _Broken(f"a text has an unknown escape at byte {self._at}")

    def _token(self) -> bool:
        """Process one token, such as a bracket or number; return whether it is complete."""
        byte = bytes(self._buffer[self._at : self._at + 1])
        expected, after = GRAMMAR[self._expected]
        following = None
        if byte in after:
            following = after[byte]
            if byte in (b"{", b"["):
                if self._depth == MAX_DEPTH:
                    raise _too_deep(self._at)
                self._open += byte
                self._depth += 1
            elif byte in (b"}", b"]"):
                self._open.pop()
                self._depth -= 1
            self._in_text = byte == b'"'
            self._at += 1
        elif b"[" not in after:
            raise self._wrong(expected)
        elif not self._scalar(expected):
            return False
        if following is None:
            following = IN_LIST if self._open.endswith(b"[") else IN_OBJECT
        self._expected = following
        return True

    def _scalar(self, expected: str) -> bool:
        """Process a number or literal; return whether its end has arrived."""
        end = _end(WORD, self._buffer, self._at)
        if end - self._at > MAX_NUMBER_BYTES:
            raise _Broken(f"a number has more than {MAX_NUMBER_BYTES} digits at byte {self._at}")
        word = bytes(self._buffer[self._at : end])
        begun = NUMBER_BEGUN.fullmatch(word) or any(name.startswith(word) for name in LITERALS)
        if end == len(self._buffer) and begun:
            return False
        if not SCALAR.fullmatch(word):
            raise self._wrong(expected)
        self._at = end
        return True

    def _wrong(self, expected: str) -> _Broken:
        received = beginning_of(self._buffer[self._at : self._at + 20])
        return _Broken(f"expected {expected} at byte {self._at}, received {received!r}")


def _control_in_text(at: int) -> _Broken:
    return _Broken(f"a text has a line end or control character at byte {at}")


def _too_deep(at: int) -> _Broken:
    return _Broken(f"it is nested more than {MAX_DEPTH} deep at byte {at}")


def _end(pattern: re.Pattern[bytes], buffer: bytearray, at: int) -> int:
    """Return the end of the match of a pattern that always matches."""
    match = pattern.match(buffer, at)
    assert match is not None
    return match.end()


def beginning_of(data: bytes | bytearray) -> str:
    """Return the start of the first line, to quote in an error."""
    return bytes(data[:SHOWN_BYTES]).split(b"\n", 1)[0].decode("utf-8", "replace")
