"""Checks the numbers that limit a sweep of a Python program, before anything starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.sweep.errors import SweepError


def check_limits(
    *, seed: Any, workers: Any, in_flight: Any, max_failures: Any, max_hours: Any
) -> None:
    """Raise SweepError for a number that is not one, or is too small; None is always accepted."""
    for name, value, least in (
        ("seed", seed, 0),
        ("workers", workers, 1),
        ("in_flight", in_flight, 1),
        ("max_failures", max_failures, 0),
    ):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise SweepError(f"{name} is {value!r}; expected a whole number from {least} on")
    if max_hours is None:
        return
    if not isinstance(max_hours, int | float | np.number) or not max_hours > 0:
        raise SweepError(f"max_hours is {max_hours!r}; expected a number of hours above 0")
