"""The recipes of docs/samplers.md with gradients, each as a program of its own.

JAX's settings are global to a process, and PyMC forks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
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


def drawn(tool: str, here: Path, changes: Mapping[str, str]) -> Array:
    """Run the recipe; return its draws, of shape (steps, chains, 2).

    A process that imports the program again writes a file `imported`.
    """
    code = page.script(tool, changes)
    save = f'if __name__ == "__main__":\n    np.save("draws.npy", {DRAWS[tool]})\n'
    save += 'else:\n    open("imported", "w").close()\n'
    (here / "recipe.py").write_text(f"{code}\n{save}")
    program = [sys.executable, "-W", "ignore", "recipe.py"]
    ended = subprocess.run(program, cwd=here, capture_output=True, text=True, timeout=scaled(120))
    assert ended.returncode == 0, ended.stderr[-4000:]
    draws: Array = np.load(here / "draws.npy")
    return draws


@pytest.mark.timeout(scaled(130))
@pytest.mark.parametrize("tool", DRAWS)
def test_draws_have_the_moments_of_the_density(tool: str, here: Path, calls: Calls) -> None:
    draws = drawn(tool, here, FEWER[tool])
    steps, chains, _ = draws.shape
    assert chains == (4 if tool == "PyMC" else 8)
    # Trajectories to the other side of the mean make means exact, and variances slow to come.
    both = np.concatenate([draws, (draws - MEAN) ** 2], axis=2)
    time = max(1.0, emcee.autocorr.integrated_time(both, quiet=True).max())
    assert_moments(draws, steps * chains / time, MEAN, COVARIANCE)
    assert calls.count(operation="gradient") > steps * chains


@pytest.mark.timeout(scaled(130))
def test_chains_of_pymc_import_the_program_again(here: Path, calls: Calls) -> None:
    """Chains start so by default from Python 3.14 on, and on macOS."""
    few = 'tune=20, draws=30, chains=2, cores=2, progressbar=False, mp_ctx="forkserver"'
    draws = drawn("PyMC", here, {"chains=4, cores=4": few})
    assert (here / "imported").exists()
    assert draws.shape == (30, 2, 2)
    evaluated = {tuple(map(float.fromhex, line.split()[3:])) for line in calls.lines()}
    assert {tuple(draw) for draw in draws.reshape(-1, 2)} <= evaluated
