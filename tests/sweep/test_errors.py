"""Errors of sweeps: a line for the user and details; they are not errors of calls."""

from __future__ import annotations

from farm.errors import FarmError
from farm.sweep.errors import SweepError


def test_is_a_sweep_error_with_line_and_detail() -> None:
    error = SweepError("one line", detail="many lines")
    assert isinstance(error, SweepError)
    assert (str(error), error.detail) == ("one line", "many lines")


def test_is_no_error_of_a_call() -> None:
    """Protocols map every FarmError to one of their codes; a SweepError has none."""
    assert not issubclass(SweepError, FarmError)
