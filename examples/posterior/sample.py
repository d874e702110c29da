"""Find the source of a plume from eight noisy readings: emcee over a farm, checked by quadrature.

    python examples/posterior/sample.py

It serves `plume.py` by two workers while it runs; replace `farm.serve(...)` by
`farm.connect(URL)` to use any other farm. Ends with exit code 0 only when every check holds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import emcee
import numpy as np

import farm
from plume import Array, concentration

TRUTH = np.array([35.0, np.log(40.0)])
NOISE = 60.0
"""Standard deviation of a reading, micrograms a cubic metre."""
PRIOR_MEAN = np.array([0.0, np.log(30.0)])
PRIOR_SD = np.array([80.0, 1.0])
WALKERS, STEPS, BURN_IN = 32, 800, 200


def log_posterior_of(plume: farm.RemoteModel, readings: Array) -> Callable[[Array], Array]:
    """The log posterior, up to a constant, at many theta at once: (walkers, 2) to (walkers,)."""

    def log_posterior(theta: Array) -> Array:
        misfit = (plume.map(theta) - readings) / NOISE  # all walkers at once, on all workers
        surprise = (theta - PRIOR_MEAN) / PRIOR_SD
        result: Array = -0.5 * ((misfit**2).sum(axis=1) + (surprise**2).sum(axis=1))
        return result

    return log_posterior


def sample(log_posterior: Callable[[Array], Array], file: Path) -> tuple[Array, float]:
    """Draws from the posterior, shape (draws, 2), and the longest autocorrelation time.

    file: keeps the chain and the random state, as docs/samplers.md shows, so that a second program
    continues what the first one left. Here both are rounds of a loop.
    """
    backend = emcee.backends.HDFBackend(str(file))
    moves = emcee.moves.DEMove()  # a quarter of the default move's autocorrelation time here
    rng = np.random.RandomState(4)  # the kind of generator that emcee keeps
    for steps in (STEPS // 2, STEPS):
        sampler = emcee.EnsembleSampler(
            WALKERS, 2, log_posterior, vectorize=True, moves=moves, backend=backend
        )
        start = None
        if not backend.iteration:
            sampler.random_state = rng.get_state()
            start = PRIOR_MEAN + 0.3 * PRIOR_SD * rng.standard_normal((WALKERS, 2))
        sampler.run_mcmc(start, steps - backend.iteration)
    draws: Array = sampler.get_chain(discard=BURN_IN, flat=True)
    return draws, float(np.max(sampler.get_autocorr_time(discard=BURN_IN)))


def same_by_pool(log_posterior: Callable[[Array], Array]) -> bool:
    """Whether a pool that maps a function of one theta makes exactly the same chain."""
    chains = []
    with farm.Executor() as pool:
        for how in ({"vectorize": True}, {"pool": pool}):
            rng = np.random.RandomState(5)
            one = log_posterior if "vectorize" in how else lambda t: log_posterior(t[None, :])[0]
            sampler = emcee.EnsembleSampler(WALKERS, 2, one, **how)
            sampler.random_state = rng.get_state()
            sampler.run_mcmc(PRIOR_MEAN + rng.standard_normal((WALKERS, 2)), 20)
            chains.append(sampler.get_chain())
    return np.array_equal(*chains)


def quadrature(log_posterior: Callable[[Array], Array], draws: Array) -> tuple[Array, Array]:
    """Mean and covariance of the posterior by the trapezoidal rule around the draws."""
    middle, spread = draws.mean(axis=0), draws.std(axis=0)
    axes = [np.linspace(m - 7 * s, m + 7 * s, 81) for m, s in zip(middle, spread, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = log_posterior(points)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ points
    return mean, (points - mean).T @ ((points - mean) * weights[:, None])


def main() -> None:
    noise = NOISE * np.random.default_rng(3).standard_normal(8)
    readings = concentration(TRUTH[:1], np.exp(TRUTH[1:]))[0] + noise
    with (
        tempfile.TemporaryDirectory() as folder,
        farm.serve(Path(__file__).parent / "plume.py", workers=2) as client,
    ):
        log_posterior = log_posterior_of(client.model("plume"), readings)
        begun = time.perf_counter()
        draws, autocorrelation = sample(log_posterior, Path(folder) / "chain.h5")
        elapsed = time.perf_counter() - begun
        mean, covariance = quadrature(log_posterior, draws)
        pooled = same_by_pool(log_posterior)

    calls = WALKERS * STEPS
    print(f"{calls} evaluations in {elapsed:.1f} s, {calls / elapsed:.0f} a second")
    effective = len(draws) / autocorrelation
    print(f"autocorrelation time {autocorrelation:.0f} steps, {effective:.0f} independent draws")
    sd = np.sqrt(np.diag(covariance))
    tolerance = 5.0 / np.sqrt(effective)  # five standard errors of a mean, in units of sd
    found = np.cov(draws.T)
    correlation, exact = (
        found[0, 1] / np.sqrt(found[0, 0] * found[1, 1]),
        covariance[0, 1] / sd.prod(),
    )
    checks = [
        ("correlation", correlation, exact, tolerance),
        ("same chain by a pool", float(pooled), 1.0, 0.0),
    ]
    for i, name in enumerate(("place, m", "log strength")):
        checks.append((f"{name}: mean", draws[:, i].mean(), mean[i], tolerance * sd[i]))
        checks.append((f"{name}: sd", draws[:, i].std(), sd[i], tolerance * sd[i]))
        checks.append((f"{name}: truth", TRUTH[i], mean[i], 4.0 * sd[i]))
    for title, value, expected, allowed in checks:
        print(f"{title:24} {value:9.4f}   expected {expected:9.4f} within {allowed:.4f}")
        if abs(value - expected) > allowed:
            raise SystemExit(f"{title} is {value:g}, expected {expected:g} within {allowed:g}")


if __name__ == "__main__":
    main()
