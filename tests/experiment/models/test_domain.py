"""Points in user coordinates, as positions, and as columns of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from farm.experiment.config.definition import Parameter, ParameterKind
from tests.experiment.models.configs import SHAPE

if TYPE_CHECKING:
    from farm.experiment.models.domain import MOST_VALUES, Domain

MIXED = (
    Parameter("rate", lower=1e-3, upper=10.0, log_scale=True),
    Parameter("kept", ParameterKind.FIXED, value="x"),
    SHAPE,
    Parameter("level", ParameterKind.INTEGER, lower=1, upper=4),
)


def domain(stimuli: int = 1, **held: float) -> Domain:
    return Domain(MIXED, stimuli, held)


def test_choices_are_their_indices_and_the_rest_lies_in_the_unit_cube() -> None:
    d = domain()
    raw = np.array([[[0.1, choice, 2.0]] for choice in (0.0, 1.0, 2.0)])
    positions = d.positions(raw)
    assert positions[:, 0, 1].tolist() == [0.0, 1.0, 2.0]
    assert positions[:, 0, 0] == pytest.approx(0.5)
    assert positions[:, 0, 2] == pytest.approx(1.5 / 4)
    assert d.raw(positions) == pytest.approx(raw)


def test_columns_of_a_pair_are_those_of_both_points() -> None:
    d = domain(2, level=3.0)
    assert d.choices == {1: 3}
    assert d.categorical == {1: [0.0, 1.0, 2.0], 4: [0.0, 1.0, 2.0]}
    assert d.discrete == {}
    assert d.fixed == {2: 2.5 / 4, 5: 2.5 / 4}
    assert d.bounds.tolist() == [[0, 0, 0, 0, 0, 0], [1, 2, 1, 1, 2, 1]]
    assert domain().discrete == {2: [1 / 8, 3 / 8, 5 / 8, 7 / 8]}
    assert domain().bounds[:, 2].tolist() == [1 / 8, 7 / 8]


def test_what_has_one_value_is_fixed_and_what_has_many_is_no_list() -> None:
    one = Parameter("one", ParameterKind.CATEGORICAL, upper=0, choices=("only",))
    same = Parameter("same", lower=2.0, upper=2.0)
    many = Parameter("many", ParameterKind.INTEGER, lower=0, upper=MOST_VALUES)
    d = Domain((one, same, many), 1, {})
    assert sorted(d.fixed) == [0, 1]
    assert not d.discrete
    assert not d.categorical
    assert not d.choices
    assert set(d.raw(d.sample(256, 0))[:, 0, 2]) == set(range(MOST_VALUES + 1))


def test_samples_are_points_that_can_be_given() -> None:
    d = domain(level=3.0)
    unit = d.sample(64, 1)
    raw = d.raw(unit)
    assert d.snapped(unit) == pytest.approx(unit)
    assert set(raw[:, 0, 1]) == {0.0, 1.0, 2.0}
    assert set(raw[:, 0, 2]) == {3.0}
    assert np.mean(raw[:, 0, 0] < 0.1) == pytest.approx(0.5, abs=0.05)  # half of the decades
    assert (d.sample(64, 1) == unit).all()
    assert (d.sample(64, 2) != unit).any()


def test_points_far_outside_have_numbers_still() -> None:
    unit = domain().positions(np.array([[[1e300, 1.0, -1e300]]]))
    assert np.isfinite(unit**2).all()
