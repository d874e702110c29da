"""MIP, the Model Invocation Protocol of KubeMo: its packets, of both halves.

A packet is a header of 8 bytes, all big-endian: version, kind, subtype, reserved, and in four bytes
the size of the payload behind it. What an inference's payload means: `mip_calls`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from farm.errors import (
    Cancelled,
    DeadlineExceeded,
    FarmError,
    InvalidInput,
    InvalidOutput,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    Overloaded,
    TimeLimitExceeded,
    Unavailable,
    UnsupportedFeature,
    WorkerLost,
)

VERSION = 0
REQUEST, RESPONSE = 0, 1
HEAD = struct.Struct("!4BL")
LARGEST_PAYLOAD = 2**32 - 1
LONGEST_TEXT = 1024
"""Bytes of an error's text."""


class Kind(IntEnum):
    """What a packet is."""

    ERROR = 0
    PING = 1
    INFERENCE = 2


class Code(IntEnum):
    """Why a request is answered with an error."""

    PROTOCOL = 0
    SUBTYPE = 1
    METHOD = 2
    MEMORY = 3
    SHAPE = 4
    INTERNAL = 5


ERRORS: Mapping[type[FarmError], Code] = MappingProxyType(
    {
        InvalidRequest: Code.INTERNAL,
        InvalidInput: Code.SHAPE,
        ModelNotFound: Code.METHOD,
        UnsupportedFeature: Code.METHOD,
        ModelFailed: Code.INTERNAL,
        InvalidOutput: Code.INTERNAL,
        WorkerLost: Code.INTERNAL,
        TimeLimitExceeded: Code.INTERNAL,
        DeadlineExceeded: Code.INTERNAL,
        Cancelled: Code.INTERNAL,
        Overloaded: Code.INTERNAL,
        Unavailable: Code.INTERNAL,
    }
)
"""The code that each error is answered with."""

_MEANINGS: Mapping[int, tuple[type[FarmError], str]] = MappingProxyType(
    {
        Code.PROTOCOL: (InvalidRequest, "it speaks another version of MIP"),
        Code.SUBTYPE: (InvalidRequest, "it takes no requests"),
        Code.METHOD: (UnsupportedFeature, "it has no model, or its model offers no inference"),
        Code.MEMORY: (ModelFailed, "the request is too large for it, or it is out of memory"),
        Code.SHAPE: (
            InvalidInput,
            "the request does not fit its model; or KubeMo's own server was asked for a batch, of "
            "a model that has not as many outputs as inputs",
        ),
        Code.INTERNAL: (ModelFailed, "the model failed"),
    }
)


class Asked(NamedTuple):
    """A whole request: a ping, without its payload, or an inference."""

    kind: Kind
    payload: bytes | bytearray


class Fault(NamedTuple):
    """A request that is answered with an error; fatal: nothing behind it can be understood."""

    code: Code
    text: str
    fatal: bool


