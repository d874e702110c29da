"""Distributions: bounds, quantiles, levels of a grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.sweep.errors import SweepError
from farm.sweep.space.grammar import choice, parse_distribution
from farm.sweep.space.parameters import Choice, Distribution, Integer, Log, Normal, Uniform

finite = st.floats(-1e100, 1e100, allow_nan=False)
positive = st.floats(1e-100, 1e100)


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    kind = draw(st.sampled_from(["uniform", "log", "normal", "int", "choice"]))
    if kind == "uniform":
        low, high = sorted(draw(st.tuples(finite, finite).filter(lambda p: p[0] != p[1])))
        return Uniform(low, high)
    if kind == "log":
        low, high = sorted(draw(st.tuples(positive, positive).filter(lambda p: p[0] != p[1])))
        return Log(low, high)
    if kind == "normal":
        return Normal(draw(finite), draw(positive))
    if kind == "int":
        low, high = sorted(draw(st.tuples(st.integers(-1000, 1000), st.integers(-1000, 1000))))
        return Integer(low, high)
    return Choice(tuple(draw(st.lists(finite, min_size=1, max_size=5))))


units = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(np.array)


@settings(deadline=None)
@given(distributions(), units)
def test_values_are_finite_and_within_bounds(spread: Distribution, unit: np.ndarray) -> None:
    values = spread.at(unit)
    low, high = spread.bounds
    assert values.shape == unit.shape
    assert np.all(np.isfinite(values))
    assert np.all((low <= values) & (values <= high))


@settings(deadline=None)
@given(distributions(), units)
def test_larger_units_give_larger_values(spread: Distribution, unit: np.ndarray) -> None:
    if isinstance(spread, Choice):
        return  # in the order given
    values = spread.at(np.sort(unit))
    assert np.all(np.diff(values) >= -1e-12 * np.abs(values[1:]))


@settings(deadline=None)
@given(distributions())
def test_text_reads_back(spread: Distribution) -> None:
    assert parse_distribution(str(spread)) == spread


@settings(deadline=None)
@given(distributions(), st.integers(1, 20))
def test_levels_are_places_in_the_unit_interval(spread: Distribution, count: int) -> None:
    levels = spread.levels(count)
    assert np.all((levels >= 0) & (levels <= 1))
    assert np.all(np.diff(levels) > 0)
    if not isinstance(spread, Choice | Integer):
        assert len(levels) == count


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("0:10", 0.25, 2.5),
        ("uniform:-1:1", 0.5, 0.0),
        ("log:1e-3:1", 0.0, 1e-3),
        ("log:1e-3:1", 1.0, 1.0),
        ("log:1:100", 0.5, 10.0),
        ("normal:5:2", 0.5, 5.0),
        ("normal:0:1", 0.975, 1.959963984540054),
        ("int:1:10", 0.0, 1.0),
        ("int:1:10", 1.0, 10.0),
        ("int:1:2", 0.49, 1.0),
        ("choice:4,2,1", 0.5, 2.0),
        ("4,2,1", 0.99, 1.0),
    ],
)
def test_values_of_the_grammar(text: str, unit: float, value: float) -> None:
    assert parse_distribution(text).at(np.array([unit]))[0] == pytest.approx(value, rel=1e-14)


def test_ends_of_a_normal_are_finite() -> None:
    assert np.all(np.isfinite(Normal(0, 1).at(np.array([0.0, 1.0]))))


def test_whole_numbers_are_equally_likely() -> None:
    values = Integer(1, 4).at(np.linspace(0, 1, 4000, endpoint=False))
    assert np.unique(values, return_counts=True)[1].tolist() == [1000] * 4


@pytest.mark.parametrize(
    ("spread", "count", "values"),
    [
        (Uniform(0, 10), 3, [0, 5, 10]),
        (Uniform(0, 10), 1, [5]),
        (Log(1, 100), 3, [1, 10, 100]),
        (Integer(1, 3), None, [1, 2, 3]),
        (Integer(1, 3), 10, [1, 2, 3]),
        (Integer(0, 10), 3, [0, 5, 10]),
        (Integer(0, 10), 1, [5]),
        (choice(5, 1, 3), None, [5, 1, 3]),
        (choice(5, 1, 3), 2, [5, 1, 3]),
    ],
)
def test_levels_of_a_grid(spread: Distribution, count: int | None, values: list[float]) -> None:
    assert spread.at(spread.levels(count)) == pytest.approx(values)


@pytest.mark.parametrize("spread", [Uniform(0, 1), Log(1, 2), Normal(0, 1)])
def test_a_grid_over_a_range_needs_a_number_of_levels(spread: Distribution) -> None:
    with pytest.raises(SweepError, match='design="grid", n=10'):
        spread.levels(None)


def test_bad_numbers_from_python_are_refused() -> None:
    with pytest.raises(SweepError, match="whole"):
        Integer(0.5, 2)  # type: ignore[arg-type]  # what a user may do
    with pytest.raises(SweepError, match="finite"):
        choice(math.nan)
    with pytest.raises(SweepError, match="finite"):
        Choice(())
