"""The recipe of docs/client.md for ArviZ: the draws of a sampler with the outputs of the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import emcee
import h5py
import numpy as np
import pytest

import farm
from farm.client.remote import RemoteModel
from tests.samplers.page import ROOT
from tests.samplers.target import (
    DATA,
    MATRIX,
    NOISE_SD,
    Array,
    Calls,
    Served,
    assert_moments,
    linear_posterior,
)

(RECIPE,) = (
    block
    for block in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "client.md").read_text(), re.DOTALL
    )
    if "import arviz" in block
)
WALKERS, STEPS = 16, 400


def sampled(forward: RemoteModel, steps: int = STEPS) -> emcee.EnsembleSampler:
    def log_probability(theta: Any) -> Any:
        misfit = (forward.map(np.ascontiguousarray(theta)) - DATA) / NOISE_SD
        return -0.5 * (misfit**2).sum(axis=1) - 0.5 * (theta**2).sum(axis=1)

    np.random.seed(3)
    sampler = emcee.EnsembleSampler(WALKERS, 2, log_probability, vectorize=True)
    sampler.run_mcmc(np.random.standard_normal((WALKERS, 2)), steps)
    return sampler


def points(calls: Calls) -> Array:
    """Return the points that the model got, bit by bit."""
    words = [line.split()[3:] for line in calls.lines("forward")]
    return np.array([[float.fromhex(word) for word in row] for row in words])


def evaluations(served: Served, calls: Calls, path: Path) -> None:
    """Write the points that the sampler's run evaluated in the layout of a sweep."""
    table = path.with_suffix(".npy")
    np.save(table, points(calls))
    sweep = farm.sweep(
        "forward",
        {},
        design=f"file:{table}",
        on=served.client,
        out=path,
        show=False,
    )
    sweep.wait()


def test_each_draw_finds_what_the_model_returned(
    served: Served, forward: RemoteModel, calls: Calls, here: Path
) -> None:
    sampler = sampled(forward)
    assert len(points(calls)) == WALKERS * (STEPS + 1)
    evaluations(served, calls, here / "evaluations.h5")
    evaluated = calls.count("forward")
    names: dict[str, Any] = {"sampler": sampler, "data": DATA, "noise": NOISE_SD}
    exec(compile(RECIPE, "docs/client.md, ArviZ", "exec"), names)
    assert calls.count("forward") == evaluated, "nothing is evaluated again"

    data = names["inference"]
    theta, y = data.posterior["theta"].values, data.posterior["y"].values
    assert theta.shape == (WALKERS, STEPS - 100, 2)
    np.testing.assert_allclose(y, theta @ MATRIX.T, atol=1e-12)
    assert data.sample_stats["run_time_s"].shape == theta.shape[:2]
    assert np.all(data.sample_stats["run_time_s"] > 0.0)
    prior = -0.5 * (theta**2).sum(axis=-1)
    constant = 3 * np.log(np.sqrt(2 * np.pi) * NOISE_SD)
    likelihood = data.log_likelihood["data"].values.sum(axis=-1)
    kept = sampler.get_log_prob(discard=100).T
    np.testing.assert_allclose(likelihood + constant + prior, kept, atol=1e-9)

    mean, covariance = linear_posterior(1.0)
    time = sampler.get_autocorr_time(discard=100, quiet=True).max()
    assert_moments(theta.reshape(-1, 2), theta[..., 0].size / time, mean, covariance)
    arviz = names["arviz"]
    summary = arviz.summary(data, round_to="none")
    assert summary.loc["y[2]", "mean"] == pytest.approx((theta @ MATRIX.T)[..., 2].mean())
    assert np.isfinite(arviz.loo(data).elpd_loo)


def test_a_draw_that_is_not_in_the_file_is_an_error(
    served: Served, forward: RemoteModel, calls: Calls, here: Path
) -> None:
    sampler = sampled(forward, steps=101)
    evaluations(served, calls, here / "evaluations.h5")
    with h5py.File(here / "evaluations.h5", "r+") as file:
        file["status"][:] = np.where(np.arange(len(file["status"])) % 2, 1, 2)
    with pytest.raises(KeyError):
        exec(RECIPE, {"sampler": sampler, "data": DATA, "noise": NOISE_SD})
