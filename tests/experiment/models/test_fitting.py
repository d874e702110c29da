"""The numbers that are found: of processes that are known, and by the right gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farm.call import Array
from farm.experiment.models.fitting import (
    MOST_TRIALS,
    PROBIT,
    Numbers,
    _log_belief,
    fit_probit,
    fit_regression,
)
from farm.experiment.models.latent import Prior, log_evidence
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.propagation import propagate


def drawn(x: Array, lengthscales: list[float], seed: int) -> Array:
    """One function of a process of amplitude 1 at points x."""
    apart = ((x[:, None] - x[None]) / np.array(lengthscales)) ** 2
    covariance = np.exp(-0.5 * apart.sum(-1)) + 1e-10 * np.eye(len(x))
    values: Array = np.linalg.cholesky(covariance) @ np.random.default_rng(seed).normal(size=len(x))
    return values


def test_length_scales_and_noise_of_a_known_process_are_found() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((120, 2))
    y = drawn(x, [0.15, 0.6], 1) + 0.4 * rng.normal(size=120)
    found = fit_regression(x, y)
    assert found.lengthscales == pytest.approx([0.15, 0.6], rel=0.5)
    assert found.noise == pytest.approx(0.16, rel=0.4)


def test_a_feature_without_effect_gets_a_long_scale() -> None:
    x = np.random.default_rng(1).random((80, 2))
    found = fit_probit(x, np.where(x[:, 0] > 0.5, 1.0, -1.0), features=2, pairs=False)
    assert found.lengthscales[1] > 4 * found.lengthscales[0]


def test_the_gradient_with_the_sites_held_is_that_of_the_evidence() -> None:
    rng = np.random.default_rng(2)
    rows = torch.tensor(rng.random((25, 1)))
    signs = torch.tensor(np.where(rng.random(25) > 0.4, 1.0, -1.0))

    def prior(theta: torch.Tensor) -> Prior:
        return Prior(theta[:1].exp(), theta[1].exp(), theta[2], torch.ones((), dtype=DTYPE))

    theta = torch.tensor([-1.2, 1.0, 0.2], dtype=DTYPE, requires_grad=True)
    sites = propagate(prior(theta.detach()), rows, signs)
    held = log_evidence(prior(theta), rows, sites.targets, sites.precision)
    (gradient,) = torch.autograd.grad(held, theta)
    for i in range(3):
        step = torch.zeros(3, dtype=DTYPE)
        step[i] = 1e-4
        up, down = (
            propagate(prior(theta.detach() + sign * step), rows, signs).log_evidence
            for sign in (1, -1)
        )
        assert float(gradient[i]) == pytest.approx((up - down) / 2e-4, abs=1e-3)


def test_no_other_numbers_near_by_are_more_probable() -> None:
    rng = np.random.default_rng(3)
    x = rng.random((40, 1))
    signs = np.where(np.sin(9 * x[:, 0]) + 0.5 * rng.normal(size=40) > 0, 1.0, -1.0)
    found = fit_probit(x, signs, features=1, pairs=False)
    best = np.array([np.log(found.lengthscales[0]), np.log(found.amplitude), found.mean, 0.0])
    centre = np.sqrt(2.0) - 3.0

    def log_posterior(theta: Array) -> float:
        made = Numbers((float(np.exp(theta[0])),), float(np.exp(theta[1])), float(theta[2]), 1.0)
        rows, yes = torch.tensor(x), torch.tensor(signs)
        evidence = propagate(made.prior(pairs=False), rows, yes).log_evidence
        at = torch.tensor(theta, dtype=DTYPE)
        return evidence + float(_log_belief(at, centre, PROBIT, 1))

    top = log_posterior(best)
    for i in range(3):
        for step in (-0.2, 0.2):
            moved = best.copy()
            moved[i] += step
            assert log_posterior(moved) < top


def test_many_trials_are_thinned() -> None:
    x = np.linspace(0, 1, 3 * MOST_TRIALS)[:, None]
    found = fit_regression(x, np.sin(20 * x[:, 0]))
    assert isinstance(found, Numbers)
    assert 0.05 < found.lengthscales[0] < 0.5
