"""NumPyro: vectorised chains of NUTS with a served log density, and a served forward model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import farm
from farm.client.remote import RemoteModel
from tests.samplers.target import (
    COVARIANCE,
    DATA,
    MEAN,
    NOISE_SD,
    Calls,
    assert_moments,
    linear_posterior,
)

CHAINS = 4


@pytest.fixture(autouse=True)
def wide() -> None:
    jax.config.update("jax_enable_x64", True)


def sampled(model: Any) -> tuple[Any, float]:
    """Return draws of theta, (chains, draws, 2), and their effective sample size.

    The size is the smallest of the means and variances.
    """
    mcmc = MCMC(
        NUTS(model),
        num_warmup=100,
        num_samples=120,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"])
    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    return draws, float(min(effective_sample_size(x).min() for x in (draws, squares)))


def test_vectorised_chains(posterior: RemoteModel, calls: Calls) -> None:
    op = farm.ops.jax_op(posterior)

    def model() -> None:
        theta = numpyro.sample(
            "theta", dist.ImproperUniform(dist.constraints.real_vector, (), (2,))
        )
        numpyro.factor("log_density", op(theta))

    draws, effective = sampled(model)
    assert calls.repeats() == calls.repeats(operation="gradient") == 0
    assert op.counts.repeats > 0.1 * op.counts.calls, "chains wait at their last points"
    assert_moments(draws, effective, MEAN, COVARIANCE)


def test_a_forward_model_in_a_likelihood(forward: RemoteModel, calls: Calls) -> None:
    op = farm.ops.jax_op(forward)

    def model() -> None:
        theta = numpyro.sample("theta", dist.Normal(jnp.zeros(2), 2.0).to_event(1))
        numpyro.sample("data", dist.Normal(op(theta), NOISE_SD), obs=jnp.asarray(DATA))

    draws, effective = sampled(model)
    assert calls.repeats("forward") == calls.repeats("forward", "gradient") == 0
    assert_moments(draws, effective, *linear_posterior(2.0))
