"""Fitted models of an outcome, against a Gaussian process implemented in numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from farm.call import Array
from farm.experiment.config.definition import Surrogate
from tests.experiment.models.configs import (
    BRANIN_BOUNDS,
    CLASSIFICATION,
    PAIRWISE,
    REGRESSION,
    SHAPE,
    SQUARE,
    branin,
    config,
    data,
    spread,
)

if TYPE_CHECKING:
    import torch

    from farm.experiment.models import surrogate
    from farm.experiment.models.domain import Domain
    from farm.experiment.models.surrogate import MOST_TRIALS, Learned

BRANIN = config(REGRESSION, parameters=BRANIN_BOUNDS)
REGRESSED = Surrogate(REGRESSION, REGRESSION)
CLASSIFIED = Surrogate(CLASSIFICATION, CLASSIFICATION)


def learned(x: Array, y: Array, fit_to: int | None = None) -> Learned:
    return Learned.of(REGRESSED, 0, Domain(BRANIN_BOUNDS, 1, {}), data(x, y, fit_to))


def seen(known: Learned, x: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation at points (n, 2) within Branin's bounds."""
    positions = torch.tensor(Domain(BRANIN_BOUNDS, 1, {}).positions(x[:, None, :]))
    with torch.no_grad():
        mean, sd = known.seen(positions, probability=False)
    return mean.numpy(), sd.numpy()


def lengthscales(known: Learned) -> list[float]:
    scales: list[float] = known.model.covar_module.base_kernel.lengthscale.flatten().tolist()
    return scales


def test_predictions_are_those_of_the_textbook_in_the_users_units() -> None:
    x = spread(BRANIN, 20)
    y = branin(x) * 1e4
    known = learned(x, y)
    lengths, amplitude = np.array(lengthscales(known)) * 15, known.model.covar_module.outputscale

    def kernel(a: Array, b: Array) -> Array:
        apart = ((a[:, None] - b[None]) / lengths) ** 2
        covariance: Array = amplitude.item() * np.exp(-0.5 * apart.sum(-1))
        return covariance

    new = spread(BRANIN, 8, seed=3)
    mean, sd = y.mean(), y.std(ddof=1)
    centre, noise = (
        part.item() for part in (known.model.mean_module.constant, known.model.likelihood.noise)
    )
    gain = kernel(new, x) @ np.linalg.inv(kernel(x, x) + noise * np.eye(20))
    wanted = mean + sd * (centre + gain @ ((y - mean) / sd - centre))
    variance = amplitude.item() - (gain * kernel(new, x)).sum(1)
    found, spread_found = seen(known, new)
    assert found == pytest.approx(wanted, rel=1e-4)
    assert spread_found == pytest.approx(sd * np.sqrt(variance), rel=1e-3)


def test_numbers_come_from_the_first_trials_and_all_are_conditioned_on() -> None:
    x = spread(BRANIN, 32)
    y = branin(x)
    early, later, refit = learned(x[:16], y[:16]), learned(x, y, 16), learned(x, y)
    assert lengthscales(later) == lengthscales(early) != lengthscales(refit)
    assert (later.offset, later.scale) == (early.offset, early.scale)
    (mean, sd), (_, before) = seen(later, x[16:]), seen(early, x[16:])
    assert mean == pytest.approx(y[16:], abs=20)
    assert sd.max() < before.max() / 2


@pytest.mark.slow
def test_between_fits_a_yes_or_no_is_conditioned_on_too() -> None:
    x = spread(BRANIN, 32)
    domain, y = Domain(BRANIN_BOUNDS, 1, {}), (branin(x) > -50).astype(float)
    early = Learned.of(CLASSIFIED, 0, domain, data(x[:16], y[:16]))
    later = Learned.of(CLASSIFIED, 0, domain, data(x, y, 16))
    scales = [k.model.model.covar_module.base_kernel.lengthscale.tolist() for k in (early, later)]
    assert scales[0] == scales[1]
    mean, sd = seen(later, x[16:])
    assert ((mean > 0) == (y[16:] > 0.5)).mean() > 0.9
    assert sd.mean() < seen(early, x[16:])[1].mean()


