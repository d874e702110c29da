"""JSON objects out of a stream of bytes that has no frames: the end of each is found by its braces.

The text is checked as it arrives, so that what can never become an object is known at once and not
waited for. Each byte is looked at once, however the stream is cut, and runs of numbers and text are
left to compiled patterns: a message of 10 MB takes a fraction of a second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from farm.errors import InvalidRequest
from farm.protocols import json_numbers

MAX_DEPTH = 100
"""Braces and brackets in one another; a message of AEPsych has five."""
MAX_NUMBER_BYTES = 4000
"""Python reads no whole number that is longer."""
SHOWN_BYTES = 60
BOM = b"\xef\xbb\xbf"


class Expected(IntEnum):
    """What may come next."""

    VALUE = 0
    VALUE_OR_END = 1
    KEY = 2
    KEY_OR_END = 3
    COLON = 4
    COMMA_OR_END = 5


WORDS = {
    Expected.VALUE: "a value",
    Expected.VALUE_OR_END: "a value or ']'",
    Expected.KEY: "a name in quotes",
    Expected.KEY_OR_END: "a name in quotes or '}'",
    Expected.COLON: "':'",
    Expected.COMMA_OR_END: "',' or the end of the list or object",
}

# Bytes that UTF-8 never has, and controls, cannot be in text. Nothing here steps back: all
# repetitions are possessive, and alternatives differ in their first byte.
_CHARACTERS = rb'(?:[^"\\\x00-\x1f\xc0\xc1\xf5-\xff]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+"
_TEXT = rb'"' + _CHARACTERS + rb'"'
_SCALAR = rb"(?:" + _TEXT + rb"|-Infinity|" + _NUMBER + rb"|true|false|null|NaN|Infinity)"
_SPACE = rb"[ \t\r\n]*+"


def _member(value: bytes) -> bytes:
    return _TEXT + _SPACE + rb":" + _SPACE + value


def _series(entry: bytes, end: bytes) -> bytes:
    """Entries up to the end, perhaps none: behind each one is a comma and not the end, or that."""
    comma = rb"," + _SPACE + rb"(?!" + end + rb")"
    return rb"(?:" + entry + _SPACE + rb"(?:" + comma + rb"|(?=" + end + rb")))*+" + end


def _nested(value: bytes) -> bytes:
    """Scalars, and lists and objects of `value`."""
    lists = rb"\[" + _SPACE + _series(value, rb"\]")
    objects = rb"\{" + _SPACE + _series(_member(value), rb"\}")
    return rb"(?:" + _SCALAR + rb"|" + lists + rb"|" + objects + rb")"


@cache
def _runs() -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Any number of entries of a list, and of members of an object, each with its comma.

    What is nested deeper is read brace by brace, which takes a hundred times as long.
    """
    value = _nested(_nested(_nested(_nested(_nested(_SCALAR)))))
    entries, members = (
        re.compile(rb"(?:" + _SPACE + entry + _SPACE + rb",)*+")
        for entry in (value, _member(value))
    )
    return entries, members


SPACE = re.compile(_SPACE)
TEXT = re.compile(_CHARACTERS)
ESCAPE_BEGUN = re.compile(rb"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")
WORD = re.compile(rb"[-+.0-9A-Za-z]*+")
SCALAR = re.compile(_SCALAR)
NUMBER_BEGUN = re.compile(rb"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][-+]?[0-9]*)?)?")
LITERALS = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")


@dataclass(frozen=True, slots=True)
class Garbage:
    """What was received instead of an object. text: its beginning; close: nothing can follow."""

    error: InvalidRequest
    text: str
    close: bool = False


@dataclass(frozen=True, slots=True)
class Long:
    """A long object that is all there and not read yet: `read_object` does that."""

    text: bytes | bytearray


def read_object(whole: bytes) -> dict[str, Any] | Garbage:
    """The object that a complete text is, or garbage: its end is known."""
    try:
        value = json_numbers.parse(whole)
    except InvalidRequest as error:  # such as text that is not UTF-8, or a number too large
        reason = error.message.removeprefix("the body is not JSON: ")
        return Garbage(InvalidRequest(f"the message is not JSON: {reason}"), beginning_of(whole))
    return dict(value)


class _Broken(Exception):
    """The text can become no object."""


