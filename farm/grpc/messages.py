"""gRPC over HTTP/2: framing of messages, statuses and deadlines, without a server.

Source: "gRPC over HTTP2", PROTOCOL-HTTP2.md of the gRPC project.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farm import errors
from farm.bodies.body import HeldBody
from farm.errors import FarmError
from farm.grpc.http2.frames import END_HEADERS, END_STREAM, PREFIX, frame, literal
from farm.grpc.http2.frames import HEADERS as HEADERS_FRAME
from farm.grpc.http2.frames import LONG as NUMBER

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
"""Status codes by name."""

ERRORS: Mapping[type[FarmError], str] = MappingProxyType(
    {
        errors.InvalidRequest: "INVALID_ARGUMENT",
        errors.InvalidInput: "INVALID_ARGUMENT",
        errors.ModelNotFound: "NOT_FOUND",
        errors.UnsupportedFeature: "UNIMPLEMENTED",
        errors.ModelFailed: "INTERNAL",
        errors.InvalidOutput: "INTERNAL",
        errors.WorkerLost: "INTERNAL",
        errors.TimeLimitExceeded: "INTERNAL",
        errors.DeadlineExceeded: "DEADLINE_EXCEEDED",
        errors.Cancelled: "CANCELLED",
        errors.Overloaded: "UNAVAILABLE",
        errors.Unavailable: "UNAVAILABLE",
    }
)
"""The status that answers each error."""

LONG = 256 << 10
"""Longer messages are collected by an object that the server provides. Joining and freeing hundreds
of megabytes would delay all callers by tenths of a second."""

SHORT = 16 << 10
"""A message that decompresses to less is decompressed at once: 0.1 ms at most."""

UNPACKED_FREE, UNPACKED_RATIO = 16 << 20, 128
"""Largest size of a decompressed message: this number of bytes, or this multiple of its compressed
size if that is more. Arrays of real numbers hardly shrink; a message of zeros shrinks a thousand
times."""

LONGEST_TEXT = 1000
"""Characters of an error's text: it is sent in a header, and clients accept 8 KiB of headers."""

_200 = b"\x88"  # :status 200 in HPACK's table
_TYPE = literal(b"content-type", b"application/grpc")
HEADERS = _200 + _TYPE + literal(b"grpc-accept-encoding", b"identity,deflate,gzip")
"""The header block before the first message of an answer."""

OK = literal(b"grpc-status", b"0")
"""The trailers after the last message."""

AROUND = (
    frame(HEADERS_FRAME, END_HEADERS, 0, HEADERS),
    frame(HEADERS_FRAME, END_HEADERS | END_STREAM, 0, OK),
)
"""The frames of both, of stream 0."""

NOT_GRPC = literal(b":status", b"415") + literal(b"content-type", b"text/plain")
NOT_GRPC_TEXT = b"This port speaks gRPC; HTTP has a port of its own.\n"
"""Headers and body of the answer to a request that is not gRPC."""

HEADERS_TOO_LARGE = literal(b":status", b"431")
"""The whole answer to such a request if its headers are too long."""

_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class GrpcFailure(Exception):
    """Ends a call with the given status and text."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def trailers(status: str, text: str, *, alone: bool) -> bytes:
    """Return the block that ends a failed call; alone: no block was sent before it."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT - 3]}..."
    message = _TO_QUOTE.sub(lambda c: b"%%%02X" % c[0][0], text.encode("utf-8", "replace"))
    block = literal(b"grpc-status", b"%d" % STATUSES[status]) + literal(b"grpc-message", message)
    return _200 + _TYPE + block if alone else block


_TO_QUOTE = re.compile(rb"[^ -$&-~]")  # all but printable ASCII, and the percent sign itself


def timeout_s(value: bytes) -> float:
    """Return the seconds of a `grpc-timeout` header. Raises GrpcFailure."""
    number, unit = value[:-1], value[-1:]
    if not number.isdigit() or len(number) > 8 or unit not in _SECONDS:
        shown = value[:20].decode("latin-1")
        raise GrpcFailure("INTERNAL", f"grpc-timeout is {shown!r}; expected such as 500m or 2S")
    return int(number) * _SECONDS[unit]


