"""Reads the header blocks of requests and reports faults in them.

Source: RFC 9113 sections 8.1.1, 8.2 and 8.3.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from farm.grpc.http2.hpack import Field, HpackDecoder

LARGEST_LIST = 16 << 10
"""Bytes of a request's headers, as SETTINGS_MAX_HEADER_LIST_SIZE counts them; grpcio's limit."""

KEPT = 64
"""Blocks and lists of names cached per connection: clients send the same ones again."""

LONGEST_KEPT = 256
"""Largest block, in bytes, that is cached."""

Headers = dict[bytes, bytes]
"""Headers by name in lower case; the last value of a repeated header wins."""

CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
"""Headers of HTTP/1.1 that HTTP/2 forbids; section 8.2.2."""

ONCE = frozenset((b"host", b"content-length"))
REQUIRED = frozenset((b":method", b":scheme", b":path"))
PSEUDO = REQUIRED | {b":authority"}

_NO_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9a-z]")


class CallHead(NamedTuple):
    """The headers of a request.

    fault: why it is malformed, or ""; length: its content-length, or -1.
    """

    headers: Headers
    fault: str
    oversized: bool
    length: int


class HeaderReader:
    """Reads the header blocks of one connection, in order."""

    def __init__(self) -> None:
        self._decoder = HpackDecoder()
        self._heads: dict[bytes, CallHead] = {}
        self._faults: dict[tuple[bytes, ...], str] = {}

    def head(self, block: bytes) -> CallHead:
        """Return the headers of a request. Raises ConnectionFailed if they are not HPACK."""
        if block in self._heads:
            return self._heads[block]
        fields, size = self._decoder.decode(block, LARGEST_LIST)
        head = self._head(fields, oversized=size > LARGEST_LIST)
        if len(block) <= LONGEST_KEPT and min(block, default=0) >= 0x80:
            # It only refers to the tables and leaves them unchanged: it means the same next time.
            if len(self._heads) < KEPT:
                self._heads[block] = head
        else:
            self._heads.clear()
        return head

    def trailers(self, block: bytes) -> str:
        """Return the fault of a request's trailers, or "". Raises ConnectionFailed."""
        fields, _ = self._decoder.decode(block, LARGEST_LIST)
        self._heads.clear()
        names = tuple([name for name, _ in fields])
        if any(name.startswith(b":") for name in names):
            return "a pseudo-header among trailers"
        return _fault_of_names(names) or _fault_of_values(fields)

    def _head(self, fields: list[Field], *, oversized: bool) -> CallHead:
        headers = dict(fields)
        if oversized:  # the rest was not kept, so required headers may be missing
            return CallHead(headers, "", True, -1)
        names = tuple([name for name, _ in fields])
        fault = self._faults.get(names)
        if fault is None:
            fault = _fault_of_order(names) or _fault_of_names(names)
            if len(self._faults) < KEPT and len(names) <= KEPT:
                self._faults[names] = fault
        fault = fault or _fault_of_values(fields) or _fault_of_meaning(headers)
        length = headers.get(b"content-length")
        return CallHead(headers, fault, False, -1 if fault or length is None else int(length))


def _fault_of_order(names: tuple[bytes, ...]) -> str:
    """Check that pseudo-headers come first, each once; section 8.3."""
    pseudo = sum(name.startswith(b":") for name in names)
    found = set(names[:pseudo])
    if not found <= PSEUDO or len(found) < pseudo:
        return "pseudo-headers are unknown, repeated or after other headers"
    if not found >= REQUIRED:
        return f"the request lacks {b', '.join(sorted(REQUIRED - found)).decode()}"
    return ""


def _fault_of_names(names: tuple[bytes, ...]) -> str:
    """Check the names; sections 8.2.1 and 8.2.2."""
    for name in names:
        if _NO_NAME.search(name, name.startswith(b":")) or not name:
            return f"{_shown(name)} is not a header name"
        if name in CONNECTION_SPECIFIC:
            return f"{name.decode()} is a header of HTTP/1.1"
        if name in ONCE and names.count(name) > 1:
            return f"{name.decode()} is repeated"
    return ""


def _fault_of_values(fields: list[Field]) -> str:
    """Check the values, all at once because nearly every call needs it; section 8.2.1."""
    values = b"\n".join([b"", *[value for _, value in fields], b""])
    if b"\0" in values or b"\r" in values or values.count(b"\n") != len(fields) + 1:
        return "a value contains a NUL byte or a line break"
    if b"\n " in values or b" \n" in values or b"\n\t" in values or b"\t\n" in values:
        return "a value begins or ends with a space"
    return ""


def _fault_of_meaning(headers: Headers) -> str:
    """Check the headers that have a meaning; sections 8.1.1, 8.2.2 and 8.3.1."""
    path = headers[b":path"]
    if not path.startswith(b"/") and (path != b"*" or headers[b":method"] != b"OPTIONS"):
        return f":path is {_shown(path)}"
    if not headers[b":method"] or not headers[b":scheme"]:
        return ":method or :scheme is empty"
    if b"te" in headers and headers[b"te"] != b"trailers":
        return "te must be trailers"
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        return f"content-length is {_shown(length)}"
    host = headers.get(b"host")
    if host is not None and headers.get(b":authority", host) != host:
        return "host and :authority differ"
    return ""


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("latin-1"))
