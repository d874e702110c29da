"""What is learned of an outcome, against a Gaussian process written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farm.call import Array
from farm.experiment.config import Surrogate
from farm.experiment.models.domain import Domain
from farm.experiment.models.surrogate import Learned
from tests.experiment.models.configs import (
    BRANIN_BOUNDS,
    CLASSIFICATION,
    PAIRWISE,
    REGRESSION,
    SQUARE,
    branin,
    config,
    data,
    spread,
)

BRANIN = config(REGRESSION, parameters=BRANIN_BOUNDS)
REGRESSED = Surrogate(REGRESSION, REGRESSION)
CLASSIFIED = Surrogate(CLASSIFICATION, CLASSIFICATION)


def learned(x: Array, y: Array, fit_to: int | None = None) -> Learned:
    return Learned.of(REGRESSED, 0, Domain(BRANIN_BOUNDS, 1, {}), data(x, y, fit_to))


def test_predictions_are_those_of_the_textbook_in_the_users_units() -> None:
    x = spread(BRANIN, 20)
    y = branin(x) * 1e4
    known = learned(x, y)
    prior = known.latent.prior
    lengths = prior.lengthscales.numpy() * [15, 15]

    def kernel(a: Array, b: Array) -> Array:
        apart = ((a[:, None] - b[None]) / lengths) ** 2
        covariance: Array = float(prior.amplitude) * np.exp(-0.5 * apart.sum(-1))
        return covariance

    new = spread(BRANIN, 8, seed=3)
    mean, sd, centre = y.mean(), y.std(), float(prior.mean)
    inverse = np.linalg.inv(kernel(x, x) + float(prior.noise) * np.eye(20))
    gain = kernel(new, x) @ inverse
    wanted = mean + sd * (centre + gain @ ((y - mean) / sd - centre))
    variance = float(prior.amplitude) - (gain * kernel(new, x)).sum(1)

    rows = known.trials(torch.tensor(Domain(BRANIN_BOUNDS, 1, {}).unit(new[:, None, :])))
    assert known.value(rows, probability=False).numpy() == pytest.approx(wanted, rel=1e-4)
    found = known.latent.moments(rows)[1].numpy()
    assert found == pytest.approx(variance, rel=1e-3, abs=1e-7)


def test_numbers_come_from_the_first_trials_and_all_are_conditioned_on() -> None:
    x = spread(BRANIN, 32)
    y = branin(x)
    early, later, refit = learned(x[:16], y[:16]), learned(x, y, 16), learned(x, y)
    assert later.latent.prior.lengthscales.tolist() == early.latent.prior.lengthscales.tolist()
    assert (later.offset, later.scale) == (early.offset, early.scale)
    assert refit.latent.prior.lengthscales.tolist() != early.latent.prior.lengthscales.tolist()
    rows = later.trials(later.told[16:])
    assert later.value(rows, probability=False).numpy() == pytest.approx(y[16:], abs=20)
    assert later.latent.moments(rows)[1].max() < early.latent.moments(rows)[1].max() / 3


def test_the_same_trials_are_conditioned_on_once() -> None:
    x = spread(BRANIN, 16)
    assert learned(x, branin(x)).latent is learned(x.copy(), branin(x)).latent
    assert learned(x, branin(x)).latent is not learned(x, branin(x) + 1).latent


def test_the_numbers_are_those_of_a_fresh_process_whatever_was_fitted_before() -> None:
    from farm.experiment.models import surrogate

    x = spread(BRANIN, 16)
    learned(x[:10], branin(x[:10]))
    warm = learned(x, branin(x)).latent.prior.lengthscales.tolist()
    surrogate._numbers.cache_clear()
    surrogate._fitted.cache_clear()
    assert learned(x, branin(x)).latent.prior.lengthscales.tolist() == warm


def test_a_yes_or_no_is_learned_as_a_probability() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((300, 2))
    p = 1 / (1 + np.exp(-8 * (x[:, 0] - 0.5)))
    domain = Domain(SQUARE, 1, {})
    known = Learned.of(CLASSIFIED, 0, domain, data(x, (rng.random(300) < p).astype(float)))
    new = np.stack([np.linspace(0.1, 0.9, 9), np.full(9, 0.5)], 1)[:, None, :]
    found = known.value(known.trials(torch.tensor(new)), probability=True).numpy()
    assert found == pytest.approx(1 / (1 + np.exp(-8 * (new[:, 0, 0] - 0.5))), abs=0.1)


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
    utilities = known.latent.mean(known.singles(torch.tensor(new))).numpy()
    right = (utilities[:, 1] > utilities[:, 0]) == (truth[:, 1] > truth[:, 0])
    assert right.mean() > 0.9
    difference = known.latent.mean(known.trials(torch.tensor(new))).numpy()
    assert difference == pytest.approx(utilities[:, 1] - utilities[:, 0])
