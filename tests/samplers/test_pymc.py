"""PyMC: NUTS with four chains in forked processes, and a served forward model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import arviz
import numpy as np
import pymc as pm
import pytest

import farm
from farm.client.remote import RemoteModel
from farm.errors import ModelFailed
from tests.samplers.target import (
    COVARIANCE,
    DATA,
    MEAN,
    NOISE_SD,
    Calls,
    assert_moments,
    linear_posterior,
)


def sampled(model: Any, **options: Any) -> tuple[Any, float]:
    """Return draws of theta, (draws, 2), and their effective sample size.

    The size is the smallest of the means and variances.
    """
    settings = {"tune": 200, "draws": 250, "chains": 4, "cores": 4, "mp_ctx": "fork"} | options
    with model:
        trace = pm.sample(
            **settings, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    theta = trace.posterior["theta"].values
    squares = (theta - theta.mean(axis=(0, 1))) ** 2
    ess: Any = arviz.ess
    sizes = [ess(x[:, :, i], method="mean") for x in (theta, squares) for i in (0, 1)]
    return theta.reshape(-1, 2), float(min(sizes))


def test_four_forked_chains(posterior: RemoteModel, calls: Calls) -> None:
    op = farm.ops.pytensor_op(posterior)
    with pm.Model() as model:
        theta = pm.Flat("theta", shape=2)
        pm.Potential("log_density", op(theta))
    assert_moments(*sampled(model), MEAN, COVARIANCE)
    evaluated, differentiated = calls.count(), calls.count(operation="gradient")
    assert abs(evaluated - differentiated) <= 8, "value and gradient are asked for together"


def test_a_forward_model_in_a_likelihood(forward: RemoteModel) -> None:
    op = farm.ops.pytensor_op(forward)
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 2.0, shape=2)
        pm.Normal("data", op(theta), NOISE_SD, observed=DATA)
    draws, effective = sampled(model, chains=2, cores=1)
    assert_moments(draws, effective, *linear_posterior(2.0))


def test_a_leapfrog_is_one_request(posterior: RemoteModel) -> None:
    op = farm.ops.pytensor_op(posterior)
    with pm.Model() as model:
        pm.Potential("log_density", op(pm.Flat("theta", shape=2)))
    step = model.logp_dlogp_function(ravel_inputs=True)
    step.set_extra_values({})
    precision = np.linalg.inv(COVARIANCE)
    for number in range(3):
        value, gradient = step(np.full(2, float(number)))
        assert np.isfinite(value)
        assert np.allclose(gradient, -precision @ (number - MEAN))
        assert op.counts.requests == op.counts.calls == number + 1


def test_an_error_keeps_its_class(posterior: RemoteModel) -> None:
    op = farm.ops.pytensor_op(posterior, {"sleep_s": "no number"})
    with pytest.raises(ModelFailed, match="TypeError"):
        op(np.zeros(2)).eval()


def test_the_example_of_the_page(here: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ops.md").read_text()
    text = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[3]
    text = text.replace('"density"', '"posterior"').replace("cores=4", "cores=2, tune=20, draws=20")
    names: dict[str, Any] = {}
    exec(compile(text, "docs/ops.md, block 3", "exec"), names)
    assert names["trace"].posterior["theta"].shape == (2, 20, 2)
