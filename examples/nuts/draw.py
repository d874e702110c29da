"""Sample a posterior by NUTS: BlackJAX's chains over a farm, gradients by an adjoint solver.

    pip install "modelfarm[jax]" blackjax arviz scipy
    python examples/nuts/draw.py

It serves `aquifer.py` by two workers while it runs; replace `farm.serve(...)` by
`farm.connect(URL)` to use any other farm. The steps of all chains go to the farm together, and each
call answers value and gradient by two solves. Ends with exit code 0 only when the posterior is that
of a quadrature.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import arviz
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import farm
from farm.ops import jax_op

jax.config.update("jax_enable_x64", True)

Array = NDArray[np.float64]

CHAINS, WARM_UP, DRAWS = 4, 250, 200
NODES = 29
"""Nodes of the quadrature along each parameter."""


def log_posterior_of(aquifer: farm.RemoteModel) -> Callable[[jax.Array], jax.Array]:
    """The log posterior of theta, up to a constant: standard normal parameters, six readings."""
    log_likelihood = jax_op(aquifer)

    def log_posterior(theta: jax.Array) -> jax.Array:
        return log_likelihood(theta) - 0.5 * jnp.sum(theta**2, axis=-1)

    return log_posterior


def sample(log_posterior: Callable[[jax.Array], jax.Array]) -> tuple[Array, int, int]:
    """Draws of shape (chains, draws, 3), and how many of their steps diverged; leapfrog steps."""
    warm_up = blackjax.window_adaptation(
        blackjax.nuts, log_posterior, is_mass_matrix_diagonal=False
    )

    def chain(key: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        tuning, sampling = jax.random.split(key)
        (state, parameters), _ = warm_up.run(tuning, start, WARM_UP)
        step = blackjax.nuts(log_posterior, **parameters).step

        def draw(state: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
            state, info = step(key, state)
            return state, (state.position, info.is_divergent, info.num_integration_steps)

        _, (positions, divergent, steps) = jax.lax.scan(
            draw, state, jax.random.split(sampling, DRAWS)
        )
        return positions, divergent, steps

    keys = jax.random.split(jax.random.key(5), CHAINS)
    starts = 0.1 * jax.random.normal(jax.random.key(6), (CHAINS, 3))
    draws, diverged, steps = jax.jit(jax.vmap(chain))(keys, starts)
    return np.asarray(draws), int(diverged.sum()), int(steps.sum())


def quadrature(aquifer: farm.RemoteModel, draws: Array) -> tuple[Array, Array]:
    """Mean and standard deviations of the posterior by the trapezoidal rule around the draws.

    The nodes are those of a grid along the principal axes of the draws.
    """
    middle = draws.mean(axis=0)
    axes = np.linalg.cholesky(np.cov(draws.T))
    grid = np.stack(np.meshgrid(*[np.linspace(-6.0, 6.0, NODES)] * 3, indexing="ij"), axis=-1)
    points = middle + grid.reshape(-1, 3) @ axes.T
    logs = aquifer.map(points)[:, 0] - 0.5 * (points**2).sum(axis=1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ points
    return mean, np.sqrt(weights @ (points - mean) ** 2)


def main() -> None:
    with farm.serve(Path(__file__).parent / "aquifer.py", workers=2) as client:
        aquifer = client.model("aquifer")
        begun = time.perf_counter()
        draws, diverged, steps = sample(log_posterior_of(aquifer))
        elapsed = time.perf_counter() - begun
        answered = {row["operation"]: row["done"] for row in client.status()["queues"]}
        mean, sd = quadrature(aquifer, draws.reshape(-1, 3))

    both = answered["value_and_gradient"]
    print(f"{both} values with gradients in {elapsed:.1f} s, with compilation")
    print(f"{steps} leapfrog steps for {CHAINS} x {DRAWS} draws, {diverged} of them diverged")
    data = arviz.convert_to_dataset({"theta": draws})
    effective, r_hat = arviz.ess(data)["theta"].values, arviz.rhat(data)["theta"].values
    print("effective draws", *effective.round().astype(int), "  R-hat", *r_hat.round(3))

    checks = [
        ("largest R-hat", r_hat.max(), 1.0, 0.05),
        ("diverged", float(diverged), 0.0, 0.01 * CHAINS * DRAWS),
    ]
    flat = draws.reshape(-1, 3)
    for j in range(3):
        error = 5.0 / np.sqrt(effective[j])  # five standard errors of a mean, in units of sd
        checks.append((f"theta {j}: mean", flat[:, j].mean(), mean[j], error * sd[j]))
        checks.append((f"theta {j}: sd", flat[:, j].std(), sd[j], error * sd[j]))
    for title, value, expected, allowed in checks:
        print(f"{title:16} {value:9.4f}   expected {expected:9.4f} within {allowed:.4f}")
        if abs(value - expected) > allowed:
            raise SystemExit(f"{title} is {value:g}, expected {expected:g} within {allowed:g}")


if __name__ == "__main__":
    main()
