"""Designs in a space with constraints: which points are drawn, left out or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.sweep.design.drawing import repeated
from farm.sweep.errors import SweepError
from tests.sweep.samples import plan_of

PARAMS = {"E": "1:2", "load": "0:1", "solver": "choice:euler,rk,bdf", "order": "int:1:5"}
WHEN = {"order": 'solver != "euler"'}


def test_equal_points_are_those_of_one_zero_and_one_nan() -> None:
    theta = np.array([[0.0, np.nan], [-0.0, np.nan], [0.0, 1.0], [0.0, 1.0]])
    assert repeated(theta).tolist() == [False, True, False, True]
    assert repeated(theta, np.array([True, False, False, False])).tolist() == [
        False, False, False, True
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["random", "sobol", "halton"])
def test_points_are_drawn_until_enough_satisfy_the_constraints(kind: str) -> None:
    plan = plan_of(f"{kind}:50", PARAMS, where=["load < E[0] - 1", "E[1] + E[2] > 2.5"])
    assert plan.size == 50
    assert np.all(plan.theta[:, 3] < plan.theta[:, 0] - 1)
    assert np.all(plan.theta[:, 1] + plan.theta[:, 2] > 2.5)
    free = plan_of(f"{kind}:1000", PARAMS)
    rows = {row.tobytes() for row in free.theta}
    assert all(row.tobytes() in rows for row in plan.theta)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(1, 60))
def test_fewer_points_are_the_first_of_more(few: int, more: int) -> None:
    short, long = sorted((few, more))
    options: dict[str, Any] = {"when": WHEN, "where": ["order > 2"], "seed": 3}
    plan, longer = (plan_of(f"sobol:{n}", PARAMS, **options) for n in (short, long))
    np.testing.assert_array_equal(plan.theta, longer.theta[:short])


def test_a_grid_leaves_out_what_is_refused_or_repeated() -> None:
    params = {"load": "0:1", "solver": "euler,rk", "order": "1,2,3"}
    options: dict[str, Any] = {"fixes": {"E": 1}, "when": {"order": 'solver == "rk"'}}
    plan = plan_of("grid:2", params, **options)
    np.testing.assert_array_equal(
        plan.theta,
        [[0, 0, np.nan], [0, 1, 1], [0, 1, 2], [0, 1, 3],
         [1, 0, np.nan], [1, 1, 1], [1, 1, 2], [1, 1, 3]],
    )  # fmt: skip
    plan = plan_of("grid:2", params, **options, where=["load < order - 1"])
    np.testing.assert_array_equal(
        plan.theta, [[0, 0, np.nan], [0, 1, 2], [0, 1, 3], [1, 0, np.nan], [1, 1, 3]]
    )


@pytest.mark.parametrize(
    ("design", "complaint"),
    [("lhs:8", "each of its slices"), ("grid:2", "none of the 96 combinations of grid:2")],
)
def test_designs_that_a_constraint_would_spoil(design: str, complaint: str) -> None:
    params = {**PARAMS, "order": "1,2"}
    with pytest.raises(SweepError, match=complaint):
        plan_of(design, params, where=["load > 1.5"])
