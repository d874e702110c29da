"""The recipe of docs/client.md for ArviZ: the draws of a sampler with the outputs of the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import emcee
import h5py
import numpy as np
import pytest

import farm
from farm.client.remote import RemoteModel
from tests.samplers.target import (
    DATA,
    MATRIX,
    MODELS,
    NOISE_SD,
    Calls,
    assert_moments,
    linear_posterior,
)
from tests.support.dispatcher_farm import Served as FarmProcess
from tests.support.dispatcher_farm import run_farm, serving
from tests.support.shown_blocks import text_of

(RECIPE,) = (
    block
    for block in re.findall(r"```python\n(.*?)```", text_of("docs/client.md"), re.DOTALL)
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


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarmProcess]:
    """A farm that records; its models log their calls."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    with serving(
        tmp_path, "models.py:Forward", "--workers", "2", "--record", "calls.record"
    ) as process:
        process.wait_for_workers(2)
        yield process


def export() -> None:
    code, _, err = run_farm("record", "export", "calls.record", "-o", "evaluations.h5", cwd=Path())
    assert code == 0, err


def test_each_draw_finds_what_the_model_returned(recorded: FarmProcess) -> None:
    calls = Calls(Path("calls.log"))
    with farm.connect(recorded.folder) as client:
        sampler = sampled(client.model())
    evaluated = calls.count("forward")
    assert evaluated == WALKERS * (STEPS + 1)
    export()
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


def test_a_draw_that_is_not_in_the_file_is_an_error(recorded: FarmProcess) -> None:
    with farm.connect(recorded.folder) as client:
        sampler = sampled(client.model(), steps=101)
    export()
    with h5py.File("evaluations.h5", "r+") as file:
        file["status"][:] = np.where(np.arange(len(file["status"])) % 2, 1, 2)
    with pytest.raises(KeyError):
        exec(RECIPE, {"sampler": sampler, "data": DATA, "noise": NOISE_SD})
