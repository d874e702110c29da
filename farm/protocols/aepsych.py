"""Messages of AEPsych: one JSON object a request, one an answer, on a stream of bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_MESSAGE_BYTES = 64 * 2**20
"""Longer requests are refused."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. type: its kind, an alias already in today's spelling; message: never None.

    whole: the object as it was received, which an error answer repeats.
    extra: what stood beside the message and belongs to a trial (`extra_info`).
    """

    type: str
    message: Mapping[str, Any]
    whole: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """What was received instead of a request: answer `encode_error(error, received)`.

    received: what it was, as far as it could be read. close: the stream cannot go on.
    """

    error: str
    received: Any
    close: bool = False


class Framer:
    """Requests out of a stream of bytes, however it is cut."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self.limit = limit

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        raise NotImplementedError

    def next(self) -> Request | Fault | None:
        """The next request; None: more bytes are needed."""
        raise NotImplementedError


def encode_answer(answer: Mapping[str, Any]) -> bytes:
    """The answer in ASCII JSON, without NaN and without -0.0."""
    raise NotImplementedError


def encode_error(error: str, received: Any) -> bytes:
    """An error answer. received: a request's `whole` or a fault's `received`, perhaps shortened."""
    raise NotImplementedError


def encode_request(type: str, message: Mapping[str, Any]) -> bytes:
    """The client's half of `Framer`."""
    raise NotImplementedError


def read_answer(data: bytes) -> Mapping[str, Any]:
    """The client's half of `encode_answer`. Raises InvalidInput with the server's error."""
    raise NotImplementedError
