"""Looking one observation ahead, against brute force: what a real observation would change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from farm.call import Array
from farm.experiment.models.latent import Latent, Prior
from farm.experiment.models.levelset import Observed
from farm.experiment.models.normal import DTYPE

LEVEL = 0.6744897501960817  # of a probability of 0.75


def latent() -> Latent:
    """A process of one variable that eight observations are known of."""
    rng = np.random.default_rng(0)
    values = ([0.25], 4.0, 0.2, 0.3)
    prior = Prior(*(torch.tensor(v, dtype=DTYPE) for v in values))
    rows = torch.tensor(rng.random((8, 1)))
    precision = torch.tensor(rng.uniform(0.3, 3, size=8))
    return Latent(prior, rows, torch.tensor(rng.normal(size=8)), precision)


GRID = torch.linspace(0, 1, 15, dtype=DTYPE)[:, None]
PLACES = torch.tensor([[0.05], [0.4], [0.77], [1.3]], dtype=DTYPE)


def entropy(p: Array) -> Array:
    h: Array = special.entr(p) + special.entr(1 - p)
    return h


def below_after(place: torch.Tensor, points: torch.Tensor) -> tuple[Array, Array]:
    """For a yes and a no at the place: probabilities of being below the level, (q, 2), and theirs.

    By integration over the process at the place: given it, all other points are normal.
    """
    joint = latent().posterior(torch.cat([place[None], points]))
    mean, covariance = joint.mean[:, 0].numpy(), joint.distribution.covariance_matrix.numpy()
    spread = np.sqrt(covariance[0, 0])
    f = np.linspace(mean[0] - 9 * spread, mean[0] + 9 * spread, 4001)
    density = stats.norm.pdf(f, mean[0], spread) * (f[1] - f[0])
    slope = covariance[1:, 0] / covariance[0, 0]
    left = np.sqrt(np.maximum(np.diag(covariance)[1:] - slope * covariance[0, 1:], 1e-14))
    centre = mean[1:, None] + slope[:, None] * (f - mean[0])
    below = stats.norm.cdf((LEVEL - centre) / left[:, None])
    likelihood = np.stack([special.ndtr(f), special.ndtr(-f)])
    weights = (likelihood * density).sum(1)
    after = np.einsum("qf,kf,f->qk", below, likelihood, density) / weights
    return after, weights


def test_a_yes_or_no_changes_what_brute_force_says() -> None:
    observed = Observed(latent(), GRID, LEVEL, binary=True)
    ahead = observed.everywhere(PLACES)
    mean, variance = latent().moments(GRID)
    now = stats.norm.cdf((LEVEL - mean.numpy()) / np.sqrt(variance.numpy()))
    for i, place in enumerate(PLACES):
        after, weights = below_after(place, GRID)
        assert ahead.after[i].numpy() == pytest.approx(after, abs=2e-5)
        assert ahead.weights[i].numpy() == pytest.approx(weights, abs=1e-7)
        information = (entropy(now) - entropy(after) @ weights).mean()
        assert float(ahead.information()[i]) == pytest.approx(information, abs=2e-5)
        change = abs(after.mean(0) - now.mean()) @ weights
        assert float(ahead.volume_change()[i]) == pytest.approx(change, abs=2e-5)


def test_information_at_the_place_itself() -> None:
    ahead = Observed(latent(), GRID, LEVEL, binary=True).here(PLACES)
    for i, place in enumerate(PLACES):
        after, weights = below_after(place, place[None] + 1e-9)
        now = after @ weights
        information = float((entropy(now) - entropy(after) @ weights)[0])
        assert float(ahead.information()[i]) == pytest.approx(information, abs=1e-3)


def test_a_number_changes_what_brute_force_says() -> None:
    process = latent()
    noise = float(process.prior.noise)
    ahead = Observed(process, GRID, LEVEL, binary=False).everywhere(PLACES)
    z = np.linspace(-7, 7, 281)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    for i, place in enumerate(PLACES):
        mean, variance = process.moments(place)
        after = []
        for y in float(mean) + z * np.sqrt(float(variance) + noise):
            later = Latent(
                process.prior,
                torch.cat([process.rows, place[None]]),
                torch.cat([process.targets, torch.tensor([y], dtype=DTYPE)]),
                torch.cat([process.precision, torch.tensor([1 / noise], dtype=DTYPE)]),
            )
            m, v = later.moments(GRID)
            after.append(stats.norm.cdf((LEVEL - m.numpy()) / np.sqrt(v.numpy())))
        table = np.array(after).T
        now = ahead.below[0].numpy()
        information = (entropy(now) - entropy(table) @ weights).mean()
        assert float(ahead.information()[i]) == pytest.approx(information, abs=1e-4)
        change = abs(table.mean(0) - now.mean()) @ weights
        assert float(ahead.volume_change()[i]) == pytest.approx(change, rel=0.02)


def test_far_from_everything_nothing_is_learned() -> None:
    far = torch.tensor([[40.0]], dtype=DTYPE)
    for binary in (True, False):
        ahead = Observed(latent(), GRID, LEVEL, binary=binary).everywhere(far)
        assert float(ahead.information()) == pytest.approx(0.0, abs=1e-7)
        assert float(ahead.volume_change()) == pytest.approx(0.0, abs=1e-7)