def test_many_trials_are_thinned_to_find_the_numbers_from() -> None:
    x = spread(BRANIN, 2 * MOST_TRIALS)
    rows = np.unique(np.linspace(0, len(x) - 1, MOST_TRIALS).round().astype(int))
    whole, part = learned(x, branin(x)), learned(x[rows], branin(x[rows]))
    assert lengthscales(whole) == lengthscales(part)
    assert len(whole.model.train_targets) == 2 * MOST_TRIALS
    new = spread(BRANIN, 64, seed=5)
    assert seen(whole, new)[0] == pytest.approx(branin(new), abs=2)


def test_the_same_trials_are_conditioned_on_once() -> None:
    x = spread(BRANIN, 16)
    assert learned(x, branin(x)).model is learned(x.copy(), branin(x)).model
    assert learned(x, branin(x)).model is not learned(x, branin(x) + 1).model


def test_the_numbers_are_those_of_a_fresh_process_whatever_was_fitted_before() -> None:
    x = spread(BRANIN, 16)
    learned(x[:10], branin(x[:10]))
    warm = lengthscales(learned(x, branin(x)))
    surrogate._first.cache_clear()
    surrogate._fitted.cache_clear()
    assert lengthscales(learned(x, branin(x))) == warm


@pytest.mark.parametrize("model", [REGRESSION, CLASSIFICATION, PAIRWISE])
def test_choices_have_no_order(model: str) -> None:
    """Outcomes of the first and the last of three choices inform the middle one equally."""
    stimuli = 2 if model == PAIRWISE else 1
    domain = Domain((SHAPE,), stimuli, {})
    x = np.array([0.0, 2.0] * 8).reshape(-1, stimuli, 1)
    known = Learned.of(Surrogate(model, model), 0, domain, data(x, np.arange(len(x)) % 2))
    with torch.no_grad():
        points = torch.tensor([[[0.0]], [[1.0]], [[2.0]]], dtype=torch.float64)
        mean, covariance = known.joint(points)
    assert float(covariance[1, 1]) > 1.05 * float(covariance[0, 0])
    assert float(covariance[1, 0]) == pytest.approx(float(covariance[1, 2]), abs=1e-3)
    assert float(mean[1]) == pytest.approx(float(mean[0] + mean[2]) / 2, abs=0.05)


def test_a_yes_or_no_is_learned_as_a_probability() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((120, 2))
    p = 1 / (1 + np.exp(-8 * (x[:, 0] - 0.5)))
    domain = Domain(SQUARE, 1, {})
    known = Learned.of(CLASSIFIED, 0, domain, data(x, (rng.random(120) < p).astype(float)))
    new = np.stack([np.linspace(0.1, 0.9, 9), np.full(9, 0.5)], 1)[:, None, :]
    with torch.no_grad():
        found = known.seen(torch.tensor(new), probability=True)[0].numpy()
    assert found == pytest.approx(1 / (1 + np.exp(-8 * (new[:, 0, 0] - 0.5))), abs=0.1)


@pytest.mark.slow
def test_utilities_are_learned_from_pairs() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((60, 2, 2))
    worth = -((x - 0.3) ** 2).sum(-1)
    known = Learned.of(
        Surrogate(PAIRWISE, PAIRWISE), 0, Domain(SQUARE, 2, {}),
        data(x, (worth[:, 1] > worth[:, 0]).astype(float)),
    )  # fmt: skip
    new = rng.random((50, 2, 2))
    truth = -((new - 0.3) ** 2).sum(-1)
    with torch.no_grad():
        singles = torch.tensor(new).reshape(100, 1, 2)
        utilities = known.seen(singles, probability=False)[0].numpy().reshape(50, 2)
        difference = known.seen(torch.tensor(new), probability=False)[0].numpy()
    right = (utilities[:, 1] > utilities[:, 0]) == (truth[:, 1] > truth[:, 0])
    assert right.mean() > 0.9
    assert difference == pytest.approx(utilities[:, 1] - utilities[:, 0])
