"""Guesses of run times: exact at smooth functions, and honest about those that nothing explains."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from farm.sweep.order.neighbours import (
    blended,
    coordinates,
    correlated,
    explained,
    guesses,
    left_out,
    load_scipy,
    ranks,
)
from tests.sweep.samples import plan_of

RNG = np.random.default_rng(5)
UNIT = RNG.random((200, 2))
SMOOTH = np.exp(2 * UNIT[:, 0] + UNIT[:, 1])
NOISE = np.exp(RNG.normal(size=200))


def test_a_smooth_function_is_guessed() -> None:
    guess = guesses(UNIT[:150], SMOOTH[:150], UNIT[150:])
    assert np.max(np.abs(np.log(guess / SMOOTH[150:]))) < 0.35
    assert explained(SMOOTH, left_out(UNIT, SMOOTH)) > 0.95
    assert guesses(UNIT, SMOOTH, UNIT[:3]) == pytest.approx(SMOOTH[:3], rel=1e-3)


def test_noise_is_not_explained() -> None:
    assert explained(NOISE, left_out(UNIT, NOISE)) < 0.1
    twice = np.repeat(UNIT[:10], 20, axis=0)
    assert explained(NOISE, left_out(twice, NOISE)) < 0.1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_points_are_enough(count: int) -> None:
    assert guesses(UNIT[:count], SMOOTH[:count], UNIT).shape == (200,)
    if count > 1:
        assert left_out(UNIT[:count], SMOOTH[:count]).shape == (count,)


def test_equal_run_times_leave_nothing_to_explain() -> None:
    same = np.full(200, 2.0)
    assert explained(same, left_out(UNIT, same)) == 0.0
    assert correlated(same, SMOOTH) == 1.0
    assert correlated(SMOOTH, 1000 * SMOOTH**2) == pytest.approx(1.0)
    assert correlated(SMOOTH, 1 / SMOOTH) == 0.0
    assert correlated(SMOOTH, NOISE) < 0.1
    assert correlated(SMOOTH, np.ones(200)) == 0.0


def test_two_guesses_are_better_than_each() -> None:
    one, other = (SMOOTH * np.exp(0.5 * RNG.normal(size=200)) for _ in range(2))
    known = np.arange(100)
    both = blended(SMOOTH[known], known, one, 50 * other)
    errors = [np.std(np.log(guess / SMOOTH)) for guess in (both, one, other)]
    assert errors[0] < 0.85 * min(errors[1:])


def test_places_are_ranks_or_those_of_the_unit_cube() -> None:
    theta = np.array([[1.0, 5.0], [1e9, 5.0], [10.0, 5.0], [10.0, 5.0]])
    assert ranks(theta).tolist() == [[0, 0], [1, 0], [0.5, 0], [0.5, 0]]
    plan = plan_of("random:50", {"E": "1:2", "load": "log:1:10", "mesh": "int:1:3"})
    places = coordinates(plan)
    assert plan.unit is not None
    assert np.array_equal(places[:, :4], plan.unit[:, :4])
    assert places[:, 4].tolist() == ((plan.theta[:, 4] - 1) / 2).tolist(), "not within a number"


def test_scipy_is_loaded_before_guesses_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.spatial", None)
    with pytest.raises(ImportError, match=r"scipy\.spatial"):
        load_scipy()
