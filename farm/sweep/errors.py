"""Errors that stop a sweep, each with one line for the user; a failed point is not an error."""

from __future__ import annotations

from pathlib import Path

from farm.wording import worded


class SweepError(Exception):
    """A sweep cannot be created, read or continued; the message says what to do.

    detail: longer text in addition to the message, such as a model's traceback.
    expected: clause that ends the text and says what farm reads; `message` is the text without it,
    for readers that expect something else.
    """

    def __init__(self, message: str, *, detail: str = "", expected: str = "") -> None:
        super().__init__(f"{message}; {expected}" if expected else message)
        self.message = message
        self.detail = detail


def resumed(path: Path) -> str:
    """Return what continues the sweep in `path`, for a message."""
    return worded(f"--resume {path}", "the same farm.sweep call")
