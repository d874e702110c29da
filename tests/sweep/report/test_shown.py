"""Which points a report has: all if few, otherwise a bounded, stated, representative part."""

from __future__ import annotations

import numpy as np
import pytest

from farm.sweep.file.journal import PointStatus
from farm.sweep.report.shown import LEAST_POINTS, MOST_POINTS, shown_points, some_of
from tests.sweep.report.reports import known_with


def test_few_points_are_all_shown_but_pending_ones() -> None:
    known = known_with(20, failures=[3])
    known.status[:2] = PointStatus.PENDING
    shown = shown_points(known, 5)
    assert shown.points.tolist() == list(range(2, 20))
    assert shown.note == ""


def test_all_failed_points_stay_among_many() -> None:
    failures = range(0, 100_000, 50)
    shown = shown_points(known_with(100_000, failures=failures), 4)
    assert len(shown.points) == MOST_POINTS
    assert set(failures) <= set(shown.points.tolist())
    assert (np.diff(shown.points) > 0).all()
    assert shown.note == (
        "10,000 of 100,000 points are shown, drawn at random: all 2,000 that failed and 8,000 of "
        "98,000 that are done."
    )


def test_done_points_stay_among_very_many_failed_ones() -> None:
    shown = shown_points(known_with(50_000, failures=range(40_000)), 4)
    assert len(shown.points) == MOST_POINTS
    assert (shown.done_shown, shown.failed_shown) == (2_000, 8_000)
    assert "8,000 of 40,000 that failed and 2,000 of 10,000 that are done" in shown.note


@pytest.mark.parametrize(("columns", "count"), [(12, 10_000), (60, 2_000), (10_000, LEAST_POINTS)])
def test_wide_points_are_fewer(columns: int, count: int) -> None:
    assert len(shown_points(known_with(20_000), columns).points) == count


def test_without_done_points_all_room_is_for_failed_ones() -> None:
    shown = shown_points(known_with(30_000, failures=range(30_000)), 4)
    assert len(shown.points) == MOST_POINTS
    assert shown.note.startswith("10,000 of 30,000")


def test_every_level_of_a_grid_stays() -> None:
    """Every n-th of its points would leave most levels of the last parameter out."""
    shown = shown_points(known_with(100_000), 4)
    levels = np.bincount(shown.points % 100, minlength=100)
    assert levels.min() > 50


def test_the_same_sweep_shows_the_same_points() -> None:
    known = known_with(50_000, failures=range(0, 50_000, 7))
    assert np.array_equal(shown_points(known, 9).points, shown_points(known, 9).points)


def test_some_of_keeps_the_order() -> None:
    rng = np.random.default_rng(0)
    assert some_of(np.arange(5), 5, rng).tolist() == [0, 1, 2, 3, 4]
    kept = some_of(np.arange(100), 10, rng)
    assert len(kept) == 10
    assert (np.diff(kept) > 0).all()
