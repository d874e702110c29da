"""The bound on points in flight: grows with workers and rate, shrinks when refused, pauses."""

from __future__ import annotations

from farm.sweep.window import LARGEST, LONGEST_PAUSE_S, START, Window


def test_at_first_enough_for_many_workers() -> None:
    assert Window().size(0.0) == START
    assert Window(start=2000).size(0.0) == 2000


def test_the_user_s_number_stays() -> None:
    window = Window(3)
    for k in range(100):
        window.answered(f"w{k}", 0.001 * k)
    assert window.size(1.0) == 3


def test_more_workers_get_more_points() -> None:
    window = Window()
    for k in range(1000):
        window.answered(f"w{k}", 10.0 * k)
    assert window.size(10_000.0) == 4000
    assert window.workers == 1000


def test_workers_that_answer_no_more_are_forgotten() -> None:
    window = Window()
    for k in range(100):
        window.answered(f"old{k}", float(k))
    for k in range(20_000):
        window.answered("new", 100.0 + k)
    assert window.workers == 1


def test_failures_whose_worker_is_not_known_count_for_none() -> None:
    window = Window()
    for k in range(20_000):
        window.answered("", float(k))
    assert window.workers == 0


def test_tiny_points_get_two_seconds_ahead_but_not_without_limit() -> None:
    window = Window()
    for k in range(2000):
        window.answered("w", k / 2000)
    assert 3500 < window.size(1.0) <= 4000
    for k in range(10_000):
        window.answered("w", 1.0 + k / 100_000)
    assert window.size(1.1) == LARGEST


def test_a_full_farm_gets_half_after_a_pause_that_grows() -> None:
    window = Window()
    window.refused(200, 0.0)
    assert window.size(0.1) == 0
    window.refused(150, 0.1)  # the same burst
    assert window.size(0.21) == 100
    window.refused(100, 1.0)
    assert window.size(1.3) == 0
    assert window.size(1.5) == 50


def test_it_grows_again_with_answers() -> None:
    window = Window()
    window.refused(20, 0.0)
    for _ in range(15):
        window.answered("w", 1.0)
    assert window.size(1.0) == 25


def test_a_lost_farm_is_tried_with_one_point() -> None:
    window = Window()
    window.lost(0.0)
    assert window.size(0.1) == 0
    assert window.size(1.0) == 1


def test_pauses_have_a_limit_and_end_with_an_answer() -> None:
    window = Window()
    now = 0.0
    for _ in range(20):
        window.lost(now)
        now += LONGEST_PAUSE_S + 0.01
        assert window.size(now) == 1
    window.answered("w", now)
    window.lost(now)
    assert window.size(now + 0.21) == 1


def test_one_point_at_least() -> None:
    window = Window()
    window.refused(1, 0.0)
    assert window.size(1.0) == 1
