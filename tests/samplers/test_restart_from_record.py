"""Samplers without a checkpoint, killed with their farm, restart from the record."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.dispatcher_farm import serving
from tests.support.time_limits import scaled

pytest.importorskip("tinyDA", reason="the samplers are in an environment of their own")

LIMIT_S = scaled(120.0)

MODEL = """
from pathlib import Path

import numpy as np
import farm

EVALUATED = Path(__file__).with_name("evaluated")


@farm.model(inputs={"x": 2}, outputs={"y": 2})
def forward(x):
    with EVALUATED.open("a") as log:
        log.write(x.tobytes().hex() + "\\n")
    return np.array([x[0] + x[1] ** 2, x[1]])
"""

TINYDA = """
import numpy as np
import scipy.stats as stats
import tinyDA as tda
import farm

np.random.seed(5)
with farm.connect("run") as client:
    forward = client.model("forward")
    prior = stats.multivariate_normal(np.zeros(2), np.eye(2))
    likelihood = tda.GaussianLogLike(np.array([0.5, 0.2]), 0.1 * np.eye(2))
    posterior = tda.Posterior(prior, likelihood, forward)
    proposal = tda.GaussianRandomWalk(0.3 * np.eye(2))
    chains = tda.sample(posterior, proposal, 150, n_chains=1, force_sequential=True)
    print(np.array([link.parameters for link in chains["chain_0"]]).tobytes().hex())
"""

BLACKJAX = """
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import farm

jax.config.update("jax_enable_x64", True)
with farm.connect("run") as client:
    forward = client.model("forward")

    def log_density(x):
        shape = jax.ShapeDtypeStruct((2,), jnp.float64)
        y = jax.pure_callback(lambda x: forward(np.asarray(x)), shape, x)
        return -5.0 * jnp.sum((y - jnp.array([0.5, 0.2])) ** 2) - 0.5 * jnp.sum(x**2)

    walk = blackjax.additive_step_random_walk(
        log_density, blackjax.mcmc.random_walk.normal(0.3 * jnp.ones(2))
    )
    state = walk.init(jnp.zeros(2))
    step = jax.jit(walk.step)
    draws = []
    for key in jax.random.split(jax.random.key(3), 150):
        state, _ = step(key, state)
        draws.append(np.asarray(state.position))
    print(np.array(draws).tobytes().hex())
"""


def started(program: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def evaluated(folder: Path) -> Counter[str]:
    log = folder / "evaluated"
    return Counter(log.read_text().split() if log.exists() else ())


def finished(program: str, folder: Path, *options: str) -> str:
    """Run a sampler to its end with a farm of its own; return its chain."""
    with serving(folder, "model.py", *options):
        sampler = started(program, folder)
        output, _ = sampler.communicate(timeout=LIMIT_S)
        assert sampler.returncode == 0
    return output.splitlines()[-1]


@pytest.mark.parametrize("program", [TINYDA, BLACKJAX], ids=["tinyDA", "BlackJAX"])
def test_a_killed_sampler_restarts_for_free(tmp_path: Path, program: str) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    whole = finished(program, tmp_path)
    points = evaluated(tmp_path)
    (tmp_path / "evaluated").unlink()
    options = ("--record", "chain.record", "--reuse")
    with serving(tmp_path, "model.py", *options) as served:
        sampler = started(program, tmp_path)
        limit = time.monotonic() + LIMIT_S
        while len(evaluated(tmp_path)) < 2 * len(points) // 3:
            assert sampler.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.01)
        served.kill()
        sampler.kill()
        sampler.communicate(timeout=LIMIT_S)
    before = evaluated(tmp_path)
    assert len(before) < len(points)
    again = finished(program, tmp_path, *options)
    assert again == whole, "the chain is the one of an uninterrupted run, bit for bit"
    twice = evaluated(tmp_path) - Counter(dict.fromkeys(points, 1))
    assert twice.total() <= 1, "at most the point that was in flight runs again"
    assert set(evaluated(tmp_path)) == set(points)
