"""Criteria that are functions of mean and variance at a point, with gradients in closed form.

Recording their operations for automatic differentiation takes longer than they do.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.experiment.models.exact import Exact

LOG_ROOT = 0.5 * math.log(2 * math.pi)

Criterion = Callable[[Tensor], Tensor]
"""Maps positions (b, stimuli, d) to numbers (b,); greater is better."""


def graded(criterion: Criterion, points: Array) -> tuple[Array, Array]:
    """Return a criterion's values (b,) at points (b, stimuli, d), and its gradients there."""
    if isinstance(criterion, OfMoments) and criterion.smooth:
        return criterion.graded(points)
    with torch.enable_grad():
        places = torch.tensor(points, requires_grad=True)
        values = criterion(places)
        (gradients,) = torch.autograd.grad(values.sum(), places)
    return values.detach().numpy(), gradients.numpy()


class OfMoments(ABC):
    """A criterion of the posterior in closed form."""

    def __init__(self, exact: Exact) -> None:
        self._exact = exact

    @property
    def smooth(self) -> bool:
        """Whether all coordinates are numbers, so that `graded` may be called."""
        return not self._exact.encoded

    @abstractmethod
    def rated(self, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        """Return the values, and the derivatives by the mean and by the variance, each (b,)."""

    def __call__(self, points: Tensor) -> Tensor:
        """Return the values (b,) at points (b, 1, d), differentiable by autograd."""
        values: Tensor = _Rated.apply(*self._exact.moments(points[:, 0]), self)
        return values

    def graded(self, points: Array) -> tuple[Array, Array]:
        """Return the values (b,) at points (b, 1, d), and the gradients (b, 1, d)."""
        mean, variance, slope = self._exact.steep(points[:, 0])
        values, by_mean, by_variance = self.rated(mean, variance)
        return values, slope(by_mean, by_variance)[:, None]


class _Rated(torch.autograd.Function):  # type: ignore[misc]  # torch's is untyped
    """`OfMoments.rated` as one step of autograd."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, criterion: OfMoments) -> Tensor:
        values, *by_moments = criterion.rated(mean.numpy(), variance.numpy())
        ctx.save_for_backward(*map(torch.from_numpy, by_moments))
        return torch.from_numpy(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        by_mean, by_variance = ctx.saved_tensors
        return gradients[0] * by_mean, gradients[0] * by_variance, None


class LogImprovement(OfMoments):
    """The logarithm of the expected improvement over `best`.

    Source: Ament et al., Unexpected Improvements to Expected Improvement, 2023, section 4.1.
    """

    def __init__(self, exact: Exact, best: float) -> None:
        super().__init__(exact)
        self._best = best

    def rated(self, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        from scipy.special import log_ndtr

        spread = np.sqrt(variance)
        u = (mean - self._best) / spread
        excess = log_excess(u)
        by_mean = np.exp(log_ndtr(u) - excess) / spread
        by_variance = np.exp(-0.5 * u * u - LOG_ROOT - excess) / (2 * variance)
        return excess + np.log(spread), by_mean, by_variance


class UpperBound(OfMoments):
    """The mean plus sqrt(beta) standard deviations."""

    def __init__(self, exact: Exact, beta: float) -> None:
        super().__init__(exact)
        self._root = math.sqrt(beta)

    def rated(self, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        spread = np.sqrt(variance)
        return mean + self._root * spread, np.ones_like(mean), self._root / (2 * spread)


def log_excess(u: Array) -> Array:
    """Return log(density(u) + u * cdf(u)): of the expected excess of a standard normal over -u.

    Below -1 the sum cancels; it is then the density times 1 - |u| cdf(u) / density(u), and below
    -1000 the second factor is the start of its asymptotic series.
    """
    from scipy.special import erfcx, ndtr

    near, far = np.maximum(u, -1.0), np.maximum(-u, 1.0)
    some, farthest = np.minimum(far, 1e3), np.maximum(far, 1e3)
    direct = np.log(np.exp(-0.5 * near * near - LOG_ROOT) + near * ndtr(near))
    share = some * erfcx(some * math.sqrt(0.5)) * math.sqrt(math.pi / 2)
    tail = np.where(far < 1e3, np.log1p(-share), np.log((1 - 3 / farthest**2) / farthest**2))
    excess: Array = np.where(u > -1.0, direct, tail - 0.5 * far * far - LOG_ROOT)
    return excess
