"""Criteria that look one observation ahead at the set where the process is above a level.

For an observation at x and a point q, the probability that q is below the level after the
observation has a closed form for a binary outcome, by the bivariate normal distribution, and takes
one quadrature for a normal outcome. Source: Letham, Guan, Tymms, Bakshy and Shvartsman, Look-Ahead
Acquisition Functions for Bernoulli Level Set Estimation, AISTATS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from farm.experiment.models.normal import LEAST_VARIANCE, bivariate_cdf, cdf, entropy, nodes


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Probabilities of being below the level, before and after an observation.

    below: before, shape (b or 1, q). after: shape (b, q, k), for each of k outcomes; weights: the
    probabilities of the outcomes, shape (b, k) or (k,).
    """

    below: Tensor
    after: Tensor
    weights: Tensor

    def expected(self, of_after: Tensor) -> Tensor:
        """Return the mean over outcomes (..., k)."""
        weights = self.weights if self.weights.dim() == 1 else self.weights[:, None, :]
        return (of_after * weights).sum(-1)

    def information(self) -> Tensor:
        """Return the expected reduction of the entropy of above or below, shape (b,).

        It is the mean over the points.
        """
        return (entropy(self.below) - self.expected(entropy(self.after))).mean(-1)

    def volume_change(self) -> Tensor:
        """Return the expected absolute change of the fraction of points below, shape (b,)."""
        change = (self.after.mean(-2) - self.below.mean(-1)[:, None]).abs()
        return (change * self.weights).sum(-1)


def look_ahead(
    mean: Tensor,
    variance: Tensor,
    point_mean: Tensor,
    point_variance: Tensor,
    covariance: Tensor,
    level: float,
    noise: Tensor | None,
) -> Ahead:
    """Return the probabilities that points q are below the level, before and after observing x.

    mean, variance: of the process at x, shape (b,); at the points: (b or 1, q); covariance: of
    both, (b, q). noise: variance (b,) of a normal observation; None: a binary observation through a
    probit.
    """
    sd = torch.sqrt(point_variance)
    height = (level - point_mean) / sd
    below = cdf(height)
    if noise is not None:
        step = covariance / torch.sqrt(variance + noise)[:, None]
        left = (point_variance - step**2).clamp_min(LEAST_VARIANCE)
        values, weights = nodes(torch.zeros_like(step), torch.ones_like(step))
        moved = level - point_mean[..., None] - step[..., None] * values
        return Ahead(below, cdf(moved / torch.sqrt(left)[..., None]), weights)
    spread = torch.sqrt(1 + variance)
    yes = cdf(mean / spread)
    rho = (-covariance / (sd * spread[:, None])).clamp(-1 + 1e-9, 1 - 1e-9)
    both = bivariate_cdf(*torch.broadcast_tensors(height, (mean / spread)[:, None], rho))
    if_yes = both / yes[:, None].clamp_min(1e-12)
    if_no = (below - both) / (1 - yes)[:, None].clamp_min(1e-12)
    after = torch.stack([if_yes, if_no], -1).clamp(0.0, 1.0)
    return Ahead(below, after, torch.stack([yes, 1 - yes], -1))
