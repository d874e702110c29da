"""Errors as JSON: encoded in UM-Bridge's form, and decoded from the answers of other servers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import orjson

from farm import errors
from farm.encoding.json_numbers import parse
from farm.errors import FarmError, InvalidRequest, shortened

ERRORS: Mapping[type[FarmError], tuple[str, int]] = MappingProxyType(
    {
        errors.InvalidRequest: ("InvalidInput", 400),
        errors.InvalidInput: ("InvalidInput", 400),
        errors.ModelNotFound: ("ModelNotFound", 400),
        errors.UnsupportedFeature: ("UnsupportedFeature", 400),
        errors.InvalidOutput: ("InvalidOutput", 500),
        # UM-Bridge defines no types for the following errors; its clients accept any.
        errors.ModelFailed: ("ModelFailed", 500),
        errors.WorkerLost: ("WorkerLost", 500),
        errors.TimeLimitExceeded: ("TimeLimitExceeded", 500),
        errors.DeadlineExceeded: ("DeadlineExceeded", 504),
        errors.Cancelled: ("Cancelled", 503),
        errors.Overloaded: ("Overloaded", 503),
        errors.Unavailable: ("Unavailable", 503),
    }
)
"""The error type and HTTP status for each class of errors."""


def encode_error(error: FarmError) -> tuple[int, bytes]:
    """Return the HTTP status and the body for an error."""
    kind, status = ERRORS[type(error)]
    return status, error_body(kind, error.message)


def error_body(kind: str, message: str) -> bytes:
    """Return the body of an error: its type and its message."""
    return orjson.dumps({"error": {"type": kind, "message": valid_text(message)}})


def valid_text(text: str) -> str:
    """Return `text` without lone surrogates, which a model's message may contain."""
    return text.encode("utf-8", "replace").decode()


ERRORS_BY_STATUS: Mapping[int, type[FarmError]] = {
    400: errors.InvalidInput,
    404: errors.ModelNotFound,
    413: errors.InvalidInput,
    422: errors.InvalidInput,
    501: errors.UnsupportedFeature,
    504: errors.DeadlineExceeded,
}
"""Errors by HTTP status. Other 5xx: the model failed; any other: no model server is there."""


def decode_error(status: int, body: bytes) -> FarmError:
    """Return the error that a server reports by a status other than 200."""
    kind = ERRORS_BY_STATUS.get(status)
    if kind is None:
        kind = (
            errors.ModelFailed if status >= 500 and status not in (502, 503) else errors.Unavailable
        )
    return kind(f"the server answered with status {status}: {_error_text(body)}")


def _error_text(body: bytes) -> str:
    try:
        answer = parse(body)
    except InvalidRequest:
        answer = None
    text = answer.get("error", answer.get("detail")) if type(answer) is dict else None
    if type(text) is not str:
        text = " ".join(body[:2000].decode("utf-8", "replace").split()) or "an empty body"
    return shortened(text, 400)
