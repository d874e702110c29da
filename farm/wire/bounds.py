"""Limits on the JSON of a client's message, which the server parses in one step. Pure.

Parsing a list takes 80 ns and a text or number 65 ns, so a megabyte of brackets takes as long as
many megabytes of text.
"""

from __future__ import annotations

import re

import numpy as np

from farm.call import Buffer
from farm.errors import InvalidRequest
from farm.wire.messages import HEAD

LONGEST_JSON = 8 << 20
"""In bytes. farm's own client sends six million at most, and only for long configs."""

MOST_VALUES, MOST_LISTS = 500_000, 125_000
"""Maximum of values in all lists and objects, and of lists and objects; 50 ms of parsing."""

QUICK_BYTES = 128 << 10
"""JSON up to this size is parsed in a few milliseconds, whatever it contains."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check(frame: Buffer) -> None:
    """Raise InvalidRequest if the message would take long to parse; frame: its first frame."""
    size = HEAD.unpack_from(frame)[-1]
    if size <= QUICK_BYTES:
        return
    if size > LONGEST_JSON:
        raise _too_much(f"{size} bytes of JSON", f"{LONGEST_JSON}")
    text = memoryview(frame)[HEAD.size : HEAD.size + size]
    values, lists = _counts(text)
    if values > MOST_VALUES or lists > MOST_LISTS:
        values, lists = _counts(_TEXT.sub(b"", text))  # characters inside texts do not count
    if values > MOST_VALUES:
        raise _too_much(f"{values} values", f"{MOST_VALUES}")
    if lists > MOST_LISTS:
        raise _too_much(f"{lists} lists and objects", f"{MOST_LISTS}")


def _counts(text: Buffer) -> tuple[int, int]:
    """Return the number of commas, and of opening brackets and braces."""
    data = np.frombuffer(text, np.uint8)
    commas, brackets, braces = (int(np.count_nonzero(data == byte)) for byte in b",[{")
    return commas, brackets + braces


def _too_much(has: str, most: str) -> InvalidRequest:
    return InvalidRequest(
        f"message with {has}; a client may send {most}: send fewer calls a message"
    )
