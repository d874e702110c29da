"""The numbers of a Gaussian process that make what was observed most probable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.experiment.models.latent import Prior, log_evidence
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.propagation import Sites, propagate

MOST_TRIALS = 400
"""Trials that the numbers are found from, evenly taken from all: the cost grows with the cube, and
what more trials tell of length scales is little. All trials are conditioned on afterwards."""

MOST_STEPS = 100


@dataclass(frozen=True, slots=True)
class Numbers:
    """What `Prior` is made of, as plain numbers; of features and outcomes of unit scale."""

    lengthscales: tuple[float, ...]
    amplitude: float
    mean: float
    noise: float

    def prior(self, *, pairs: bool) -> Prior:
        def tensor(value: float | tuple[float, ...]) -> Tensor:
            return torch.tensor(value, dtype=DTYPE)

        return Prior(
            tensor(self.lengthscales),
            tensor(self.amplitude),
            tensor(self.mean),
            tensor(self.noise),
            pairs=pairs,
        )


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of the numbers before any observation: (centre, spread) of normals.

    Of the logarithms of amplitude and noise, and of the mean itself. noise None: there is none.
    """

    amplitude: tuple[float, float]
    mean: tuple[float, float]
    noise: tuple[float, float] | None


REGRESSION = Belief(amplitude=(0.0, 1.0), mean=(0.0, 1.0), noise=(-5.0, 1.5))
"""Of outcomes with mean 0 and variance 1."""

PROBIT = Belief(amplitude=(math.log(4.0), 1.0), mean=(0.0, 1.5), noise=None)
"""Two standard deviations of the process lead from even odds to near certainty."""

LENGTHSCALE_SPREAD = math.sqrt(3.0)
LENGTHSCALE_BOUNDS = (0.02, 1e3)
AMPLITUDE_BOUNDS = (1e-2, 1e3)
NOISE_BOUNDS = (1e-6, 1e1)
MEAN_BOUNDS = (-10.0, 10.0)


def fit_regression(rows: Array, outcomes: Array) -> Numbers:
    """From outcomes of shape (n,) at rows (n, features)."""
    kept = _thinned(len(rows))
    x = torch.as_tensor(rows[kept], dtype=DTYPE)
    y = torch.as_tensor(outcomes[kept], dtype=DTYPE)

    def evidence(prior: Prior) -> Tensor:
        return log_evidence(prior, x, y, (1 / prior.noise).expand(len(y)))

    return _most_probable(evidence, features=x.shape[-1], belief=REGRESSION, pairs=False)


def fit_probit(rows: Array, signs: Array, *, features: int, pairs: bool) -> Numbers:
    """From signs, -1 or 1, of shape (n,) at rows (n, r)."""
    kept = _thinned(len(rows))
    x = torch.as_tensor(rows[kept], dtype=DTYPE)
    s = torch.as_tensor(signs[kept], dtype=DTYPE)
    last: list[Sites] = []

    def evidence(prior: Prior) -> Tensor:
        sites = propagate(prior, x, s, last[-1] if last else None)
        last[:] = [sites]
        normal = log_evidence(prior, x, sites.targets, sites.precision)
        # With the sites held, the gradient of the normal evidence is that of the real one
        # (Seeger 2005, Expectation Propagation for Exponential Families); the values differ.
        return normal + (sites.log_evidence - normal.detach())

    return _most_probable(evidence, features=features, belief=PROBIT, pairs=pairs)


def _thinned(n: int) -> Array:
    return np.unique(np.linspace(0, n - 1, min(n, MOST_TRIALS)).round().astype(int))


def _most_probable(
    evidence: Callable[[Prior], Tensor], *, features: int, belief: Belief, pairs: bool
) -> Numbers:
    """The best of two searches: one from smooth functions, one from rough ones."""
    from scipy.optimize import minimize

    # The centre that BoTorch gives to length scales: it grows with the diagonal of the cube.
    centre = math.sqrt(2.0) + 0.5 * math.log(features) - 3.0
    bounds = [tuple(map(math.log, LENGTHSCALE_BOUNDS))] * features
    bounds += [tuple(map(math.log, AMPLITUDE_BOUNDS)), MEAN_BOUNDS]
    bounds += [tuple(map(math.log, NOISE_BOUNDS))]

    def prior_of(theta: Tensor) -> Prior:
        lengthscales = theta[:features].exp()
        return Prior(lengthscales, theta[-3].exp(), theta[-2], theta[-1].exp(), pairs=pairs)

    def loss(point: Array) -> tuple[float, Array]:
        theta = torch.tensor(point, dtype=DTYPE, requires_grad=True)
        total = evidence(prior_of(theta)) + _log_belief(theta, centre, belief, features)
        (gradient,) = torch.autograd.grad(-total, theta)
        return -float(total.detach()), gradient.numpy()

    best, least = None, math.inf
    for log_scale in (centre + 0.5, centre - 1.0):
        noise = belief.noise[0] if belief.noise else 0.0
        start = np.array([log_scale] * features + [belief.amplitude[0], belief.mean[0], noise])
        start = np.clip(start, *np.array(bounds).T)
        found = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MOST_STEPS}
        )
        if best is None or found.fun < least:
            best, least = found.x, float(found.fun)
    assert best is not None
    return Numbers(
        tuple(float(value) for value in np.exp(best[:features])),
        amplitude=float(np.exp(best[-3])),
        mean=float(best[-2]),
        noise=float(np.exp(best[-1])),
    )


def _log_belief(theta: Tensor, centre: float, belief: Belief, features: int) -> Tensor:
    def normal(value: Tensor, about: tuple[float, float]) -> Tensor:
        return -0.5 * (((value - about[0]) / about[1]) ** 2).sum()

    total = normal(theta[:features], (centre, LENGTHSCALE_SPREAD))
    total = total + normal(theta[-3], belief.amplitude) + normal(theta[-2], belief.mean)
    return total + (normal(theta[-1], belief.noise) if belief.noise else 0.0)
