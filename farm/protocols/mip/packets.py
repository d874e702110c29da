"""MIP, the Model Invocation Protocol of KubeMo: packets, for server and client half.

A packet begins with a header of 8 bytes, all big-endian: version, kind, subtype, reserved, and in
four bytes the size of the payload that follows. `calls.py` interprets an inference's payload.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from farm import errors
from farm.errors import (
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    UnsupportedFeature,
)

VERSION = 0
REQUEST, RESPONSE = 0, 1
HEAD = struct.Struct("!4BL")
LARGEST_PAYLOAD = 2**32 - 1
LONGEST_TEXT = 1024
"""Longest text of an error, in bytes."""


class PacketKind(IntEnum):
    """The kinds of packets."""

    ERROR = 0
    PING = 1
    INFERENCE = 2


class ErrorCode(IntEnum):
    """The error codes of an answer."""

    PROTOCOL = 0
    SUBTYPE = 1
    METHOD = 2
    MEMORY = 3
    SHAPE = 4
    INTERNAL = 5


ERRORS: Mapping[type[FarmError], ErrorCode] = MappingProxyType(
    {
        errors.InvalidRequest: ErrorCode.INTERNAL,
        errors.InvalidInput: ErrorCode.SHAPE,
        errors.ModelNotFound: ErrorCode.METHOD,
        errors.UnsupportedFeature: ErrorCode.METHOD,
        errors.ModelFailed: ErrorCode.INTERNAL,
        errors.InvalidOutput: ErrorCode.INTERNAL,
        errors.WorkerLost: ErrorCode.INTERNAL,
        errors.TimeLimitExceeded: ErrorCode.INTERNAL,
        errors.DeadlineExceeded: ErrorCode.INTERNAL,
        errors.Cancelled: ErrorCode.INTERNAL,
        errors.Overloaded: ErrorCode.INTERNAL,
        errors.Unavailable: ErrorCode.INTERNAL,
    }
)
"""The code that answers each error."""

_MEANINGS: Mapping[int, tuple[type[FarmError], str]] = MappingProxyType(
    {
        ErrorCode.PROTOCOL: (InvalidRequest, "it speaks another version of MIP"),
        ErrorCode.SUBTYPE: (InvalidRequest, "it takes no requests"),
        ErrorCode.METHOD: (UnsupportedFeature, "it has no model, or its model offers no inference"),
        ErrorCode.MEMORY: (ModelFailed, "the request is too large for it, or it is out of memory"),
        ErrorCode.SHAPE: (
            InvalidInput,
            "the request does not fit its model; or KubeMo's own server was asked for a batch, of "
            "a model that has not as many outputs as inputs",
        ),
        ErrorCode.INTERNAL: (ModelFailed, "the model failed"),
    }
)


class PacketRequest(NamedTuple):
    """A whole request: a ping, without its payload, or an inference."""

    kind: PacketKind
    payload: bytes | bytearray


class MipFault(NamedTuple):
    """A request that gets an error; `MipFramer.broken`: the rest of the stream cannot be parsed."""

    code: ErrorCode
    text: str


class MipFramer:
    """Splits a byte stream into requests, however the bytes are split.

    limit: payload bytes of one packet; a larger one is neither read nor kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = min(limit, LARGEST_PAYLOAD)
        self.broken = False
        """Whether nothing more is read, as after a fatal fault."""
        self.heads = 0
        """Headers read so far."""
        self._buffer = bytearray()
        self._size: int | None = None  # of the awaited payload
        self._drop = 0  # bytes left of a payload to discard

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if not self.broken:
            self._buffer += data

    def stop(self) -> None:
        """Read nothing more."""
        self.broken = True
        self._buffer = bytearray()

    @property
    def awaited(self) -> int | None:
        """Bytes missing from the current packet, as far as known; None: no packet has begun."""
        if self._size is not None:
            return self._size - len(self._buffer)
        if self._drop:
            return self._drop
        return HEAD.size - len(self._buffer) if self._buffer else None

    @property
    def is_empty(self) -> bool:
        """Whether no packet has begun, and more may follow."""
        return not (self._buffer or self._drop or self.broken) and self._size is None

    @property
    def in_payload(self) -> bool:
        """Whether a header has been read and its payload has not."""
        return self._size is not None or self._drop > 0

    def next(self) -> PacketRequest | MipFault | None:
        """Return the next request or fault; None: more bytes are needed."""
        if self.broken:
            return None
        buffer = self._buffer
        if self._drop:
            dropped = min(self._drop, len(buffer))
            del buffer[:dropped]
            self._drop -= dropped
            if self._drop:
                return None
        if self._size is None:
            found = self._head() if buffer else None
            if found is not None:
                return found
        size = self._size
        if size is None or len(buffer) < size:
            return None
        self._size = None
        if len(buffer) == size:
            self._buffer = bytearray()
            return PacketRequest(PacketKind.INFERENCE, buffer)  # long ones are not copied
        with memoryview(buffer) as view:
            payload = bytearray(view[:size])
        del buffer[:size]
        return PacketRequest(PacketKind.INFERENCE, payload)

    def _head(self) -> PacketRequest | MipFault | None:
        """Return the request or fault that a header alone determines; None: needs more bytes."""
        buffer = self._buffer
        if buffer and buffer[0] != VERSION:  # at the first byte: there may be no more
            text = f"the packet's version is {buffer[0]}; MIP has version {VERSION}"
            return self._break(ErrorCode.PROTOCOL, text)
        if len(buffer) < HEAD.size:
            return None
        _, kind, subtype, _, size = HEAD.unpack_from(buffer)
        del buffer[: HEAD.size]
        self.heads += 1
        fault = self._fault(kind, subtype, size)
        if size > self.limit:
            assert fault is not None
            return self._break(fault.code, fault.text)
        if fault is None and kind == PacketKind.INFERENCE:
            self._size = size
            return None
        self._drop = size
        return fault or PacketRequest(PacketKind.PING, b"")

    def _fault(self, kind: int, subtype: int, size: int) -> MipFault | None:
        if subtype != REQUEST:
            text = f"the packet's subtype is {subtype}; a request has {REQUEST}"
            return MipFault(ErrorCode.SUBTYPE, text)
        if kind not in (PacketKind.PING, PacketKind.INFERENCE):
            text = f"the packet's kind is {kind}; expected 1, ping, or 2, inference"
            return MipFault(ErrorCode.METHOD, text)
        if size > self.limit:
            text = f"the payload has {size} bytes; the limit here is {self.limit}"
            return MipFault(ErrorCode.MEMORY, text)
        return None

    def _break(self, code: ErrorCode, text: str) -> MipFault:
        self.stop()
        return MipFault(code, text)


