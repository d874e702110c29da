"""emcee's walkers go to the farm in one request a half step."""

from __future__ import annotations

import emcee
import numpy as np

from farm.client.remote import RemoteModel
from tests.samplers.target import COVARIANCE, MEAN, Calls, assert_moments

WALKERS, STEPS = 16, 400


def test_walkers_at_once(posterior: RemoteModel, calls: Calls) -> None:
    rng = np.random.default_rng(1)
    sampler = emcee.EnsembleSampler(
        WALKERS, 2, lambda theta: posterior.map(theta)[:, 0], vectorize=True
    )
    sampler.random_state = np.random.RandomState(1).get_state()
    sampler.run_mcmc(MEAN + rng.standard_normal((WALKERS, 2)), STEPS)
    assert calls.count() == WALKERS * (STEPS + 1)
    draws = sampler.get_chain(discard=50, flat=True)
    time = sampler.get_autocorr_time(discard=50, quiet=True).max()
    assert_moments(draws, len(draws) / time, MEAN, COVARIANCE)
