"""What stops a sweep; one line for the user each. A failed point is data and never one of these."""

from __future__ import annotations


class SweepError(Exception):
    """A sweep cannot be made, read or continued; the text says expected, actual and what to do.

    detail: longer text beside that line, such as a model's traceback.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class SweepBusy(SweepError):
    """Another process writes this sweep now."""


class LockLost(SweepError):
    """Another process took the sweep over, because this one seemed dead."""
