"""Distributions: bounds, quantiles, levels, words and those of scipy.stats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from farm.sweep.errors import SweepError
from farm.sweep.space.binding import is_whole
from farm.sweep.space.grammar import as_distribution, choice, parse_distribution
from farm.sweep.space.parameters import (
    Category,
    Choice,
    Distribution,
    Integer,
    Log,
    Normal,
    Uniform,
)

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


@given(distributions(), units)
def test_values_are_finite_and_within_bounds(spread: Distribution, unit: np.ndarray) -> None:
    values = spread.at(unit)
    low, high = spread.bounds
    assert values.shape == unit.shape
    assert np.all(np.isfinite(values))
    assert np.all((low <= values) & (values <= high))


@given(distributions(), units)
def test_larger_units_give_larger_values(spread: Distribution, unit: np.ndarray) -> None:
    if isinstance(spread, Choice):
        return  # in the order given
    values = spread.at(np.sort(unit))
    assert np.all(np.diff(values) >= -1e-12 * np.abs(values[1:]))


@given(distributions())
def test_text_reads_back(spread: Distribution) -> None:
    assert parse_distribution(str(spread)) == spread


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


def test_whole_numbers_are_equally_likely_and_ends_finite() -> None:
    assert np.all(np.isfinite(Normal(0, 1).at(np.array([0.0, 1.0]))))
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
    with pytest.raises(SweepError, match="needs a number of levels, or a list"):
        as_distribution(stats.norm()).levels(None)


def test_bad_numbers_from_python_are_refused() -> None:
    with pytest.raises(SweepError, match="whole"):
        Integer(0.5, 2)  # type: ignore[arg-type]  # what a user may do
    with pytest.raises(SweepError, match="finite"):
        choice(math.nan)
    with pytest.raises(SweepError, match="finite"):
        Choice(())


words = st.text(min_size=1, max_size=8).filter(lambda w: w.isprintable() and bool(w.strip()))


@given(st.lists(words, min_size=1, max_size=6, unique=True))
def test_the_text_reads_back_and_each_word_has_an_index(several: list[str]) -> None:
    category = Category(tuple(several))
    assert parse_distribution(str(category)) == category
    places = category.at(category.levels(None))
    assert category.all_words(places) == several
    assert category.bounds == (0, len(several) - 1)


def test_words_are_equally_likely() -> None:
    values = Category(("a", "b", "c")).at(np.linspace(0, 1, 3001)[:-1])
    assert np.unique(values, return_counts=True)[1].tolist() == [1000] * 3
    assert Category(("a", "b")).all_words(np.array([1.0, np.nan])) == ["b", None]


@pytest.mark.parametrize("several", [(), ("a", "a"), ("",), (" ",), ("a\0",), ("x" * 1001,)])
def test_what_is_no_category(several: tuple[str, ...]) -> None:
    with pytest.raises(SweepError):
        Category(several)


FROZEN = {
    "scipy:norm": stats.norm(),
    "scipy:beta:2,5": stats.beta(2, 5),
    "scipy:beta:2,5,loc=1,scale=0.125": stats.beta(2, 5, loc=1, scale=0.125),
    "scipy:lognorm:s=0.5": stats.lognorm(s=0.5),
    "scipy:poisson:3": stats.poisson(3),
    "scipy:randint:-1,7": stats.randint(-1, 7),
    "scipy:poisson:3,loc=0.5": stats.poisson(3, loc=0.5),
}


@pytest.mark.parametrize("text", FROZEN)
def test_values_are_those_of_scipy_and_the_text_reads_back(text: str) -> None:
    spread = as_distribution(FROZEN[text])
    assert str(spread) == text
    assert parse_distribution(text) == spread
    unit = np.array([0.125, 0.5, 0.875])
    np.testing.assert_array_equal(spread.at(unit), FROZEN[text].ppf(unit))
    assert spread.bounds == FROZEN[text].support()
    ends = spread.at(np.array([0.0, 1.0]))
    assert np.all(np.isfinite(ends))
    assert ends[0] < ends[1]
    if hasattr(FROZEN[text].dist, "pdf"):
        assert spread.levels(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_discrete_ones_have_whole_numbers_unless_they_are_shifted() -> None:
    whole = {text for text, frozen in FROZEN.items() if is_whole(as_distribution(frozen))}
    assert whole == {"scipy:poisson:3", "scipy:randint:-1,7"}


@pytest.mark.parametrize(
    ("text", "count", "values"),
    [
        ("scipy:binom:3,0.4", None, [0, 1, 2, 3]),
        ("scipy:binom:3,0.4", 10, [0, 1, 2, 3]),
        ("scipy:randint:-1,3", None, [-1, 0, 1, 2]),
        ("scipy:randint:0,100", 4, [12, 37, 62, 87]),
        ("scipy:bernoulli:0.3,loc=2", None, [2, 3]),
        ("scipy:poisson:100,loc=0.5", 2, [93.5, 107.5]),
        ("scipy:poisson:0.01", 10, [0]),
    ],
)
def test_a_grid_has_each_value_of_a_discrete_one_once(
    text: str, count: int | None, values: list[float]
) -> None:
    spread = parse_distribution(text)
    assert spread.at(spread.levels(count)).tolist() == values


@pytest.mark.parametrize(
    ("text", "lower", "upper"),
    [("scipy:truncnorm:-1,2,loc=5,scale=2", 3, 9), ("scipy:truncexpon:3", 0, 3)],
)
def test_truncated_ones_stay_in_their_bounds(text: str, lower: float, upper: float) -> None:
    spread = parse_distribution(text)
    values = spread.at(np.linspace(0, 1, 101))
    assert spread.bounds == (lower, upper)
    assert np.all((values >= lower) & (values <= upper))
    assert np.all(np.diff(values) >= 0)


class Own(stats.rv_continuous):  # type: ignore[misc]  # scipy has no types
    def _cdf(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("scipy:nope:1", "no distribution 'nope'"),
        ("scipy:qmc", "no distribution 'qmc'"),
        ("scipy:beta:-1,2", "does not accept these parameters"),
        ("scipy:beta:1", "expected scipy:beta:a,b,loc=LOC,scale=SCALE"),
        ("scipy:poisson", "expected scipy:poisson:mu,loc=LOC"),
        ("scipy:poison:3", "similar names are poisson"),
        ("scipy:beta:1,2,width=3", "does not fit"),
        ("scipy:beta:a=1,2", "'2' must stand before"),
        ("scipy:beta:1,1_0", "'1_0' is not a number"),
        ("scipy:beta:1,b", "'b' is not a number"),
        ("scipy:beta:1:2", "expected scipy:NAME"),
        (stats.norm([0, 1], [1, 2]), "does not fit"),
        (stats.multivariate_normal([0, 0]), "multivariate_normal_frozen; expected"),
        (Own(a=0, b=1, name="beta")(), "Own is not one of scipy.stats"),
        (stats.rv_histogram(([1, 2], [0, 1, 2]))(), "no distribution"),
    ],
)
def test_what_is_no_distribution_of_one_number(value: Any, complaint: str) -> None:
    with pytest.raises(SweepError) as error:
        as_distribution(value)
    assert complaint in str(error.value)
