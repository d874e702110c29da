"""Expectation propagation against exact posteriors of one and two observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from farm.experiment.models.latent import Latent, Prior
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.propagation import propagate


def prior(amplitude: float = 3.0, mean: float = 0.3, lengthscale: float = 0.4) -> Prior:
    values = ([lengthscale], amplitude, mean, 1.0)
    return Prior(*(torch.tensor(v, dtype=DTYPE) for v in values))


def exact(x: list[float], signs: list[float]) -> tuple[float, float, float]:
    """Mean and variance at the first point, and the log evidence, on a fine grid."""
    f = np.linspace(-12, 12, 801)
    centre = np.full(2, 0.3)
    apart = (np.subtract.outer(x, x) / 0.4) ** 2
    grid = np.stack(np.meshgrid(f, f, indexing="ij"), -1)
    weight = stats.multivariate_normal(centre, 3.0 * np.exp(-0.5 * apart)).pdf(grid)
    for i, sign in enumerate(signs):
        weight *= special.ndtr(sign * grid[..., i])
    total = weight.sum()
    mean = float((weight * grid[..., 0]).sum() / total)
    variance = float((weight * grid[..., 0] ** 2).sum() / total - mean**2)
    return mean, variance, float(np.log(total * (f[1] - f[0]) ** 2))


def test_one_observation_is_exact() -> None:
    rows = torch.tensor([[0.5]], dtype=DTYPE)
    sites = propagate(prior(), rows, torch.tensor([1.0], dtype=DTYPE))
    latent = Latent(prior(), rows, sites.targets, sites.precision)
    mean, variance = latent.moments(rows)
    z = 0.3 / 2  # the mean over the root of 1 + 3
    hazard = stats.norm.pdf(z) / stats.norm.cdf(z)
    assert float(mean) == pytest.approx(0.3 + 3 / 2 * hazard, abs=1e-4)
    assert float(variance) == pytest.approx(3 - 9 / 4 * hazard * (z + hazard), abs=1e-4)
    assert sites.log_evidence == pytest.approx(np.log(stats.norm.cdf(z)), abs=1e-9)


@pytest.mark.parametrize("signs", [[1.0, 1.0], [1.0, -1.0]])
@pytest.mark.parametrize("second", [0.55, 0.9])
def test_two_observations_are_nearly_exact(signs: list[float], second: float) -> None:
    x = [0.5, second]
    rows = torch.tensor(x, dtype=DTYPE)[:, None]
    sites = propagate(prior(), rows, torch.tensor(signs, dtype=DTYPE))
    mean, variance = Latent(prior(), rows, sites.targets, sites.precision).moments(rows[:1])
    wanted_mean, wanted_variance, wanted_evidence = exact(x, signs)
    assert float(mean) == pytest.approx(wanted_mean, abs=0.02)
    assert float(variance) == pytest.approx(wanted_variance, rel=0.06)
    assert sites.log_evidence == pytest.approx(wanted_evidence, abs=0.02)


@pytest.mark.parametrize("kind", ["all yes", "contradictory", "a sharp boundary"])
def test_hard_cases_end_in_a_fixed_point(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.random(10), 12) if kind == "contradictory" else rng.random(120)
    yes = {
        "all yes": np.ones(120),
        "contradictory": np.tile([1.0, -1.0], 60),
        "a sharp boundary": np.where(x > 0.4, 1.0, -1.0),
    }[kind]
    rows, signs = torch.tensor(x)[:, None], torch.tensor(yes)
    process = prior(amplitude=100.0)
    sites = propagate(process, rows, signs)
    again = propagate(process, rows, signs, start=sites)
    assert np.isfinite(sites.log_evidence)
    assert (sites.precision > 0).all()
    assert again.precision.numpy() == pytest.approx(sites.precision.numpy(), abs=1e-3)
    assert again.log_evidence == pytest.approx(sites.log_evidence, abs=1e-5)
