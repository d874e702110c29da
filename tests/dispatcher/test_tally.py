"""Counts since a start and over the last steps. test_chains.py has the rates in time."""

from __future__ import annotations

import pytest

from farm.dispatcher.tally import BUCKETS, Tally


def test_seconds_of_old_steps_no_longer_count() -> None:
    tally = Tally(1000.0, 10.0)
    tally.answered(1, 0, 1000.0, 4.0)
    tally.answered(0, 2, 1009.0, 1.0)
    tally.answered(1, 0, 1010.0, 2.0)
    assert (tally.done, tally.failed, tally.worker_s, tally.last_at) == (2, 2, 7.0, 1010.0)
    assert tally.lately(1010.0)[1] == 7.0
    assert tally.lately(1000.0 + 10.0 * BUCKETS)[1] == 2.0
    assert tally.lately(1010.0 + 10.0 * BUCKETS)[1] == 0.0
    assert tally.calls_per_s(1010.0) == pytest.approx(0.4)


def test_a_run_that_is_longer_than_all_steps_counts_with_their_length() -> None:
    tally = Tally(0.0, 10.0)
    tally.answered(1, 0, 5000.0, 3600.0)
    assert tally.worker_s == 3600.0
    assert tally.lately(5000.0)[1] == 10.0 * BUCKETS


def test_the_sum_of_two_tallies() -> None:
    one, two = Tally(0.0, 10.0), Tally(0.0, 10.0)
    one.answered(1, 0, 100.0, 1.0)
    one.answered(1, 0, 120.0, 2.0)
    two.answered(0, 1, 110.0, 4.0)
    two.answered(0, 1, 121.0, 8.0)
    one.add(two)
    one.add(Tally(0.0, 10.0))
    assert (one.done, one.failed, one.worker_s, one.last_at) == (2, 2, 15.0, 121.0)
    assert list(one.recent) == [[10, 1, 1.0], [11, 1, 4.0], [12, 2, 10.0]]
    one.answered(1, 0, 129.0)
    assert one.recent[-1] == [12, 3, 10.0]
