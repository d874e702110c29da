"""Gaussian-process regression in closed form: its fit and its posterior.

The model is BoTorch's SingleTaskGP, whose layers take ten times as long as the arithmetic. So the
fit maximises the same objective by analytic gradients, and the posterior is computed from the
fitted numbers. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
sections 2.2 and 5.4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from farm.call import Array
from farm.experiment.models.normal import LEAST_VARIANCE

STEPS = {"maxiter": 200, "ftol": 1e-7, "gtol": 1e-4}
"""Settings of a fit: further steps change nothing visible."""

GREATEST = 1e6
"""Bound of all numbers of a model: outcomes have variance 1, and features lie in the unit cube."""

IMPOSSIBLE = 1e10
"""Value of numbers whose covariance matrix is not positive definite in floating point."""


class Objective:
    """Minus gpytorch's ExactMarginalLogLikelihood, which adds the priors, of a model's numbers.

    These are the mean, and the logarithms of amplitude, noise variance and length scales.
    """

    def __init__(self, model: SingleTaskGP) -> None:
        """model: a scaled RBF kernel with log-normal priors, in training mode."""
        from scipy.linalg import lapack

        self._factor, self._inverse = lapack.dpotrf, lapack.dpotri
        kernel, likelihood = model.covar_module, model.likelihood
        self._x: Array = model.transform_inputs(model.train_inputs[0]).numpy()
        self._y: Array = model.train_targets.numpy()
        d = self._x.shape[1]
        scales = kernel.base_kernel
        priors: list[tuple[LogNormalPrior, float, int]] = [
            (kernel.outputscale_prior, _least(kernel, "raw_outputscale"), 1),
            (likelihood.noise_covar.noise_prior, _least(likelihood.noise_covar, "raw_noise"), 1),
            (scales.lengthscale_prior, _least(scales, "raw_lengthscale"), d),
        ]
        self._centre = np.repeat([float(p.loc) for p, _, _ in priors], [c for *_, c in priors])
        self._width = np.repeat([float(p.scale) for p, _, _ in priors], [c for *_, c in priors])
        least = np.repeat([least for _, least, _ in priors], [c for *_, c in priors])
        self._constant = float(np.log(self._width).sum() + len(least) * math.log(2 * math.pi) / 2)
        self.bounds = [(None, None), *((math.log(b), math.log(GREATEST)) for b in least)]

    def __call__(self, numbers: Array) -> tuple[float, Array]:
        """Return the value and its gradient; `IMPOSSIBLE` where there is none."""
        n = len(self._y)
        amplitude, noise = np.exp(numbers[1:3])
        scaled = self._x * np.exp(-numbers[3:])
        smooth = amplitude * np.exp(-0.5 * _squared_distances(scaled))
        covariance = smooth.copy()
        covariance.flat[:: n + 1] += noise
        factor, failed = self._factor(covariance, lower=1)
        if failed:
            return IMPOSSIBLE, np.zeros_like(numbers)
        inverse, _ = self._inverse(factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        rest = self._y - numbers[0]
        weights = inverse @ rest
        logs = numbers[1:]
        off = (logs - self._centre) / self._width
        value = (
            0.5 * rest @ weights
            + np.log(np.diagonal(factor)).sum()
            + 0.5 * n * math.log(2 * math.pi)
            + (logs + 0.5 * off**2).sum()
            + self._constant
        )
        # The derivative by the covariance matrix, and with the smooth part's own derivative.
        slope = inverse - np.outer(weights, weights)
        moved = slope * smooth
        # The sum over pairs of moved * (x_i - x_j)^2 without a matrix for each feature.
        spread = 2 * (moved.sum(1) @ scaled**2 - ((moved @ scaled) * scaled).sum(0))
        of_likelihood = 0.5 * np.array([moved.sum(), noise * np.trace(slope), *spread])
        gradient = np.concatenate([[-weights.sum()], of_likelihood + 1 + off / self._width])
        return float(value) / n, gradient / n


def _least(module: Any, name: str) -> float:
    """Return the lower bound of a parameter of a gpytorch module."""
    return float(module.constraint_for_parameter_name(name).lower_bound)


def _squared_distances(x: Array) -> Array:
    norms = (x**2).sum(1)
    distances: Array = np.maximum(norms[:, None] + norms[None] - 2 * x @ x.T, 0.0)
    return distances


def fit(model: SingleTaskGP) -> None:
    """Set a model's numbers to the most probable ones, from its present ones on; then `eval` it."""
    from scipy.optimize import minimize

    objective = Objective(model)
    found = minimize(
        objective, numbers_of(model), jac=True, method="L-BFGS-B", bounds=objective.bounds,
        options=STEPS,
    )  # fmt: skip
    if found.fun < IMPOSSIBLE:  # otherwise keep the most probable values of the priors
        mean, (amplitude, noise, *scales) = found.x[0], np.exp(found.x[1:])
        with torch.no_grad():
            model.mean_module.constant.fill_(mean)
            model.covar_module.raw_outputscale.fill_(amplitude)
            model.likelihood.noise_covar.raw_noise.fill_(noise)
            model.covar_module.base_kernel.raw_lengthscale.copy_(torch.tensor([scales]))
    model.eval()


def numbers_of(model: SingleTaskGP) -> Array:
    """Return the numbers of a model as `Objective` takes them."""
    kernel = model.covar_module
    positive = (kernel.outputscale, model.likelihood.noise, kernel.base_kernel.lengthscale)
    logs = [np.log(part.detach().numpy().ravel()) for part in positive]
    return np.concatenate([[model.mean_module.constant.item()], *logs])


