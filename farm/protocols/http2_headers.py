"""Reads the header blocks of requests and says what is wrong with them.

Source: RFC 9113 sections 8.1.1, 8.2 and 8.3.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from farm.protocols.hpack import Field, HpackDecoder

LARGEST_LIST = 16 << 10
"""Bytes of a request's headers as SETTINGS_MAX_HEADER_LIST_SIZE counts them; grpcio's own limit."""

KEPT = 64
"""Blocks and lists of names remembered for one connection: clients send the same ones again."""

LONGEST_KEPT = 256
"""Bytes of a block, and names of a list, that are worth remembering."""

Headers = dict[bytes, bytes]
"""By their names in lower case; of a repeated one the last counts."""

CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
"""Headers of HTTP/1.1 that have no place in HTTP/2; section 8.2.2."""

ONCE = frozenset((b"host", b"content-length"))
REQUIRED = frozenset((b":method", b":scheme", b":path"))
PSEUDO = REQUIRED | {b":authority"}

_NO_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]")


class Head(NamedTuple):
    """The headers of a request.

    fault: why it is malformed, or ""; length: its content-length, or -1.
    """

    headers: Headers
    fault: str
    oversized: bool
    length: int


class HeaderReader:
    """Reads the header blocks of one connection in the order they came."""

    def __init__(self) -> None:
        self._decoder = HpackDecoder()
        self._heads: dict[bytes, Head] = {}
        self._faults: dict[tuple[bytes, ...], str] = {}

    def head(self, block: bytes) -> Head:
        """The headers of a request. Raises ConnectionFailed when the block is no HPACK."""
        if (known := self._heads.get(block)) is not None:
            return known
        fields, size = self._decoder.decode(block, LARGEST_LIST)
        head = self._head(fields, oversized=size > LARGEST_LIST)
        if len(block) <= LONGEST_KEPT and min(block, default=0) >= 0x80:
            # All from the tables, which it leaves as they are: it means the same next time.
            if len(self._heads) < KEPT:
                self._heads[block] = head
        else:
            self._heads.clear()
        return head

    def trailers(self, block: bytes) -> str:
        """What is wrong with the trailers of a request, or "". Raises ConnectionFailed."""
        fields, _ = self._decoder.decode(block, LARGEST_LIST)
        self._heads.clear()
        names = tuple([name for name, _ in fields])
        if any(name.startswith(b":") for name in names):
            return "a pseudo-header among trailers"
        return _fault_of_names(names) or _fault_of_values(fields)

    def _head(self, fields: list[Field], *, oversized: bool) -> Head:
        headers = dict(fields)
        if oversized:  # the rest was not kept, so it may well lack what is required
            return Head(headers, "", True, -1)
        names = tuple([name for name, _ in fields])
        fault = self._faults.get(names)
        if fault is None:
            fault = _fault_of_order(names) or _fault_of_names(names)
            if len(self._faults) < KEPT and len(names) <= KEPT:
                self._faults[names] = fault
        fault = fault or _fault_of_values(fields) or _fault_of_meaning(headers)
        length = headers.get(b"content-length")
        return Head(headers, fault, False, -1 if fault or length is None else int(length))


def _fault_of_order(names: tuple[bytes, ...]) -> str:
    """Pseudo-headers come first, each once; section 8.3."""
    pseudo = sum(name.startswith(b":") for name in names)
    found = set(names[:pseudo])
    if not found <= PSEUDO or len(found) < pseudo:
        return "pseudo-headers are unknown, repeated or after other headers"
    if not found >= REQUIRED:
        return f"the request lacks {b', '.join(sorted(REQUIRED - found)).decode()}"
    return ""


def _fault_of_names(names: tuple[bytes, ...]) -> str:
    """Sections 8.2.1 and 8.2.2."""
    for name in names:
        if _NO_NAME.search(name, name.startswith(b":")) or not name:
            return f"{name[:40]!r} is no name of a header"
        if name in CONNECTION_SPECIFIC:
            return f"{name.decode()} is a header of HTTP/1.1"
        if name in ONCE and names.count(name) > 1:
            return f"{name.decode()} is there more than once"
    return ""


def _fault_of_values(fields: list[Field]) -> str:
    """Section 8.2.1; all values at once, as this is asked for nearly every call."""
    values = b"\n".join([b"", *[value for _, value in fields], b""])
    if b"\0" in values or b"\r" in values or values.count(b"\n") != len(fields) + 1:
        return "a value has a zero byte or a line's end"
    if b"\n " in values or b" \n" in values or b"\n\t" in values or b"\t\n" in values:
        return "a value begins or ends with a space"
    return ""


def _fault_of_meaning(headers: Headers) -> str:
    """Sections 8.1.1, 8.2.2 and 8.3.1."""
    path = headers[b":path"]
    if not path.startswith(b"/") and (path != b"*" or headers[b":method"] != b"OPTIONS"):
        return f":path is {path[:40]!r}"
    if not headers[b":method"] or not headers[b":scheme"]:
        return ":method or :scheme is empty"
    if b"te" in headers and headers[b"te"] != b"trailers":
        return "te may be trailers only"
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        return f"content-length is {length[:40]!r}"
    host = headers.get(b"host")
    if host is not None and headers.get(b":authority", host) != host:
        return "host and :authority differ"
    return ""
