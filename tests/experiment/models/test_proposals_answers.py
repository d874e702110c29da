"""Queries to a surrogate: extremes, predictions and inverses, with constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import Outcome, OutcomeKind, Parameter, Surrogate
from farm.experiment.work import Answered, Data, Query, QueryKind
from tests.experiment.models.configs import (
    CLASSIFICATION,
    PAIRWISE,
    REGRESSION,
    config,
    data,
    spread,
)

if TYPE_CHECKING:
    from farm.experiment.models import answer, predict

BOUNDS = (Parameter("a", lower=0.0, upper=10.0), Parameter("b", lower=-1.0, upper=1.0))
HILL = config(REGRESSION, parameters=BOUNDS)
YES = config(CLASSIFICATION, parameters=BOUNDS)


def hill(x: Array) -> Array:
    """Return values whose maximum is 100, at (7, 0.25)."""
    heights: Array = 100 - 4 * (x[:, 0] - 7) ** 2 - 30 * (x[:, 1] - 0.25) ** 2
    return heights


def told() -> Data:
    x = spread(HILL, 40)
    return data(x, hill(x))


def yes_or_no() -> Data:
    x = spread(YES, 32)
    return data(x, (x[:, 0] > 5).astype(float))


def asked(
    kind: QueryKind,
    known: Data | None = None,
    *,
    x: Array | None = None,
    y: float | None = None,
    held: Mapping[str, float] | None = None,
    probability: bool = False,
    of: object = None,
) -> Answered:
    which = HILL if of is None else of
    assert isinstance(which, type(HILL))
    known = told() if known is None else known
    return answer(Query(which, 0, kind, known, x, y, held or {}, probability))


def test_the_greatest_mean_and_where_it_is() -> None:
    found = asked(QueryKind.MAX)
    assert found.x[0, 0] == pytest.approx([7, 0.25], abs=0.1)
    assert found.y == pytest.approx([100], abs=0.5)


def test_the_least_mean_is_in_a_corner() -> None:
    found = asked(QueryKind.MIN)
    assert found.x[0, 0] == pytest.approx([0, -1], abs=0.02)
    assert found.y == pytest.approx([100 - 4 * 49 - 30 * 1.5625], abs=5)


def test_a_prediction_is_for_the_point_that_was_asked_about() -> None:
    x = np.array([[[3.0, 0.5]]])
    found = asked(QueryKind.PREDICTION, x=x)
    assert (found.x == x).all()
    assert found.y == pytest.approx(hill(x[:, 0]), abs=1)
    far = asked(QueryKind.PREDICTION, x=np.array([[[1e9, 5.0]]]))
    assert np.isfinite(far.y[0])


def test_an_inverse_is_where_the_mean_is_that_value() -> None:
    found = asked(QueryKind.INVERSE, y=40.0)
    assert found.y == pytest.approx([40], abs=0.01)
    assert hill(found.x[0]) == pytest.approx([40], abs=2)


@pytest.mark.parametrize(("y", "kind"), [(1e6, QueryKind.MAX), (-1e6, QueryKind.MIN)])
def test_the_inverse_of_what_is_out_of_reach_is_the_nearest(y: float, kind: QueryKind) -> None:
    assert asked(QueryKind.INVERSE, y=y).y == pytest.approx(asked(kind).y, abs=0.05)


@pytest.mark.parametrize("kind", [QueryKind.MAX, QueryKind.MIN, QueryKind.INVERSE])
def test_constraints_hold(kind: QueryKind) -> None:
    found = asked(kind, y=60.0, held={"a": 4.3})
    assert found.x[0, 0, 0] == 4.3
    wanted = {QueryKind.MAX: 0.25, QueryKind.MIN: -1.0}
    if kind in wanted:
        assert found.x[0, 0, 1] == pytest.approx(wanted[kind], abs=0.1)
    else:
        assert found.y == pytest.approx([60], abs=0.05)


@pytest.mark.slow
def test_probabilities_are_those_of_the_outcome() -> None:
    known = yes_or_no()
    at = np.array([[[5.0, 0.0]]])
    assert asked(QueryKind.MAX, known, of=YES, probability=True).y[0] == pytest.approx(1, abs=0.05)
    assert asked(QueryKind.MIN, known, of=YES, probability=True).y[0] == pytest.approx(0, abs=0.05)
    middle = asked(QueryKind.PREDICTION, known, x=at, of=YES, probability=True).y[0]
    assert middle == pytest.approx(0.5, abs=0.2)
    found = asked(QueryKind.INVERSE, known, y=0.75, of=YES, probability=True, held={"b": 0.5})
    assert found.y == pytest.approx([0.75], abs=1e-3)
    assert found.x[0, 0, 0] == pytest.approx(5, abs=0.8)
    assert asked(QueryKind.MAX, known, of=YES).y[0] > 1.5  # in units of the latent function


def test_of_pairs_the_utility_of_one_point() -> None:
    which = config(PAIRWISE, parameters=BOUNDS)
    pairs = spread(which, 64).reshape(32, 2, 2)
    prefers = (hill(pairs[:, 1]) > hill(pairs[:, 0])).astype(float)
    known = data(pairs, prefers)
    best = asked(QueryKind.MAX, known, of=which)
    assert best.x.shape == (1, 1, 2)
    assert best.x[0, 0, 0] == pytest.approx(7, abs=1.5)
    one, other = np.array([[[7.0, 0.0]]]), np.array([[[1.0, 0.0]]])
    single = [asked(QueryKind.PREDICTION, known, x=x, of=which).y[0] for x in (other, one)]
    both = asked(QueryKind.PREDICTION, known, x=np.concatenate([other, one], 1), of=which).y[0]
    assert both == pytest.approx(single[1] - single[0])
    likely = asked(
        QueryKind.PREDICTION, known, x=np.concatenate([other, one], 1), of=which, probability=True
    )
    assert 0.8 < likely.y[0] <= 1


def test_predictions_at_many_points_are_those_of_single_queries() -> None:
    x = spread(HILL, 300, seed=4)[:, None, :]
    mean, sd = predict(HILL, 0, told(), x)
    assert mean.shape == sd.shape == (300, 1)
    single = [asked(QueryKind.PREDICTION, x=point[None]).y[0] for point in x[:5]]
    assert mean[:5, 0] == pytest.approx(single)
    assert (abs(mean[:, 0] - hill(x[:, 0])) < 4 * sd[:, 0] + 0.1).all()
    likely, spread_of_it = predict(YES, 0, yes_or_no(), x)
    assert ((likely >= 0) & (likely <= 1)).all()
    assert ((likely[:, 0] > 0.5) == (x[:, 0, 0] > 5)).mean() > 0.9
    assert (spread_of_it**2 <= likely * (1 - likely) + 1e-9).all()


def test_of_several_outcomes_all_are_told_where_the_first_is_greatest() -> None:
    models = tuple(Surrogate(REGRESSION, name) for name in ("one", "two"))
    strategy = replace(
        HILL.strategies[0], surrogate=Surrogate("IndependentGPsModel", "models", parts=models)
    )
    outcomes = tuple(Outcome(name, OutcomeKind.CONTINUOUS) for name in ("one", "two"))
    both = replace(HILL, outcomes=outcomes, strategies=(strategy,))
    x = spread(HILL, 40)
    found = asked(QueryKind.MAX, data(x, np.stack([hill(x), x[:, 0]], 1)), of=both)
    assert found.y == pytest.approx([100, 7], abs=0.5)


def test_a_time_limit_is_kept() -> None:
    found = answer(Query(HILL, 0, QueryKind.MAX, told(), max_time_s=0.0))
    assert found.y == pytest.approx([100], abs=10)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not of binary outcomes"):
        asked(QueryKind.MAX, probability=True)
    with pytest.raises(InvalidInput, match="needs y"):
        asked(QueryKind.INVERSE)
    with pytest.raises(InvalidInput, match="needs x"):
        asked(QueryKind.PREDICTION)
    with pytest.raises(InvalidInput, match="no trial is modelled"):
        asked(QueryKind.MAX, data(np.empty((0, 2)), np.empty(0)))
    strategy = replace(HILL.strategies[0], surrogate=None)
    with pytest.raises(InvalidInput, match="'learning' has no model"):
        asked(QueryKind.MAX, of=replace(HILL, strategies=(strategy,)))
