"""Errors of sweeps: a line for the user and details; they are not errors of calls."""

from __future__ import annotations

from farm.errors import FarmError
from farm.sweep.errors import SweepError


def test_is_no_error_of_a_call() -> None:
    """Protocols map every FarmError to one of their codes; a SweepError has none."""
    assert not issubclass(SweepError, FarmError)
    error = SweepError("one line", detail="many lines")
    assert (str(error), error.detail) == ("one line", "many lines")