class Framer:
    """Cuts a stream of bytes into requests, wherever it is split.

    limit: payload bytes of one packet; a larger one is neither read nor kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = min(limit, LARGEST_PAYLOAD)
        self.broken = False
        """After a fatal fault: nothing more is read."""
        self.heads = 0
        """Headers read so far."""
        self._buffer = bytearray()
        self._size: int | None = None  # of the payload that is awaited
        self._drop = 0  # bytes of a payload that nobody wants

    def feed(self, data: bytes) -> None:
        """Take in what has come."""
        if not self.broken:
            self._buffer += data

    @property
    def awaited(self) -> int | None:
        """Bytes that the packet which has begun still lacks, as far as is known; None: none has."""
        if self._size is not None:
            return self._size - len(self._buffer)
        if self._drop:
            return self._drop
        return HEAD.size - len(self._buffer) if self._buffer else None

    @property
    def in_payload(self) -> bool:
        """Whether a header is read and its payload is not."""
        return self._size is not None or self._drop > 0

    def next(self) -> Asked | Fault | None:
        """The next request; None: not yet."""
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
            found = self._head()
            if found is not None:
                return found
        size = self._size
        if size is None or len(buffer) < size:
            return None
        self._size = None
        if len(buffer) == size:
            self._buffer = bytearray()
            return Asked(Kind.INFERENCE, buffer)  # long ones are not copied
        with memoryview(buffer) as view:
            payload = bytearray(view[:size])
        del buffer[:size]
        return Asked(Kind.INFERENCE, payload)

    def _head(self) -> Asked | Fault | None:
        """What is to be said to a header at once; None when its payload, or itself, is awaited."""
        buffer = self._buffer
        if buffer and buffer[0] != VERSION:  # seen at the first byte: it may be all that ever comes
            text = f"the packet's version is {buffer[0]}; MIP has version {VERSION}"
            return self._break(Code.PROTOCOL, text)
        if len(buffer) < HEAD.size:
            return None
        _, kind, subtype, _, size = HEAD.unpack_from(buffer)
        del buffer[: HEAD.size]
        self.heads += 1
        fault = self._fault(kind, subtype, size)
        if size > self.limit:
            assert fault is not None
            return self._break(fault.code, fault.text)
        if fault is None and kind == Kind.INFERENCE:
            self._size = size
            return None
        self._drop = size
        return fault or Asked(Kind.PING, b"")

    def _fault(self, kind: int, subtype: int, size: int) -> Fault | None:
        if subtype != REQUEST:
            text = f"the packet's subtype is {subtype}; a request has {REQUEST}"
            return Fault(Code.SUBTYPE, text, False)
        if kind not in (Kind.PING, Kind.INFERENCE):
            text = f"the packet's kind is {kind}; expected 1, ping, or 2, inference"
            return Fault(Code.METHOD, text, False)
        if size > self.limit:
            text = f"the payload has {size} bytes; the limit here is {self.limit}"
            return Fault(Code.MEMORY, text, True)
        return None

    def _break(self, code: Code, text: str) -> Fault:
        self.broken = True
        self._buffer = bytearray()
        return Fault(code, text, True)


PONG = HEAD.pack(VERSION, Kind.PING, RESPONSE, 0, 0)


def encode_error(code: Code, text: str) -> bytes:
    """The packet of an error; of the text as much as fits."""
    payload = text.encode("utf-8", "replace")[:LONGEST_TEXT]
    payload = payload.decode("utf-8", "ignore").encode()  # no half of a letter
    return HEAD.pack(VERSION, Kind.ERROR, code, 0, len(payload)) + payload


def encode_farm_error(error: FarmError) -> bytes:
    """The packet that a failed call is answered with."""
    return encode_error(ERRORS[type(error)], error.message)


# The client's half

PING = HEAD.pack(VERSION, Kind.PING, REQUEST, 0, 0)


def encode_request(payload: bytes) -> bytes:
    """The packet of an inference. Raises InvalidInput when it is too large for a packet."""
    if len(payload) > LARGEST_PAYLOAD:
        raise InvalidInput(
            f"the call takes {len(payload)} bytes in MIP; a packet holds {LARGEST_PAYLOAD}"
        )
    return HEAD.pack(VERSION, Kind.INFERENCE, REQUEST, 0, len(payload)) + payload


class Head(NamedTuple):
    """A response's header: kind, error code or subtype, and bytes behind it."""

    kind: Kind
    subtype: int
    size: int


def decode_head(head: bytes, asked: Kind) -> Head:
    """The header of what answers a request. Raises InvalidOutput when it is no such thing."""
    version, kind, subtype, _, size = HEAD.unpack(head)
    if version != VERSION or kind not in (Kind.ERROR, asked):
        raise InvalidOutput(
            f"the answer begins with {head.hex(' ')}; expected 00 {asked:02x} 01, or 00 00 and an "
            "error code: is it a MIP server?"
        )
    if kind == asked and subtype != RESPONSE:
        raise InvalidOutput(f"the answer has subtype {subtype}; expected {RESPONSE}, a response")
    return Head(Kind(kind), subtype, size)


def error_of(code: int, payload: bytes, where: str) -> FarmError:
    """The error that a server's error packet means; payload: its text, mostly empty."""
    kind, meaning = _MEANINGS.get(code, (ModelFailed, "that is no code of MIP"))
    text = " ".join(payload[:LONGEST_TEXT].decode("utf-8", "replace").split()) or meaning
    return kind(f"{where} answers with error code {code}: {text}")
