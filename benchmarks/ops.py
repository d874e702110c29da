"""Speed-up of BlackJAX's HMC with a served model, and what an op's memory saves NUTS.

Run: python benchmarks/ops.py [--chains 8] [--evaluation-s 0.05]. Needs jax and blackjax.

Prints, for 1 and 4 workers, seconds of compiled HMC beside the ideal: every evaluation and every
gradient takes the given time, and the chains of a leapfrog step are spread over the workers. Then
NUTS: calls sent, and repeats that were not. A program without farm makes the calls of one worker.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import farm
from farm.client import RemoteModel

MODEL = """
import time
import farm

class Density(farm.Model):
    # A curved density: the length of a trajectory of NUTS depends on its place
    name = "density"
    inputs = {"x": 2}
    outputs = {"log": 1}

    def evaluate(self, inputs, config):
        time.sleep(config.get("seconds", 0.0))
        a, b = inputs["x"]
        return [-0.5 * a**2 - 2.0 * (b - a**2) ** 2]

    def gradient(self, out_wrt, in_wrt, inputs, sens, config):
        time.sleep(config.get("seconds", 0.0))
        a, b = inputs["x"]
        away = 4.0 * (b - a**2)
        return [sens[0] * (2.0 * away * a - a), -sens[0] * away]
"""

STEPS, LEAPFROGS = 10, 3


def sampler(algorithm: Any, chains: int, steps: int) -> Any:
    """Return a compiled function from a key and states to draws."""

    def run(key: Any, states: Any) -> Any:
        def step(states: Any, key: Any) -> Any:
            keys = jax.random.split(key, chains)
            states, _ = jax.vmap(algorithm.step)(keys, states)
            return states, states.position

        return jax.lax.scan(step, states, jax.random.split(key, steps))[1]

    return jax.jit(run)


def hmc_seconds(model: RemoteModel, chains: int, seconds: float) -> tuple[float, int]:
    """Return the seconds of a compiled run, and its requests."""
    import blackjax

    # The program that is timed is compiled already, as the config is no part of it.
    op = farm.ops.jax_op(model, {"seconds": seconds})
    hmc = blackjax.hmc(op, 0.1, jnp.ones(2), LEAPFROGS)
    states = jax.vmap(hmc.init)(jax.random.normal(jax.random.key(1), (chains, 2)))
    run = sampler(hmc, chains, STEPS)
    compiled = run.lower(jax.random.key(2), states).compile()
    before, begun = op.counts.requests, time.perf_counter()
    jax.block_until_ready(compiled(jax.random.key(2), states))
    return time.perf_counter() - begun, op.counts.requests - before


def nuts_counts(model: RemoteModel, chains: int) -> farm.ops.Counts:
    """Return the counts of an op after some steps of vectorised NUTS."""
    import blackjax

    op = farm.ops.jax_op(model)
    nuts = blackjax.nuts(op, 0.15, jnp.ones(2))
    states = jax.vmap(nuts.init)(jax.random.normal(jax.random.key(1), (chains, 2)))
    jax.block_until_ready(sampler(nuts, chains, 100)(jax.random.key(2), states))
    return op.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--evaluation-s", type=float, default=0.05)
    options = parser.parse_args()
    chains, seconds = options.chains, options.evaluation_s
    jax.config.update("jax_enable_x64", True)
    print(
        f"python {sys.version.split()[0]}, jax {version('jax')}, blackjax {version('blackjax')}, "
        f"{platform.machine()}; {chains} chains, evaluations and gradients of {seconds} s"
    )
    took: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "density.py"
        file.write_text(MODEL)
        for workers in (1, 4):
            with farm.serve(file, workers=workers) as client:
                model = client.model()
                for _ in range(workers):  # until all workers have run once
                    model.map([[0.0, 0.0]] * workers)
                took[workers], requests = hmc_seconds(model, chains, seconds)
                ideal = requests * 2 * seconds * math.ceil(chains / workers)
                print(
                    f"HMC, {workers} workers: {took[workers]:.2f} s for {requests} requests, "
                    f"ideal {ideal:.2f} s: {ideal / took[workers]:.2f} of ideal"
                )
                if workers == 4:
                    counts = nuts_counts(model, chains)
        print(f"HMC, 1 to 4 workers: {took[1] / took[4] / 4:.2f} of ideal")
        asked = counts.calls + counts.repeats / 2  # a repeat is a value or a gradient
        print(
            f"NUTS: {counts.calls} calls of value and gradient, {counts.repeats // 2} more "
            f"answered from memory: {1 - counts.calls / asked:.0%} saved"
        )


if __name__ == "__main__":
    main()
