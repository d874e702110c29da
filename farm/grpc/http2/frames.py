"""HTTP/2 frames and constants.

Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

ACK = END_STREAM = 0x1
END_HEADERS, PADDED, PRIORITISED = 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = range(4)
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = range(5, 9)
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11

ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 2, 3, 4
MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 5, 6
"""The settings that this server uses; section 6.5.2."""

LARGEST_WINDOW = 2**31 - 1
FIRST_WINDOW, FIRST_FRAME_SIZE = 65_535, 16_384
"""Initial values of both ends; section 6.5.2."""

HEAD = struct.Struct(">HBBBL")
LONG = struct.Struct(">L")
SETTING = struct.Struct(">HL")
MESSAGE = struct.Struct(">HBBBLBL")
"""Layouts of a frame's head, of a number in a payload, of one setting, and of the head of a frame
that begins with a gRPC message, with the message's prefix."""

MOST_SETTINGS = 32
"""Parameters of one SETTINGS frame; RFC 9113 defines six."""

PREFIX = 5
"""Bytes before a gRPC message: whether it is compressed, and its length."""


class ConnectionFailed(Exception):
    """The client broke the protocol: the connection ends after the last bytes of `take`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame's bytes; section 4.1."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return a literal header that no table stores; RFC 7541 section 6.2.2."""
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    rest, parts = size - 127, [127]
    while rest >= 128:
        parts.append(rest & 127 | 128)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


def without_padding(payload: bytes) -> bytes:
    """Return a padded payload without its padding; section 6.1. Raises ConnectionFailed."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailed(PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def settings_frame(*parameters: tuple[int, int]) -> bytes:
    """Return a SETTINGS frame with these parameters, by number; section 6.5.1."""
    return frame(SETTINGS, 0, 0, b"".join([SETTING.pack(*each) for each in parameters]))


def settings_in(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the parameters of a client's SETTINGS, in order. Raises ConnectionFailed."""
    if len(payload) % SETTING.size:
        raise ConnectionFailed(FRAME_SIZE_ERROR, "SETTINGS are malformed")
    if len(payload) > SETTING.size * MOST_SETTINGS:
        raise ConnectionFailed(ENHANCE_YOUR_CALM, "too many parameters in SETTINGS")
    for name, value in SETTING.iter_unpack(payload):
        if name == MAX_FRAME_SIZE and not FIRST_FRAME_SIZE <= value < 1 << 24:
            raise ConnectionFailed(PROTOCOL_ERROR, f"a frame size of {value}")
        if name == ENABLE_PUSH and value > 1:
            raise ConnectionFailed(PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        yield name, value
