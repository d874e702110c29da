"""Criteria that look one observation ahead at the set where the process is above a level.

For an observation at x and a point q, the probability that q is below the level after the
observation has a closed form for a yes or no, by the bivariate normal distribution, and takes one
quadrature for a normal outcome. Source: Letham, Guan, Tymms, Bakshy and Shvartsman, Look-Ahead
Acquisition Functions for Bernoulli Level Set Estimation, AISTATS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from farm.experiment.models.latent import Latent
from farm.experiment.models.normal import LEAST_VARIANCE, bivariate_cdf, cdf, entropy, nodes


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Probabilities of being below the level, before and after an observation.

    below: shape (b or 1, q), now. after: shape (b, q, k), for each of k outcomes; weights: shape
    (b, k) or (k,), their probabilities.
    """

    below: Tensor
    after: Tensor
    weights: Tensor

    def expected(self, of_after: Tensor) -> Tensor:
        """The mean over outcomes (..., k)."""
        weights = self.weights if self.weights.dim() == 1 else self.weights[:, None, :]
        return (of_after * weights).sum(-1)

    def information(self) -> Tensor:
        """By how much the entropy of above or below falls, the mean over the points: shape (b,)."""
        return (entropy(self.below) - self.expected(entropy(self.after))).mean(-1)

    def volume_change(self) -> Tensor:
        """The expected absolute change of the part of the points that is below: shape (b,)."""
        change = (self.after.mean(-2) - self.below.mean(-1)[:, None]).abs()
        return (change * self.weights).sum(-1)


class Observed:
    """What an observation at x would tell about points q, fixed ones or x itself."""

    def __init__(self, latent: Latent, points: Tensor, level: float, *, binary: bool) -> None:
        """points: rows (q, r). level: of the process. binary: a probit observation."""
        self._latent = latent
        self._points = points
        self._level = level
        self._binary = binary
        with torch.no_grad():
            self._explained = latent.explained(points)
            self._mean, self._variance = latent.moments(points)

    def everywhere(self, rows: Tensor) -> Ahead:
        """For rows (b, r), at the points."""
        mean, variance = self._latent.moments(rows)
        covariance = self._latent.covariance(rows, self._points, self._explained)
        return self._ahead(mean, variance, self._mean[None], self._variance[None], covariance)

    def here(self, rows: Tensor) -> Ahead:
        """For rows (b, r), at these themselves."""
        mean, variance = self._latent.moments(rows)
        own = variance[:, None]
        return self._ahead(mean, variance, mean[:, None], own, own)

    def _ahead(
        self, mean: Tensor, variance: Tensor, q_mean: Tensor, q_variance: Tensor, joint: Tensor
    ) -> Ahead:
        """mean, variance: of x, shape (b,); of q: (b or 1, q); joint: covariance, (b, q)."""
        sd = torch.sqrt(q_variance)
        height = (self._level - q_mean) / sd
        below = cdf(height)
        if not self._binary:
            noise = self._latent.prior.noise
            step = joint / torch.sqrt(variance + noise)[:, None]
            left = (q_variance - step**2).clamp_min(LEAST_VARIANCE)
            values, weights = nodes(torch.zeros_like(step), torch.ones_like(step))
            after = cdf(
                (self._level - q_mean[..., None] - step[..., None] * values)
                / torch.sqrt(left)[..., None]
            )
            return Ahead(below, after, weights)
        spread = torch.sqrt(1 + variance)
        yes = cdf(mean / spread)
        rho = (-joint / (sd * spread[:, None])).clamp(-1 + 1e-9, 1 - 1e-9)
        both = bivariate_cdf(*torch.broadcast_tensors(height, (mean / spread)[:, None], rho))
        if_yes = both / yes[:, None].clamp_min(1e-12)
        if_no = (below - both) / (1 - yes)[:, None].clamp_min(1e-12)
        after = torch.stack([if_yes, if_no], -1).clamp(0.0, 1.0)
        return Ahead(below, after, torch.stack([yes, 1 - yes], -1))