class JsonObjects:
    """The objects in a stream, in order.

    limit: bytes of one object; long_bytes: those of an object that is not read here.

    Between objects stand whitespace, byte order marks or nothing. After garbage the rest of its
    line is dropped, and what is there of further lines that begin no object.
    """

    def __init__(self, limit: int, long_bytes: int | None = None) -> None:
        self._limit = limit
        self._long = limit if long_bytes is None else long_bytes
        self._entries, self._members = _runs()
        self._buffer = bytearray()
        self._begin()

    def _begin(self) -> None:
        # Of the object that is being read: all before `_at` is checked.
        self._at = 0
        self._open = bytearray()
        self._expected = Expected.KEY_OR_END
        self._in_text = False

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        self._buffer += data

    def next(self) -> dict[str, Any] | Garbage | None:
        """The next object, or what stood there instead; None: more bytes are needed."""
        found = self.next_or_long()
        assert not isinstance(found, Long), "none is, unless asked for"
        return found

    def next_or_long(self) -> dict[str, Any] | Long | Garbage | None:
        """The same; a long object is given as it is."""
        if not self._open and not self._start():
            return None
        try:
            complete = self._scan()
            if (self._at if complete else len(self._buffer)) > self._limit:
                self._buffer.clear()
                self._begin()
                too_long = f"a message has more than {self._limit} bytes, which is the limit"
                return Garbage(InvalidRequest(too_long), "", close=True)
            if not complete:
                return None
        except _Broken as broken:
            return self._garbage(InvalidRequest(f"the message is not JSON: {broken}"))
        whole, self._buffer = self._buffer, self._buffer[self._at :]
        del whole[self._at :]  # a long one is not copied
        self._begin()
        return Long(whole) if len(whole) > self._long else read_object(bytes(whole))

    @property
    def begun(self) -> bool:
        """Whether a part of an object is there."""
        return bool(self._open)

    @property
    def _in_list(self) -> bool:
        return self._open.endswith(b"[")

    def _start(self) -> bool:
        """Drop what stands between objects; whether anything else is there."""
        buffer = self._buffer
        while True:
            del buffer[: _end(SPACE, buffer, 0)]
            if not buffer.startswith(BOM):
                break
            del buffer[: len(BOM)]
        return bool(buffer) and not BOM.startswith(buffer)

    def _garbage(self, error: InvalidRequest) -> Garbage:
        buffer = self._buffer
        text = beginning_of(buffer)
        at = buffer.find(b"\n", self._at)
        while at >= 0 and not buffer.startswith(b"{", at := _end(SPACE, buffer, at)):
            at = buffer.find(b"\n", at)
        del buffer[: at if at >= 0 else len(buffer)]
        self._begin()
        return Garbage(error, text)

    def _scan(self) -> bool:
        """Go on to the object's end, and say whether it is there. Raises _Broken."""
        buffer, length = self._buffer, len(self._buffer)
        while self._at < length:
            if self._in_text:
                if not self._text():
                    return False
                continue
            self._run()
            self._at = _end(SPACE, buffer, self._at)
            if self._at == length:
                return False
            if not self._token():
                return False
            if not self._open:
                return True
        return False

    def _run(self) -> None:
        """Pass over entries and members that are there with their commas."""
        if self._expected in (Expected.KEY, Expected.KEY_OR_END) and self._open:
            pattern, then = self._members, Expected.KEY
        elif self._expected in (Expected.VALUE, Expected.VALUE_OR_END) and self._in_list:
            pattern, then = self._entries, Expected.VALUE
        else:
            return
        end = _end(pattern, self._buffer, self._at)
        if end > self._at:
            self._at, self._expected = end, then

    def _text(self) -> bool:
        """Go on in a text to behind its quote; whether that is there."""
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
            raise _Broken(f"a text has a line end or control character at byte {self._at}")
        if buffer[self._at] >= 0x80:
            raise _Broken(f"byte {self._at} is not UTF-8")
        raise _Broken(f"a text has an unknown escape at byte {self._at}")

    def _token(self) -> bool:
        """Take one brace, comma, number and so on; whether it is all there."""
        byte = bytes(self._buffer[self._at : self._at + 1])
        expected = self._expected
        if not self._open:
            if byte != b"{":
                raise self._wrong("'{', as a message is an object")
            self._enter(byte)
        elif expected in (Expected.VALUE, Expected.VALUE_OR_END) and byte in b'{["':
            if byte == b'"':
                self._expected = Expected.COMMA_OR_END
                self._in_text = True
            else:
                self._enter(byte)
        elif expected in (Expected.KEY, Expected.KEY_OR_END) and byte == b'"':
            self._expected = Expected.COLON
            self._in_text = True
        elif byte == b":" and expected is Expected.COLON:
            self._expected = Expected.VALUE
        elif byte == b"," and expected is Expected.COMMA_OR_END:
            self._expected = Expected.VALUE if self._in_list else Expected.KEY
        elif byte == self._closer():
            self._open.pop()
            self._expected = Expected.COMMA_OR_END
        elif expected in (Expected.VALUE, Expected.VALUE_OR_END):
            return self._scalar()
        else:
            raise self._wrong(WORDS[expected])
        self._at += 1
        return True

    def _enter(self, byte: bytes) -> None:
        if len(self._open) == MAX_DEPTH:
            raise _Broken(f"it is nested more than {MAX_DEPTH} deep at byte {self._at}")
        self._open += byte
        self._expected = Expected.KEY_OR_END if byte == b"{" else Expected.VALUE_OR_END

    def _closer(self) -> bytes | None:
        """The brace or bracket that may come now."""
        if self._expected is Expected.COMMA_OR_END:
            return b"]" if self._in_list else b"}"
        return {Expected.KEY_OR_END: b"}", Expected.VALUE_OR_END: b"]"}.get(self._expected)

    def _scalar(self) -> bool:
        buffer = self._buffer
        end = _end(WORD, buffer, self._at)
        if end - self._at > MAX_NUMBER_BYTES:
            raise _Broken(f"a number has more than {MAX_NUMBER_BYTES} digits at byte {self._at}")
        word = bytes(buffer[self._at : end])
        if end == len(buffer):
            if NUMBER_BEGUN.fullmatch(word) or any(name.startswith(word) for name in LITERALS):
                return False
            raise self._wrong(WORDS[self._expected])
        if not SCALAR.fullmatch(word):
            raise self._wrong(WORDS[self._expected])
        self._at = end
        self._expected = Expected.COMMA_OR_END
        return True

    def _wrong(self, expected: str) -> _Broken:
        received = beginning_of(self._buffer[self._at : self._at + 20])
        return _Broken(f"expected {expected} at byte {self._at}, received {received!r}")


def _end(pattern: re.Pattern[bytes], buffer: bytearray, at: int) -> int:
    """Where the pattern, which always matches, ends."""
    match = pattern.match(buffer, at)
    assert match is not None
    return match.end()


def beginning_of(data: bytes | bytearray) -> str:
    """The start of the first line, for an error answer."""
    return bytes(data[:SHOWN_BYTES]).split(b"\n", 1)[0].decode("utf-8", "replace")
