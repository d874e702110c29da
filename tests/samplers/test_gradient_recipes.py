"""The recipes of docs/samplers.md with gradients, each as a program of its own.

JAX's settings are global to a process, and PyMC forks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import emcee
import numpy as np
import pytest

from tests.samplers import page
from tests.samplers.target import COVARIANCE, MEAN, Array, Calls, assert_moments
from tests.support.time_limits import scaled

FEWER = {
    "BlackJAX": {
        "jax.random.key(1), 200": "jax.random.key(1), 120",
        "np.random.standard_normal": "np.random.default_rng(1).standard_normal",
    },
    "NumPyro": {"num_warmup=300": "num_warmup=100", "num_samples=300": "num_samples=100"},
    "PyMC": {
        "chains=4, cores=4": "draws=250, tune=250, chains=4, cores=4, random_seed=1, "
        "progressbar=False"
    },
}
"""Fewer steps than on the page, and seeds."""
DRAWS = {
    "BlackJAX": "np.array(draws)[20:]",
    "NumPyro": 'np.swapaxes(mcmc.get_samples(group_by_chain=True)["theta"], 0, 1)',
    "PyMC": 'np.swapaxes(trace.posterior["theta"].to_numpy(), 0, 1)',
}


def drawn(tool: str, here: Path) -> Array:
    """Run the recipe; return its draws, of shape (steps, chains, 2)."""
    code = page.script(tool, FEWER[tool])
    (here / "recipe.py").write_text(f'{code}\nnp.save("draws.npy", {DRAWS[tool]})\n')
    program = [sys.executable, "-W", "ignore", "recipe.py"]
    ended = subprocess.run(program, cwd=here, capture_output=True, text=True, timeout=scaled(120))
    assert ended.returncode == 0, ended.stderr[-4000:]
    draws: Array = np.load(here / "draws.npy")
    return draws


@pytest.mark.timeout(scaled(130))
@pytest.mark.parametrize("tool", DRAWS)
def test_draws_have_the_moments_of_the_density(tool: str, here: Path, calls: Calls) -> None:
    draws = drawn(tool, here)
    steps, chains, _ = draws.shape
    assert chains == (4 if tool == "PyMC" else 8)
    # Trajectories to the other side of the mean make means exact, and variances slow to come.
    both = np.concatenate([draws, (draws - MEAN) ** 2], axis=2)
    time = max(1.0, emcee.autocorr.integrated_time(both, quiet=True).max())
    assert_moments(draws, steps * chains / time, MEAN, COVARIANCE)
    assert calls.count(operation="gradient") > steps * chains
