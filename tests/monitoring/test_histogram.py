"""Histograms: which bucket a time belongs to, counts and sum."""

from __future__ import annotations

import json

from farm.monitoring.histogram import SHORT_TIMES_S, TIMES_S, Histogram


def test_a_time_belongs_to_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for seconds in (0.0, 1.0, 1.5, 2.0, 5.0, 5.1, 1e9):
        histogram.add(seconds)
    assert histogram.counts == [2, 2, 1, 2]
    assert histogram.total == 1e9 + 14.6


def test_several_events_of_one_length() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.add(1.5, 4)
    assert histogram.snapshot() == {"bounds": [1.0, 2.0], "counts": [0, 4, 0], "sum": 6.0}
    assert json.loads(json.dumps(histogram.snapshot())) == histogram.snapshot()


def test_bounds_rise_from_a_tenth_of_a_millisecond() -> None:
    assert list(TIMES_S) == sorted(set(TIMES_S))
    assert (TIMES_S[0], TIMES_S[-1], SHORT_TIMES_S[-1]) == (1e-4, 5e4, 1.0)
