"""What can go wrong with a call, by meaning; each protocol maps these to its own codes once.

FarmError
├── InvalidRequest      the bytes are not a message of the protocol (malformed JSON, wrong path)
├── InvalidInput        the question does not fit the model: count, length, type or index
├── ModelNotFound       no model of that name is served here
├── UnsupportedFeature  the model does not offer that operation
├── ModelFailed         the model raised; `detail` holds its traceback
├── InvalidOutput       the model's answer does not fit what it declares
├── WorkerLost          the workers that ran the call died, more often than it may be retried
├── TimeLimitExceeded   the model ran longer than one call may; its worker was killed
├── DeadlineExceeded    the caller's own deadline passed before the answer came
├── Cancelled           the caller took the call back
├── Overloaded          the queue is full; try again later
└── Unavailable         the farm is starting, shutting down or unreachable
"""

from __future__ import annotations

import re
from typing import ClassVar

CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]")
"""What a terminal may take for a command: all control characters but tabs and line ends."""


def printable(text: str) -> str:
    """The text with control characters as escapes such as `\\x1b`, but for tabs and line ends."""
    if text.isprintable():
        return text
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class FarmError(Exception):
    """A call's outcome when there is no result: one line for the caller, more for the log.

    message: one line that says expected and actual and what to do; clients see it.
    detail: longer text, such as a traceback; for logs and sweep files, protocols do not send it.
    Control characters in both are written as escapes, as by `printable`: what a model or another
    server says may end on somebody's terminal.
    row: which row of a task of several rows it is about, counted from 0; None: not known.
    """

    kinds: ClassVar[dict[str, type[FarmError]]] = {}
    row: int | None = None

    def __init__(self, message: str, *, detail: str = "") -> None:
        message, detail = printable(message), printable(detail)
        super().__init__(message)
        self.message = message
        self.detail = detail

    def __init_subclass__(cls) -> None:
        FarmError.kinds[cls.__name__] = cls

    def __reduce__(self) -> tuple[object, tuple[str, str, str]]:
        return error_named, (type(self).__name__, self.message, self.detail)


class InvalidRequest(FarmError):
    """The bytes are not a message of the protocol."""


class InvalidInput(FarmError):
    """The question does not fit the model."""


class ModelNotFound(FarmError):
    """No model of that name is served here."""


class UnsupportedFeature(FarmError):
    """The model does not offer the operation."""


class ModelFailed(FarmError):
    """The model raised."""


class InvalidOutput(FarmError):
    """The model's answer does not fit what it declares."""


class WorkerLost(FarmError):
    """The workers that ran the call died."""


class TimeLimitExceeded(FarmError):
    """The model ran longer than one call may."""


class DeadlineExceeded(FarmError):
    """The caller's deadline passed before the answer came."""


class Cancelled(FarmError):
    """The caller took the call back."""


class Overloaded(FarmError):
    """The queue is full."""


class Unavailable(FarmError):
    """The farm is starting, shutting down or unreachable."""


def error_named(name: str, message: str, detail: str = "") -> FarmError:
    """The error of class `name`, as it came over a wire; an unknown name becomes ModelFailed."""
    kind = FarmError.kinds.get(name)
    if kind is None:
        return ModelFailed(f"{name}: {message}", detail=detail)
    return kind(message, detail=detail)
