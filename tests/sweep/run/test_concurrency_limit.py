"""The limit of points in flight: grows with workers and rate, shrinks on refusal, pauses."""

from __future__ import annotations

from itertools import pairwise

import pytest

from farm.sweep.run.concurrency_limit import (
    LARGEST,
    LONGEST_LOOK_S,
    LONGEST_PAUSE_S,
    START,
    ConcurrencyLimit,
)


@pytest.mark.parametrize("number", [3, 100_000])
def test_the_user_s_number_stays(number: int) -> None:
    limit = ConcurrencyLimit(number)
    for k in range(100):
        limit.answered(f"w{k}", 0.001 * k)
    assert limit.size(1.0) == number
    assert not limit.looks(1.0)


def test_a_farm_gets_enough_for_its_slots_however_many_before_it_answers() -> None:
    limit = ConcurrencyLimit()
    limit.there_are(10_000)
    assert limit.size(0.0) == 40_000
    limit.there_are(0)  # it did not say
    assert limit.size(0.0) == 40_000


def test_the_farm_is_asked_at_first_and_then_less_and_less_often() -> None:
    limit = ConcurrencyLimit()
    asked = [t for t in range(400) if limit.looks(float(t))]
    assert asked[:5] == [0, 5, 15, 35, 75]
    assert max(b - a for a, b in pairwise(asked)) == LONGEST_LOOK_S
    limit.lost(400.0)
    assert not limit.looks(1000.0)
    limit.answered("w", 1000.0)
    assert limit.looks(1000.0)


def test_more_workers_get_more_points() -> None:
    limit = ConcurrencyLimit()
    for k in range(1000):
        limit.answered(f"w{k}", 10.0 * k)
    assert limit.size(10_000.0) == 4000
    assert limit.workers == 1000
    assert ConcurrencyLimit().size(0.0) == START


def test_answers_that_came_together_count_as_many() -> None:
    one_by_one, together = ConcurrencyLimit(), ConcurrencyLimit()
    for limit in (one_by_one, together):
        limit.refused(20, 0.0)
    for k in range(200):
        for worker in range(100):
            one_by_one.answered(f"w{worker if k else 7}", 1.0 + k)
        for worker in range(100) if k else (7,):
            together.answered(f"w{worker}", 1.0 + k, 1 if k else 100)
        assert together.size(2.0 + k) == one_by_one.size(2.0 + k)
        assert together.workers == one_by_one.workers


def test_workers_that_answer_no_more_are_forgotten() -> None:
    limit = ConcurrencyLimit()
    for k in range(100):
        limit.answered(f"old{k}", float(k))
    for k in range(20_000):
        limit.answered("new", 100.0 + k)
    assert limit.workers == 1
    for k in range(20_000):
        limit.answered("", 30_000.0 + k)
    assert limit.workers == 0, "of answers of nobody"


def test_tiny_points_get_two_seconds_ahead_but_not_without_limit() -> None:
    limit = ConcurrencyLimit()
    for k in range(2000):
        limit.answered("w", k / 2000)
    assert 3500 < limit.size(1.0) <= 4000
    for k in range(10_000):
        limit.answered("w", 1.0 + k / 100_000)
    assert limit.size(1.1) == LARGEST


def test_a_full_farm_gets_half_after_a_pause_and_more_with_each_answer() -> None:
    limit = ConcurrencyLimit()
    limit.refused(200, 0.0)
    assert limit.size(0.1) == 0
    limit.refused(150, 0.1)  # refused in the same burst
    assert limit.size(0.21) == 100
    limit.refused(100, 1.0)
    assert limit.size(1.3) == 0
    assert limit.size(1.5) == 50
    limit = ConcurrencyLimit()
    limit.refused(20, 0.0)
    for _ in range(15):
        limit.answered("w", 1.0)
    assert limit.size(1.0) == 25
    limit = ConcurrencyLimit()
    limit.refused(1, 0.0)
    assert limit.size(1.0) == 1


def test_a_lost_farm_is_tried_with_one_point_after_pauses_with_a_limit() -> None:
    limit = ConcurrencyLimit()
    limit.lost(0.0)
    assert limit.size(0.1) == 0
    assert limit.size(1.0) == 1
    limit = ConcurrencyLimit()
    now = 0.0
    for _ in range(20):
        limit.lost(now)
        now += LONGEST_PAUSE_S + 0.01
        assert limit.size(now) == 1
    limit.answered("w", now)
    limit.lost(now)
    assert limit.size(now + 0.21) == 1