def framed(message: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """Return a message with its prefix: one part, or two for a long one, to avoid a copy."""
    prefix = b"\x00" + len(message).to_bytes(4, "big")
    return (prefix, message) if len(message) > LONG else (prefix + message,)


class Messages:
    """Extracts messages from the bytes of a request's body, however they are split.

    encoding: the value of `grpc-encoding`; limit: bytes of a message, compressed and decompressed.
    A message above `LONG` bytes is collected in a HeldBody.
    """

    __slots__ = ("_data", "_encoding", "_have", "_limit", "_long", "_packed", "_size")

    def __init__(self, encoding: bytes, limit: int) -> None:
        if encoding not in (b"identity", b"gzip", b"deflate"):
            shown = encoding[:20].decode("latin-1")
            raise GrpcFailure(
                "UNIMPLEMENTED", f"grpc-encoding {shown!r}; gzip and deflate are known"
            )
        self._encoding = encoding
        self._limit = limit
        self._long: HeldBody | None = None  # the next message, if it is long
        self._packed = False  # whether the next message is compressed, once its size is known
        self._data = bytearray()  # all other bytes
        self._have = 0  # bytes of both, and of the prefix
        self._size = -1  # of the next message; -1: not known yet

    @property
    def is_partial(self) -> bool:
        """Whether a message has begun and is not complete."""
        return self._have > 0 and not self.is_whole()

    @property
    def size(self) -> int:
        """Bytes of the next message, or -1 if that is not known yet."""
        return self._size

    @property
    def has_rest(self) -> bool:
        """Whether bytes follow the next message."""
        return 0 <= self._size < self._have - PREFIX

    def add(self, part: bytes) -> bool:
        """Add a part; return whether a message is complete. Raises GrpcFailure, OSError."""
        missing = 0 if self._long is None else max(0, PREFIX + self._size - self._have)
        if self._long is not None and missing:
            self._long.add(part[:missing])
        self._data += part[missing:]
        self._have += len(part)
        return self.is_whole()

    def is_whole(self) -> bool:
        """Whether `next` has a message. Raises GrpcFailure."""
        if self._size < 0 and self._have >= PREFIX:
            form, self._size = self._data[0], NUMBER.unpack_from(self._data, 1)[0]
            self._packed = form == 1
            if form > 1:
                raise GrpcFailure("INTERNAL", f"a message begins with {form}; expected 0 or 1")
            if self._size > self._limit:
                raise too_large(self._limit)
            if self._size > LONG and self._size > self._have - PREFIX:
                self._long = HeldBody(self._limit)
                self._long.add(bytes(self._data[PREFIX:]))
                self._data.clear()
        return 0 <= self._size <= self._have - PREFIX

    def next(self) -> bytes | HeldBody | Packed | PackedLong | None:
        """Return the next message, or None until it is complete. Raises GrpcFailure."""
        if not self.is_whole():
            return None
        is_packed, long, end = self._packed, self._long, PREFIX + self._size
        self._long, self._size = None, -1
        self._have -= end
        if is_packed and self._encoding == b"identity":
            raise GrpcFailure("INTERNAL", "a packed message without grpc-encoding")
        if long is not None:
            return PackedLong(long, self._limit) if is_packed else long
        with memoryview(self._data) as data:
            message = bytes(data[PREFIX:end])
        del self._data[:end]
        if not is_packed:
            return message
        packed = Packed(message, self._limit)
        return packed.unpack() if packed.is_short else packed

    def end(self) -> None:
        """The body has ended. Raises GrpcFailure if a message is incomplete."""
        if self.is_partial:
            raise GrpcFailure("INVALID_ARGUMENT", "the request ends in the middle of a message")


@dataclass(frozen=True, slots=True)
class PackedLong:
    """A long compressed message. limit: largest decompressed size, in bytes."""

    collected: HeldBody
    limit: int


class Packed:
    """A message compressed with gzip or zlib. Raises GrpcFailure."""

    def __init__(self, message: bytes, limit: int) -> None:
        self._limit = min(limit, max(UNPACKED_FREE, UNPACKED_RATIO * len(message)))
        self._most = limit
        self._unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # 32: detects gzip or zlib
        self._first = self._unpacked(message, SHORT)

    @property
    def is_short(self) -> bool:
        """Whether `unpack` is fast enough to run on the event loop."""
        return len(self._first) < SHORT

    def unpack(self) -> bytes:
        """Return the decompressed message."""
        unpacker, message = self._unpacker, self._first
        if not self.is_short:
            message += self._unpacked(unpacker.unconsumed_tail, self._limit + 1 - SHORT)
        if len(message) > self._limit:
            if self._limit == self._most:
                raise too_large(self._limit)
            text = f"a message that unpacks to more than {UNPACKED_RATIO} times its bytes"
            raise GrpcFailure("RESOURCE_EXHAUSTED", text)
        if not unpacker.eof or unpacker.unused_data:
            raise GrpcFailure("INVALID_ARGUMENT", "the packed message is cut short or has a tail")
        return message

    def _unpacked(self, message: bytes, most: int) -> bytes:
        if most <= 0:
            return b""
        try:
            return self._unpacker.decompress(message, most)
        except zlib.error as error:
            raise GrpcFailure(
                "INVALID_ARGUMENT", f"cannot decompress the message: {error}"
            ) from None


def too_large(limit: int) -> GrpcFailure:
    """Return the error for a message above `limit` bytes."""
    return GrpcFailure(
        "RESOURCE_EXHAUSTED", f"the message is larger than {limit} bytes, the limit here"
    )
