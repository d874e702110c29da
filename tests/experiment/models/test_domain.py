"""Points in the unit cube, as features, and as what the user sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farm.experiment.config import Parameter, ParameterKind
from farm.experiment.models.domain import Domain, Features

MIXED = (
    Parameter("rate", lower=1e-3, upper=10.0, log_scale=True),
    Parameter("kept", ParameterKind.FIXED, value="x"),
    Parameter("shape", ParameterKind.CATEGORICAL, upper=2, choices=("a", "b", "c")),
    Parameter("level", ParameterKind.INTEGER, lower=1, upper=4),
)


def domain(stimuli: int = 1, **held: float) -> Domain:
    return Domain(MIXED, stimuli, held)


def test_any_two_choices_are_one_apart() -> None:
    d = domain()
    raw = np.array([[[0.1, choice, 2.0]] for choice in (0.0, 1.0, 2.0)])
    features = Features.of(d.free)(torch.tensor(d.unit(raw)))[:, 0]
    assert Features.of(d.free).count == features.shape[1] == 5
    gaps = torch.cdist(features, features).numpy()
    assert gaps == pytest.approx(1.0 - np.eye(3))


def test_rows_of_pairs_hold_both_points() -> None:
    features = Features.of(domain().free)
    unit = torch.tensor(domain(2).sample(4, 0))
    rows = features.trials(unit, pairs=True)
    assert rows.shape == (4, 11)
    assert (rows[:, :5] == features(unit[:, 0])).all()
    assert (rows[:, 5:10] == features(unit[:, 1])).all()
    assert (rows[:, 10] == 1).all()
    single = features.singles(unit[:, 1], pairs=True)
    assert (single[:, 5:10] == features(unit[:, 1])).all()
    assert (single[:, [0, 1, 2, 3, 4, 10]] == 0).all()


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


def test_neighbours_differ_in_one_discrete_value() -> None:
    d = domain()
    here = d.unit(np.array([[[0.5, 1.0, 1.0]]]))[0]
    moves = {tuple(row) for row in np.round(d.raw(d.neighbours(here))[:, 0], 9)}
    assert moves == {(0.5, 0.0, 1.0), (0.5, 2.0, 1.0), (0.5, 1.0, 2.0)}
    assert len(domain(2).neighbours(np.concatenate([here, here]))) == 6
    assert len(domain(shape=1.0, level=1.0).neighbours(here)) == 0


def test_points_far_outside_have_numbers_still() -> None:
    unit = domain().unit(np.array([[[1e300, 1.0, -1e300]]]))
    assert np.isfinite(unit**2).all()