class Exact:
    """The posterior of a fitted model, for outcomes of mean 0 and variance 1."""

    def __init__(self, model: SingleTaskGP) -> None:
        self._encoding = getattr(model, "input_transform", None)
        self._scales: Array = model.covar_module.base_kernel.lengthscale.detach()[0].numpy()
        self._amplitude = model.covar_module.outputscale.item()
        self._noise = model.likelihood.noise.item()
        self._told = len(model.train_targets)
        self._constant = model.mean_module.constant.item()
        # In evaluation mode the model has transformed its inputs already.
        self._x: Array = model.train_inputs[0].detach().numpy() / self._scales
        self._norms: Array = (self._x**2).sum(1)
        rest = model.train_targets.detach().numpy() - self._constant
        self._inverse = self._root()
        self._weights: Array = self._inverse.T @ (self._inverse @ rest)

    def _root(self) -> Array:
        """Return the inverse of the Cholesky factor of the covariance of the observations."""
        from scipy.linalg import lapack

        covariance = self._shared(self._x)
        noise = np.where(np.arange(len(covariance)) < self._told, self._noise, 0.0)
        for extra in (noise, 1e-6 * self._amplitude):
            covariance.flat[:: len(covariance) + 1] += extra
            factor, failed = lapack.dpotrf(covariance, lower=1)
            if not failed:
                break
            # Otherwise there are trials that repeat, with almost no noise.
        inverse: Array = lapack.dtrtri(factor, lower=1)[0]
        return inverse

    def _shared(self, scaled: Array) -> Array:
        """Return the covariance (b, n) of f at scaled features and at the trials."""
        squared = (scaled**2).sum(1)[:, None] + self._norms - 2 * scaled @ self._x.T
        covariance: Array = self._amplitude * np.exp(-0.5 * np.maximum(squared, 0.0))
        return covariance

    def _scaled(self, points: Tensor) -> Tensor:
        encoded = points if self._encoding is None else self._encoding(points)
        return encoded / torch.from_numpy(self._scales)

    def believing(self, pending: Tensor) -> Exact:
        """Return the posterior after f was found at `pending` (p, d) to be as this one expects.

        Found without noise: otherwise the same place would be the most promising one again.
        """
        if not len(pending):
            return self
        later = object.__new__(Exact)
        later.__dict__ = dict(self.__dict__)
        later._x = np.concatenate([self._x, self._scaled(pending).numpy()])
        later._norms = (later._x**2).sum(1)
        later._inverse = later._root()
        # An expected outcome leaves the mean as it is, so its weight is 0.
        later._weights = np.concatenate([self._weights, np.zeros(len(pending))])
        return later

    @property
    def encoded(self) -> bool:
        """Whether features are made from choices, so that `steep` has no gradients."""
        return self._encoding is not None

    def moments(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of f at points (b, d), both of shape (b,)."""
        explained, variance = _Moments.apply(self._scaled(points), self)
        return self._constant + explained, variance

    def steep(self, points: Array) -> tuple[Array, Array, Callable[[Array, Array], Array]]:
        """Return mean and variance of f at points (b, d) that are not encoded, and their slope."""
        explained, variance, slope = self.terms(points / self._scales)
        return (
            self._constant + explained,
            variance,
            lambda by_mean, by_variance: slope(by_mean, by_variance) / self._scales,
        )

    def terms(self, scaled: Array) -> tuple[Array, Array, Callable[[Array, Array], Array]]:
        """Return the moments at scaled features (b, d), the mean without its constant."""
        shared = self._shared(scaled)
        white = shared @ self._inverse.T
        variance = np.maximum(self._amplitude - (white * white).sum(1), LEAST_VARIANCE)

        def slope(by_mean: Array, by_variance: Array) -> Array:
            pull = by_mean[:, None] * self._weights
            pull = (pull - 2 * by_variance[:, None] * (white @ self._inverse)) * shared
            gradients: Array = pull @ self._x - pull.sum(1, keepdims=True) * scaled
            return gradients

        return shared @ self._weights, variance, slope

    def joint(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (b,) and covariance (b, b) of f at points (b, d)."""
        scaled = self._scaled(points)
        shared = self._covariance(scaled, torch.from_numpy(self._x))
        explained = shared @ torch.from_numpy(self._inverse).T
        covariance = self._covariance(scaled, scaled) - explained @ explained.T
        return self._constant + shared @ torch.from_numpy(self._weights), covariance

    def _covariance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the covariance of f at scaled features."""
        norms = (a**2).sum(-1)[:, None] + (b**2).sum(-1)
        return self._amplitude * torch.exp(-0.5 * (norms - 2 * a @ b.T).clamp_min(0.0))


class _Moments(torch.autograd.Function):  # type: ignore[misc]  # torch's is untyped
    """`Exact.terms` as one step of autograd: recording each operation costs more than it does."""

    @staticmethod
    def forward(ctx: Any, scaled: Tensor, exact: Exact) -> tuple[Tensor, Tensor]:
        mean, variance, ctx.slope = exact.terms(scaled.numpy())
        return torch.from_numpy(mean), torch.from_numpy(variance)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        by_mean, by_variance = (part.numpy() for part in gradients)
        return torch.from_numpy(ctx.slope(by_mean, by_variance)), None
