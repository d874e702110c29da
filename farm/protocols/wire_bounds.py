"""What a client's message may have, so that nobody waits for long while its JSON is read. Pure.

A list takes the reader 80 ns and a text or number 65, so a megabyte of brackets takes as long as
many of text.
"""

from __future__ import annotations

import re

import numpy as np

from farm.errors import InvalidRequest
from farm.protocols.wire import HEAD
from farm.protocols.wire_arrays import Buffer

LONGEST_JSON = 8 << 20
"""Bytes; farm's own client sends six million at most, and those only where configs are long."""

MOST_VALUES, MOST_LISTS = 500_000, 125_000
"""Values in lists and objects, and these themselves: 50 ms of reading."""

QUICK_BYTES = 128 << 10
"""JSON that is read in some milliseconds, whatever it is."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def check(frame: Buffer) -> None:
    """Raises InvalidRequest for a message that takes long to read; frame: its first one."""
    if len(frame) <= QUICK_BYTES:
        return
    size = HEAD.unpack_from(frame)[-1]
    if size <= QUICK_BYTES:
        return
    if size > LONGEST_JSON:
        raise _too_much(f"{size} bytes of JSON", f"{LONGEST_JSON}")
    text = memoryview(frame)[HEAD.size : HEAD.size + size]
    values, lists = _counts(text)
    if values > MOST_VALUES or lists > MOST_LISTS:
        values, lists = _counts(_TEXT.sub(b"", text))  # a config is a text, whatever it holds
    if values > MOST_VALUES:
        raise _too_much(f"{values} values", f"{MOST_VALUES}")
    if lists > MOST_LISTS:
        raise _too_much(f"{lists} lists and objects", f"{MOST_LISTS}")


def _counts(text: Buffer) -> tuple[int, int]:
    """Commas, and brackets and braces."""
    data = np.frombuffer(text, np.uint8)
    commas, brackets, braces = (int(np.count_nonzero(data == byte)) for byte in b",[{")
    return commas, brackets + braces


def _too_much(has: str, most: str) -> InvalidRequest:
    return InvalidRequest(
        f"message with {has}; a client may send {most}: send fewer calls a message"
    )
