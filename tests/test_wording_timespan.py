"""Time spans of all sizes are read at a glance."""

from __future__ import annotations

import math
import re

import pytest

from farm.wording import timespan


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (math.nan, "?"),
        (math.inf, "?"),
        (-0.3, "0 s"),
        (0, "0 s"),
        (2.5e-5, "25 us"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (1.5, "1.5 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (3599, "59 min 59 s"),
        (3599.7, "1 h 00 min"),
        (7265.0, "2 h 01 min"),
        (100_000, "27 h 46 min"),
        (200_000, "2 d 07 h"),
    ],
)
def test_a_span_has_units_that_suit_it(seconds: float | None, text: str) -> None:
    assert timespan(seconds) == text


def test_no_span_has_an_exponent_or_more_units_than_fit() -> None:
    spans = [10 ** (step / 50) for step in range(-300, 400)]
    small = re.compile(r"[1-9]\d{0,2}(\.\d{1,2})? (us|ms|s)")
    large = re.compile(r"\d+ min [0-5]\d s|\d+ h [0-5]\d min|\d+ d [0-2]\d h")
    for seconds in spans:
        text = timespan(seconds)
        assert (small if seconds < 119.5 else large).fullmatch(text), (seconds, text)
