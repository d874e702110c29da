"""Criteria in closed form, against integrals, differences and BoTorch's own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.integrate import quad

from farm.call import Array
from tests.experiment.models.configs import learned, sobol

if TYPE_CHECKING:
    import torch
    from botorch.acquisition.analytic import LogExpectedImprovement, UpperConfidenceBound

    from farm.experiment.models.closed import (
        Criterion,
        LogImprovement,
        OfMoments,
        UpperBound,
        graded,
        log_excess,
    )
    from farm.experiment.models.exact import Exact
    from farm.experiment.models.surrogate import Learned


def posterior(known: Learned) -> Exact:
    assert known.exact is not None
    return known.exact


def slopes(criterion: Criterion, points: Array, column: int) -> Array:
    """Return the derivatives by one column, by differences."""
    step = np.zeros(points.shape[-1])
    step[column] = 1e-5
    with torch.no_grad():
        up, down = (criterion(torch.tensor(points + s)).numpy() for s in (step, -step))
    found: Array = (up - down) / 2e-5
    return found


@pytest.mark.parametrize("u", [8.0, 1.0, 0.0, -0.999, -1.001, -6.0, -40.0, -999.0, -1001.0, -1e5])
def test_the_expected_excess_is_the_integral(u: float) -> None:
    """Of t times the density at t - u, for t > 0; its peak is at least 1 / |u| wide."""
    if u < 0:
        # With t = s / |u|, the density at u and 1 / u^2 are taken out.
        rest, _ = quad(lambda s: s * math.exp(-s - 0.5 * (s / u) ** 2), 0, 60, epsabs=1e-13)
        wanted = math.log(rest) - 0.5 * u * u - 0.5 * math.log(2 * math.pi) - 2 * math.log(-u)
    else:
        rest, _ = quad(lambda t: t * math.exp(-0.5 * (t - u) ** 2), 0, u + 40, points=[u])
        wanted = math.log(rest / math.sqrt(2 * math.pi))
    assert log_excess(np.array([u]))[0] == pytest.approx(wanted, rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("u", [5.0, 0.5, -0.5, -3.0, -30.0, -3000.0])
@pytest.mark.parametrize("spread", [1e-3, 0.7])
def test_derivatives_by_the_moments_are_those_of_differences(u: float, spread: float) -> None:
    exact = posterior(learned())
    for criterion in (LogImprovement(exact, 0.3), UpperBound(exact, 4.0)):
        mean, variance = np.array([0.3 + u * spread]), np.array([spread**2])
        _, by_mean, by_variance = criterion.rated(mean, variance)
        h = 1e-5 * spread / max(1.0, abs(u))
        up, down = (criterion.rated(mean + s, variance)[0] for s in (h, -h))
        assert by_mean == pytest.approx((up - down) / (2 * h), rel=1e-3)
        h = 1e-5 * spread**2
        up, down = (criterion.rated(mean, variance + s)[0] for s in (h, -h))
        assert by_variance == pytest.approx((up - down) / (2 * h), rel=1e-3)


def test_values_and_gradients_are_botorchs() -> None:
    known = learned()
    places = torch.tensor(sobol(2, 9, seed=4))[:, None]
    best = float(known.model.train_targets.max())
    highest, log_scale = known.offset + known.scale * best, math.log(known.scale)
    for ours, theirs in (
        (
            LogImprovement(posterior(known), best),
            lambda x: LogExpectedImprovement(known.model, highest)(x) - log_scale,
        ),
        (
            UpperBound(posterior(known), 3.0),
            lambda x: (UpperConfidenceBound(known.model, 3.0)(x) - known.offset) / known.scale,
        ),
    ):
        values, gradients = graded(ours, places.numpy())
        wanted, slope = graded(theirs, places.numpy())
        assert values == pytest.approx(wanted, rel=1e-5)
        assert gradients == pytest.approx(slope, rel=1e-3, abs=1e-5)
        with torch.no_grad():
            assert ours(places).numpy() == pytest.approx(values)


def test_autograd_goes_through_a_criterion() -> None:
    criterion = LogImprovement(posterior(learned()), 1.0)
    points = torch.tensor(sobol(2, 5, seed=9))[:, None].requires_grad_(True)
    assert torch.autograd.gradcheck(criterion, points, eps=1e-6, atol=1e-4)


def test_what_is_in_flight_counts_in_gradients_too() -> None:
    flying = torch.tensor([[0.4, 0.6], [0.8, 0.1]])
    criterion = LogImprovement(posterior(learned()).believing(flying.double()), 1.0)
    points = sobol(2, 6, seed=2)[:, None]
    for column in (0, 1):
        found = graded(criterion, points)[1][:, 0, column]
        assert found == pytest.approx(slopes(criterion, points, column), rel=1e-4, abs=1e-4)


def test_choices_have_no_gradient_and_numbers_beside_them_have_theirs() -> None:
    criterion: OfMoments = LogImprovement(posterior(learned(choices=True)), 1.0)
    assert not criterion.smooth
    points = sobol(2, 6, seed=2)[:, None]
    points[:, 0, 1] = np.arange(6) % 3
    values, gradients = graded(criterion, points)
    with torch.no_grad():
        assert values == pytest.approx(criterion(torch.tensor(points)).numpy())
    assert gradients[..., 0][:, 0] == pytest.approx(slopes(criterion, points, 0), rel=1e-4)
    assert not gradients[..., 1].any()
