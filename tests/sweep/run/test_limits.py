"""The numbers that limit a sweep are checked before anything starts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from farm.sweep.errors import SweepError
from farm.sweep.run.limits import check_limits

NONE: dict[str, Any] = dict.fromkeys(("seed", "workers", "in_flight", "max_failures", "max_hours"))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"seed": 0, "workers": 1, "in_flight": 1, "max_failures": 0, "max_hours": 1e-3},
        {"seed": np.int64(7), "workers": np.uint8(2), "max_hours": math.inf},
        {"max_hours": 2, "seed": 2**70},
    ],
)
def test_numbers_that_fit(given: dict[str, Any]) -> None:
    check_limits(**NONE | given)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seed", "a", "seed is 'a'; expected a whole number from 0 on"),
        ("seed", -1, "seed is -1; expected a whole number from 0 on"),
        ("seed", 1.5, "seed is 1.5; expected a whole number from 0 on"),
        ("workers", 0, "workers is 0; expected a whole number from 1 on"),
        ("workers", 2.5, "workers is 2.5; expected a whole number from 1 on"),
        ("workers", True, "workers is True; expected a whole number from 1 on"),
        ("in_flight", 0, "in_flight is 0; expected a whole number from 1 on"),
        ("max_failures", "5%", "max_failures is '5%'; expected a whole number from 0 on"),
        ("max_hours", "2", "max_hours is '2'; expected a number of hours above 0"),
        ("max_hours", 0, "max_hours is 0; expected a number of hours above 0"),
        ("max_hours", math.nan, "max_hours is nan; expected a number of hours above 0"),
    ],
)
def test_one_that_does_not_is_named(name: str, value: object, expected: str) -> None:
    with pytest.raises(SweepError) as caught:
        check_limits(**NONE | {name: value})
    assert str(caught.value) == expected