PONG = HEAD.pack(VERSION, PacketKind.PING, RESPONSE, 0, 0)


def encode_error(code: ErrorCode, text: str) -> bytes:
    """Return the packet of an error, with the text cut to fit."""
    payload = text.encode("utf-8", "replace")[:LONGEST_TEXT]
    payload = payload.decode("utf-8", "ignore").encode()  # drop a partial character
    return HEAD.pack(VERSION, PacketKind.ERROR, code, 0, len(payload)) + payload


def encode_farm_error(error: FarmError) -> bytes:
    """Return the packet that answers a failed call."""
    return encode_error(ERRORS[type(error)], error.message)


# The client's half

PING = HEAD.pack(VERSION, PacketKind.PING, REQUEST, 0, 0)


def encode_request(payload: bytes) -> bytes:
    """Return the packet of an inference. Raises InvalidInput if it does not fit into one."""
    if len(payload) > LARGEST_PAYLOAD:
        raise InvalidInput(
            f"the call takes {len(payload)} bytes in MIP; a packet holds {LARGEST_PAYLOAD}"
        )
    return HEAD.pack(VERSION, PacketKind.INFERENCE, REQUEST, 0, len(payload)) + payload


class PacketHead(NamedTuple):
    """A response's header: kind, error code or subtype, and size of the payload."""

    kind: PacketKind
    subtype: int
    size: int


def decode_head(head: bytes, asked: PacketKind) -> PacketHead:
    """Return the header of a response. Raises InvalidOutput if it is not one."""
    version, kind, subtype, _, size = HEAD.unpack(head)
    if version != VERSION or kind not in (PacketKind.ERROR, asked):
        raise InvalidOutput(
            f"the answer begins with {head.hex(' ')}; expected 00 {asked:02x} 01, or 00 00 and an "
            "error code: is it a MIP server?"
        )
    if kind == asked and subtype != RESPONSE:
        raise InvalidOutput(f"the answer has subtype {subtype}; expected {RESPONSE}, a response")
    return PacketHead(PacketKind(kind), subtype, size)


def error_of(code: int, payload: bytes, where: str) -> FarmError:
    """Return the error in a server's error packet; payload: its text, usually empty."""
    kind, meaning = _MEANINGS.get(code, (ModelFailed, "that is no code of MIP"))
    text = " ".join(payload[:LONGEST_TEXT].decode("utf-8", "replace").split()) or meaning
    return kind(f"{where} answers with error code {code}: {text}")
