"""The errors of a call, by meaning; each protocol has one table that maps them to its codes.

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
├── Cancelled the caller cancelled the call
├── Overloaded          the queue is full; try again later
└── Unavailable the farm is starting, shutting down or unreachable
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import ClassVar

BEFORE_IT_RAN = "the call was cancelled before it ran"
INTERNAL_ERROR = "the farm made a mistake; its log says which"

CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f]")
"""Characters that a terminal may take for commands: all control characters but tab and newline."""


def printable(text: str) -> str:
    """Return the text with control characters escaped as `\x1b`, except tabs and line ends."""
    if text.isprintable():
        return text
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class LossCause(StrEnum):
    """The reason why a worker was lost, which decides whether its calls are tried again.

    UNKNOWN: they are tried again, a few times. CRASH: the model's own code, at a cost of seconds:
    they are tried once more. TIME_LIMIT: they ran too long, so running again is useless.
    RECLAIMED: its machine was taken away while it drained, which counts no attempt.
    STOPPED: its supervisor was asked to stop, and killed it in the middle of a call; the call is
    tried again as for UNKNOWN.
    """

    UNKNOWN = "unknown"
    CRASH = "crash"
    TIME_LIMIT = "time limit"
    RECLAIMED = "reclaimed"
    STOPPED = "stopped"


class FarmError(Exception):
    """The outcome of a call without a result: one line for the caller, more for the log.

    message: one line with expected and actual values and what to do; clients see it.
    detail: longer text, such as a traceback, for logs and sweep files; protocols do not send it.
    Control characters in both are escaped, as by `printable`: text from a model or another server
    may end up on a user's terminal.
    row: the row of a task of several rows that failed, counted from 0; None if unknown.
    call_id: the id of the call that failed, by which logs name it; "" if it has none.
    """

    kinds: ClassVar[dict[str, type[FarmError]]] = {}
    row: int | None = None
    call_id: str = ""

    def __init__(self, message: str, *, detail: str = "") -> None:
        message, detail = printable(message), printable(detail)
        super().__init__(message)
        self.message = message
        self.detail = detail

    def of_call(self, call_id: str) -> FarmError:
        """Return a copy of the error that names its call; other calls may have this one, too."""
        error = error_named(type(self).__name__, self.message, self.detail)
        error.row, error.call_id = self.row, call_id
        error.add_note(f"id of the call in the logs: {call_id}")
        return error

    def __init_subclass__(cls) -> None:
        FarmError.kinds[cls.__name__] = cls

    def __reduce__(self) -> tuple[object, tuple[str, str, str]]:
        return error_named, (type(self).__name__, self.message, self.detail)


class InvalidRequest(FarmError):
    """The bytes are not a valid message of the protocol."""


class InvalidInput(FarmError):
    """The inputs or arguments do not fit the model."""


class ModelNotFound(FarmError):
    """The farm serves no model of that name."""


class UnsupportedFeature(FarmError):
    """The model does not offer the operation."""


class ModelFailed(FarmError):
    """The model raised an exception."""


class InvalidOutput(FarmError):
    """The model's answer does not match its declaration."""


class WorkerLost(FarmError):
    """The workers that ran the call died."""


class TimeLimitExceeded(FarmError):
    """The model ran longer than the time limit of a call, or than its worker's job lasted."""


class DeadlineExceeded(FarmError):
    """The caller's deadline passed before the answer came."""


class Cancelled(FarmError):
    """The caller cancelled the call."""


class Overloaded(FarmError):
    """The queue is full."""


class Unavailable(FarmError):
    """The farm is starting, shutting down or unreachable."""


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters, the last of which are dots if it was longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def error_named(name: str, message: str, detail: str = "") -> FarmError:
    """Return an error of class `name`, as received in a message; ModelFailed for unknown names."""
    kind = FarmError.kinds.get(name)
    if kind is None:
        kind, message = ModelFailed, f"{name}: {message}"
    error = kind(message, detail=detail)
    if error.detail:
        error.__cause__ = Detail(error.detail)
    return error


class Detail(Exception):
    """The detail of an error as its cause, which Python prints before the error itself."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
