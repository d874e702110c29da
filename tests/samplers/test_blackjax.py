"""BlackJAX: chains in a vmap are one request a leapfrog; posteriors are those in closed form."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

PRIOR_SD = 2.0


@pytest.fixture(autouse=True)
def wide() -> None:
    jax.config.update("jax_enable_x64", True)


def sampled(algorithm: Any, start: Any, steps: int) -> Any:
    """Return the positions of chains, of shape (steps, chains, dimensions)."""
    states = jax.vmap(algorithm.init)(start)
    chains = len(start)

    def run(key: Any, states: Any) -> Any:
        def step(states: Any, key: Any) -> Any:
            keys = jax.random.split(key, chains)
            states, _ = jax.vmap(algorithm.step)(keys, states)
            return states, states.position

        return jax.lax.scan(step, states, jax.random.split(key, steps))[1]

    return np.asarray(jax.jit(run)(jax.random.key(1), states))


def effective(draws: Any) -> float:
    """Return the smallest effective sample size of the means and variances of draws.

    draws: of shape (steps, chains, dimensions).
    """
    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    sizes = [blackjax.diagnostics.effective_sample_size(x, 1, 0) for x in (draws, squares)]
    return float(np.min(sizes))


def test_hmc_is_one_request_a_leapfrog(posterior: RemoteModel, calls: Calls) -> None:
    chains, steps, leapfrogs = 8, 80, 4
    op = farm.ops.jax_op(posterior)
    hmc = blackjax.hmc(op, 0.5, jnp.ones(2), leapfrogs)
    draws = sampled(hmc, jax.random.normal(jax.random.key(2), (chains, 2)), steps)
    requests = 1 + steps * leapfrogs
    assert op.counts.requests == requests
    assert op.counts.calls == calls.count() == calls.count(operation="gradient")
    assert op.counts.calls <= requests * chains
    assert calls.repeats() == calls.repeats(operation="gradient") == 0
    kept = draws[20:]
    assert_moments(kept, effective(kept), MEAN, COVARIANCE)


def test_nuts_evaluates_nothing_twice(posterior: RemoteModel, calls: Calls) -> None:
    op = farm.ops.jax_op(posterior)
    nuts = blackjax.nuts(op, 0.8, jnp.ones(2))
    draws = sampled(nuts, jax.random.normal(jax.random.key(2), (4, 2)), 100)
    assert calls.repeats() == calls.repeats(operation="gradient") == 0
    assert op.counts.repeats > 0.1 * op.counts.calls, "chains wait at their last points"
    kept = draws[20:]
    assert_moments(kept, effective(kept), MEAN, COVARIANCE)


def test_a_model_of_several_outputs_in_a_likelihood(forward: RemoteModel, calls: Calls) -> None:
    op = farm.ops.jax_op(forward)

    def log_density(theta: Any) -> Any:
        misfit = (op(theta) - DATA) / NOISE_SD
        return -0.5 * (misfit @ misfit) - 0.5 * (theta @ theta) / PRIOR_SD**2

    hmc = blackjax.hmc(log_density, 0.15, jnp.ones(2), 5)
    draws = sampled(hmc, jnp.zeros((8, 2)), 60)
    # The cotangent of the outputs is known when their values are: two requests a leapfrog.
    assert op.counts.requests <= 2 * (1 + 60 * 5)
    assert calls.repeats("forward") == calls.repeats("forward", "gradient") == 0
    kept = draws[20:]
    assert_moments(kept, effective(kept), *linear_posterior(PRIOR_SD))
