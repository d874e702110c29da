"""gRPC's own words over HTTP/2: messages in their frames, statuses, deadlines; no server.

Source: "gRPC over HTTP2", PROTOCOL-HTTP2.md of the gRPC project.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType

from farm.protocols.http2_frames import literal

STATUSES: Mapping[str, int] = MappingProxyType(
    {
        name: code
        for code, name in enumerate(
            (
                *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED"),
                *("NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"),
                *("FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL"),
                *("UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
            )
        )
    }
)
"""The numbers of the statuses."""

PREFIX = 5
"""Bytes before a message: whether it is packed, and its length."""

LONGEST_TEXT = 1000
"""Characters of an error's text: it travels in a header, and clients take 8 KiB of those."""

_200 = b"\x88"  # :status 200 in HPACK's table
_TYPE = literal(b"content-type", b"application/grpc")
HEADERS = _200 + _TYPE + literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
"""The block before the first message of an answer."""

OK = literal(b"grpc-status", b"0")
"""The block after the last message."""

NOT_GRPC = literal(b":status", b"415") + literal(b"content-type", b"text/plain")
NOT_GRPC_TEXT = b"This port speaks gRPC; HTTP has a port of its own.\n"
"""Headers and body of the answer to a request that is none of gRPC's."""

HEADERS_TOO_LARGE = literal(b":status", b"431")
"""The whole answer to such a request with too long headers."""

_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Failed(Exception):
    """A call ends with a status of its own and a text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def trailers(status: str, text: str, *, alone: bool) -> bytes:
    """The block that ends a call that failed; alone: no other came before it."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT - 3]}..."
    message = _TO_QUOTE.sub(lambda c: b"%%%02X" % c[0][0], text.encode("utf-8", "replace"))
    block = literal(b"grpc-status", b"%d" % STATUSES[status]) + literal(b"grpc-message", message)
    return _200 + _TYPE + block if alone else block


_TO_QUOTE = re.compile(rb"[^ -$&-~]")  # all but printable ASCII, and the percent sign itself


def timeout_s(value: bytes) -> float:
    """Seconds of a `grpc-timeout` header. Raises Failed."""
    number, unit = value[:-1], value[-1:]
    if not number.isdigit() or len(number) > 8 or unit not in _SECONDS:
        shown = value[:20].decode("latin-1")
        raise Failed("INTERNAL", f"grpc-timeout is {shown!r}; expected such as 500m or 2S")
    return int(number) * _SECONDS[unit]


def framed(message: bytes) -> bytes:
    """A message as it travels."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


class Messages:
    """Takes messages out of the bytes of a request's body, whatever its parts.

    encoding: the value of `grpc-encoding`; limit: bytes of a message, packed and unpacked.
    """

    def __init__(self, encoding: bytes, limit: int) -> None:
        if encoding not in (b"identity", b"gzip", b"deflate"):
            shown = encoding[:20].decode("latin-1")
            raise Failed("UNIMPLEMENTED", f"grpc-encoding {shown!r}; gzip and deflate are known")
        self._encoding = encoding
        self._limit = limit
        self._parts: list[bytes] = []
        self._have = 0
        self._want = PREFIX

    def add(self, part: bytes) -> list[bytes]:
        """The messages that are whole with this part. Raises Failed."""
        self._parts.append(part)
        self._have += len(part)
        if self._have < self._want:
            return []
        body = part if len(self._parts) == 1 else b"".join(self._parts)
        found, position, end = [], 0, len(body)
        self._want = PREFIX
        while end - position >= PREFIX:
            size = int.from_bytes(body[position + 1 : position + PREFIX], "big")
            if size > self._limit:
                raise too_large(self._limit)
            after = position + PREFIX + size
            if after > end:
                self._want = PREFIX + size
                break
            message = body[position + PREFIX : after]
            found.append(self._unpacked(message) if body[position] else message)
            position = after
        self._parts = [body[position:]] if position < end else []
        self._have = end - position
        return found

    def end(self) -> None:
        """The body is over. Raises Failed when that is in the middle of a message."""
        if self._have:
            raise Failed("INVALID_ARGUMENT", "the request ends in the middle of a message")

    def _unpacked(self, message: bytes) -> bytes:
        if self._encoding == b"identity":
            raise Failed("INTERNAL", "a packed message without grpc-encoding")
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: look whether gzip or zlib
        try:
            unpacked = unpacker.decompress(message, self._limit + 1)
        except zlib.error as error:
            raise Failed("INVALID_ARGUMENT", f"the message is not packed right: {error}") from None
        if len(unpacked) > self._limit:
            raise too_large(self._limit)
        if not unpacker.eof or unpacker.unused_data:
            raise Failed("INVALID_ARGUMENT", "the packed message is cut short or has a tail")
        return unpacked


def too_large(limit: int) -> Failed:
    """The refusal of a message above `limit` bytes."""
    return Failed("RESOURCE_EXHAUSTED", f"the message is larger than {limit} bytes, the limit here")
