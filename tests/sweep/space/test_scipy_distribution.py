"""Frozen distributions of scipy.stats: their values, texts that read back, and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from farm.sweep.errors import SweepError
from farm.sweep.space.binding import is_whole
from farm.sweep.space.grammar import as_distribution, parse_distribution

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


def test_a_grid_needs_a_number_of_levels() -> None:
    with pytest.raises(SweepError, match="needs a number of levels"):
        as_distribution(stats.norm()).levels(None)


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
