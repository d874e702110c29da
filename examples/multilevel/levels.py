"""Sample a posterior with few evaluations of the fine model: three levels on one farm, by tinyDA.

    python examples/multilevel/levels.py

The levels are a surrogate, trained on a sweep and served from an ONNX file, a coarse mesh and a
fine mesh. Four chains share the workers. tinyDA draws from numpy's global random state, so each
chain is a process with a seed of its own, and the result is the same in every run. Ends with exit
code 0 only when the posterior is right and took far fewer fine evaluations than the same sampler on
the fine mesh alone.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import arviz
import h5py
import numpy as np
import tinyDA as tda
from scipy.stats import multivariate_normal
from skl2onnx import to_onnx
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import farm
from rod import Array, exact

ROD = Path(__file__).parent / "rod.py"
TRUTH = np.array([1.2, 0.7])
NOISE_SD = 0.005
PRIOR_MEAN, PRIOR_SD = np.ones(2), 0.3
TRAINING_POINTS = 32
CHAINS, BURN_IN = 4, 50
STEPS = {"surrogate, coarse, fine": 200, "fine": 800}
"""Fine steps of each chain, by its levels; a chain on one level needs more."""
SUBCHAINS = (5, 2)
"""Surrogate steps between two of the coarse mesh, and coarse steps between two of the fine one."""


def train(path: Path) -> bytes:
    """An ONNX file of a Gaussian process, trained on a sweep of the fine model."""
    near = (PRIOR_MEAN[0] - 3 * PRIOR_SD, PRIOR_MEAN[0] + 3 * PRIOR_SD)
    with farm.sweep(
        f"{ROD}:Fine",
        {"resistance": near},
        design="sobol",
        n=TRAINING_POINTS,
        seed=1,
        out=path,
        show=False,
    ):
        pass  # leaving the block waits for the last point
    with h5py.File(path) as file:
        points, readings = file["theta"][:], file["out_0"][:]
    process = GaussianProcessRegressor(RBF(6.0), alpha=1e-8, optimizer=None, normalize_y=True)
    pipeline = make_pipeline(StandardScaler(), process).fit(points, readings)
    graph: bytes = to_onnx(pipeline, points[:1]).SerializeToString()
    return graph


@dataclass
class Chain:
    """Draws on the finest level, shape (draws, 2), and the evaluations of each level."""

    draws: Array
    calls: list[int]


class Level:
    """A model of the farm that counts its evaluations."""

    def __init__(self, model: farm.RemoteModel) -> None:
        self.model, self.calls = model, 0

    def __call__(self, theta: Array) -> Array:
        self.calls += 1
        return np.asarray(self.model(theta)).ravel()


def sample(models: Sequence[farm.RemoteModel], readings: Array, steps: int, seed: int) -> Chain:
    """One chain of tinyDA over the models, from the coarsest to the finest."""
    np.random.seed(seed)
    levels = [Level(model) for model in models]
    prior = multivariate_normal(PRIOR_MEAN, PRIOR_SD**2 * np.eye(2))
    likelihood = tda.GaussianLogLike(readings, NOISE_SD**2 * np.eye(len(readings)))
    posteriors = [tda.Posterior(prior, likelihood, level) for level in levels]
    proposal = tda.AdaptiveMetropolis(0.02**2 * np.eye(2), t0=50, period=50, adaptive=True)
    subchains = list(SUBCHAINS[: len(levels) - 1]) or 1
    silent = io.StringIO()  # tinyDA shows a bar for each chain
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        found = tda.sample(
            posteriors, proposal, steps, initial_parameters=PRIOR_MEAN, subchain_length=subchains
        )
    finest = "chain_0" if len(levels) == 1 else f"chain_l{len(levels) - 1}_0"
    draws = np.array([link.parameters for link in found[finest]])
    return Chain(draws[BURN_IN:], [level.calls for level in levels])


def sample_chains(
    processes: ProcessPoolExecutor,
    models: Sequence[farm.RemoteModel],
    readings: Array,
    steps: int,
) -> tuple[Array, list[int]]:
    """Draws of all chains, shape (chains, draws, 2), and the evaluations of each level."""
    started = [processes.submit(sample, models, readings, steps, seed) for seed in range(CHAINS)]
    chains = [each.result() for each in started]
    calls = [sum(chain.calls[i] for chain in chains) for i in range(len(models))]
    return np.stack([chain.draws for chain in chains]), calls


def independent(draws: Array) -> float:
    """How many independent draws the chains are worth, at least."""
    ess: Callable[[Array], float] = arviz.ess
    return min(ess(draws[..., i]) for i in range(2))


def posterior(readings: Array) -> tuple[Array, Array]:
    """Mean and covariance of the posterior in closed form: the exact model is linear."""
    matrix = exact()
    precision = matrix.T @ matrix / NOISE_SD**2 + np.eye(2) / PRIOR_SD**2
    covariance = np.asarray(np.linalg.inv(precision), float)
    shift = matrix.T @ (readings - matrix @ PRIOR_MEAN) / NOISE_SD**2
    return PRIOR_MEAN + covariance @ shift, covariance


def main() -> None:
    noise = NOISE_SD * np.random.default_rng(3).standard_normal(4)
    readings = exact() @ TRUTH + noise
    mean, covariance = posterior(readings)
    sd = np.sqrt(np.diag(covariance))
    fine_calls_per_draw, checks = {}, []
    with tempfile.TemporaryDirectory() as name:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["arviz", "skl2onnx", "tinyDA"])  # slow to import: once
        surrogate = Path(name) / "surrogate.onnx"
        surrogate.write_bytes(train(Path(name) / "train.h5"))
        with (
            farm.serve(f"{ROD}:Fine", f"{ROD}:Coarse", surrogate, workers=2) as client,
            ProcessPoolExecutor(CHAINS, context) as processes,
        ):
            for title, steps in STEPS.items():
                models = [client.model(level) for level in title.split(", ")]
                draws, calls = sample_chains(processes, models, readings, steps)
                effective = independent(draws)
                paid = calls[-1] + (TRAINING_POINTS if len(models) > 1 else 0)
                fine_calls_per_draw[title] = paid / effective
                print(f"{title}: {' + '.join(map(str, calls))} evaluations", end=", ")
                print(f"{effective:.0f} independent draws")
                allowed = 5.0 / np.sqrt(effective)  # five standard errors, in units of sd
                for i, half in enumerate(("left", "right")):
                    found = draws[..., i]
                    checks.append(
                        (f"{title}: {half}, mean", found.mean(), mean[i], allowed * sd[i])
                    )
                    checks.append((f"{title}: {half}, sd", found.std(), sd[i], allowed * sd[i]))

    for title, value, expected, within in checks:
        print(f"{title:42} {value:9.5f}   expected {expected:9.5f} within {within:.5f}")
        if abs(value - expected) > within:
            raise SystemExit(f"{title} is {value:g}, expected {expected:g} within {within:g}")
    three, one = fine_calls_per_draw.values()
    print(f"fine evaluations per draw: {one:.1f} on the fine mesh alone, {three:.1f} over levels")
    print(f"fewer by a factor of {one / three:.1f}, expected at least 3")
    if one / three < 3.0:
        raise SystemExit("the levels save too few fine evaluations")


if __name__ == "__main__":
    main()
