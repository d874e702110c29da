"""Correlated parameters: the correlation of the normals, at fixed margins, and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from farm.sweep.errors import SweepError
from farm.sweep.space.correlation import Correlation, correlator, parse_correlation
from tests.sweep.samples import plan_of

NORMALS = {"E": "normal:1:2", "load": "normal:5:1"}


def test_the_correlation_of_normals_is_the_number() -> None:
    plan = plan_of("sobol:4096", NORMALS, correlations={("E[0]", "load"): 0.7})
    found = np.corrcoef(plan.theta.T)
    expected = np.eye(4)
    expected[0, 3] = expected[3, 0] = 0.7
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_of_other_distributions_it_is_that_of_the_normals_below() -> None:
    params = {"E": "log:1:9", "load": "scipy:lognorm:0.5"}
    plan = plan_of("halton:4096", params, correlations={("E[1]", "load"): -0.6})
    one, other = np.log(plan.theta[:, 1]) / np.log(9), norm.cdf(np.log(plan.theta[:, 3]) / 0.5)
    unit = np.stack([one, other])
    assert np.corrcoef(norm.ppf(unit))[0, 1] == pytest.approx(-0.6, abs=0.01)


@given(st.sampled_from(["sobol:256", "random:300", "lhs:200"]), st.floats(-0.99, 0.99))
def test_each_parameter_keeps_its_distribution_and_the_first_its_values(
    design: str, value: float
) -> None:
    free = plan_of(design, {"E": "0:1", "load": "0:1"})
    plan = plan_of(design, {"E": "0:1", "load": "0:1"}, correlations={("load", "E[2]"): value})
    assert free.unit is not None
    assert plan.unit is not None
    assert np.array_equal(free.unit, plan.unit)
    assert np.array_equal(free.theta[:, :3], plan.theta[:, :3])
    ordered = np.sort(plan.theta[:, 3])
    assert np.max(np.abs(ordered - (np.arange(len(ordered)) + 0.5) / len(ordered))) < 0.15


@given(st.integers(1, 40), st.integers(0, 39))
def test_a_point_does_not_depend_on_how_many_are_drawn(count: int, cut: int) -> None:
    move = correlator([Correlation("a", "b", 0.5), Correlation("b", "c", 0.3)], ["a", "b", "c"])
    unit = np.random.default_rng(count).random((count, 3))
    assert np.array_equal(move(unit)[:cut], move(unit[:cut]))


def test_ends_of_the_unit_interval_give_finite_values() -> None:
    move = correlator([Correlation("a", "b", 0.9)], ["a", "b"])
    moved = move(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert np.all((moved >= 0) & (moved <= 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b=0.7", (("a", "b"), 0.7)),
        ("x[0,1] , b = -1e-1", (("x[0,1]", "b"), -0.1)),
    ],
)
def test_grammar(text: str, expected: Any) -> None:
    assert parse_correlation(text) == expected


@pytest.mark.parametrize("text", ["a,b", "a=0.5", "a,b,c=0.5", "a,=0.5", "a,b=x", "a,b=nan"])
def test_mistakes_of_grammar(text: str) -> None:
    with pytest.raises(SweepError, match="expected NAME,NAME=NUMBER"):
        parse_correlation(text)


@pytest.mark.parametrize(
    ("given", "more", "complaint"),
    [
        ({("E[0]", "x"): 0.5}, {}, "no parameter 'x'; the parameters are E"),
        ({("E", "load"): 0.5}, {}, "'E' has several entries; name one of E"),
        ({("load", "load"): 0.5}, {}, "two different parameters"),
        ({("E[0]", "load"): 1.0}, {}, "above -1 and below 1"),
        ({("E[0]", "load"): True}, {}, "a number between"),
        ({("E[0]", "load"): "x"}, {}, "a number between"),
        ({"load": 0.5}, {}, "expected two names"),
        ({("E[0]", "load"): 0.5, ("load", "E[0]"): 0.5}, {}, "given twice"),
        (
            {("E[0]", "E[1]"): 0.9, ("E[1]", "E[2]"): 0.9, ("E[0]", "E[2]"): -0.9},
            {},
            r"contradict each other.*smallest eigenvalue is -0\.8",
        ),
        ({("E[0]", "s"): 0.5}, {"s": "a,b"}, "the words of 's' have no order"),
        ({("E[0]", "s"): 0.5}, {"s": "3,1,2"}, "in ascending order"),
    ],
)
def test_what_is_no_correlation(given: Any, more: dict[str, str], complaint: str) -> None:
    with pytest.raises(SweepError, match=complaint):
        plan_of("random:4", {**NORMALS, **more}, correlations=given)


def test_a_grid_cannot_be_correlated() -> None:
    with pytest.raises(SweepError, match="combined with each other"):
        plan_of("grid:2", NORMALS, correlations={("E[0]", "load"): 0.5})
