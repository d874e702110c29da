"""The Gaussian process behind every surrogate, given observations of it with normal noise.

A row is what the process is observed at: the features of a point, or of a pair. Rows of pairs are
`[first, second, w]` and stand for f(second) - w f(first): w = 1 is a comparison, w = 0 the second
point alone; so one process answers for utilities and for comparisons alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from farm.experiment.models.normal import DTYPE, LEAST_VARIANCE

JITTER = 1e-9
"""Part of the amplitude that keeps joint covariances positive in double precision."""


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """A Gaussian process: squared-exponential kernel, one length scale per feature.

    lengthscales: shape (features,). amplitude: variance of f. mean: of f. noise: variance of an
    observation, where that is normal. Each a tensor, so that gradients go through.
    """

    lengthscales: Tensor
    amplitude: Tensor
    mean: Tensor
    noise: Tensor
    pairs: bool = False

    def covariance(self, left: Tensor, right: Tensor) -> Tensor:
        """Shape (..., n, m) of rows (..., n, r) and (..., m, r)."""
        if not self.pairs:
            return self._kernel(left, right)
        a, b, w = self._split(left)
        c, d, v = self._split(right)
        w, v = w[..., :, None], v[..., None, :]
        alone = self._kernel(b, d)
        if not (bool(w.any()) or bool(v.any())):
            return alone
        k_bc, k_ad, k_ac = self._kernel(b, c), self._kernel(a, d), self._kernel(a, c)
        return alone - v * k_bc - w * k_ad + w * v * k_ac

    def variance(self, rows: Tensor) -> Tensor:
        """Shape (...,) of rows (..., r)."""
        if not self.pairs:
            return self.amplitude.expand(rows.shape[:-1])
        a, b, w = self._split(rows)
        between = self.amplitude * torch.exp(-0.5 * (((a - b) / self.lengthscales) ** 2).sum(-1))
        return self.amplitude * (1 + w**2) - 2 * w * between

    def mean_of(self, rows: Tensor) -> Tensor:
        """Shape (...,) of rows (..., r)."""
        if not self.pairs:
            return self.mean.expand(rows.shape[:-1])
        return self.mean * (1 - rows[..., -1])

    def _kernel(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = left / self.lengthscales, right / self.lengthscales
        squared = (left**2).sum(-1)[..., :, None] + (right**2).sum(-1)[..., None, :]
        squared = (squared - 2 * left @ right.mT).clamp_min(0.0)
        return self.amplitude * torch.exp(-0.5 * squared)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = self.lengthscales.shape[0]
        return rows[..., :half], rows[..., half : 2 * half], rows[..., -1]


class Latent(Model):  # type: ignore[misc]  # botorch's types are not read
    """The process f, given `targets` seen at `rows` with normal noise of the given `precision`.

    rows: shape (n, r); targets, precision: shape (n,), precision above 0.
    """

    num_outputs = 1
    batch_shape = torch.Size()

    def __init__(self, prior: Prior, rows: Tensor, targets: Tensor, precision: Tensor) -> None:
        super().__init__()
        self.prior = prior
        self.rows = rows
        self.targets = targets
        self.precision = precision
        self._root = torch.sqrt(precision)
        # I + S K S is well conditioned where rows repeat, K is not.
        scaled = self._root[:, None] * prior.covariance(rows, rows) * self._root
        scaled.diagonal().add_(1.0)
        self._factor = torch.linalg.cholesky(scaled)
        residual = self._root * (targets - prior.mean_of(rows))
        self._alpha = self._root * torch.cholesky_solve(residual[:, None], self._factor)[:, 0]

    def explained(self, rows: Tensor) -> Tensor:
        """Shape (..., m, n) of rows (..., m, r): its products are the covariance observed away."""
        known = self.prior.covariance(rows.reshape(-1, rows.shape[-1]), self.rows) * self._root
        solved = torch.linalg.solve_triangular(self._factor, known.mT, upper=False)
        return solved.mT.reshape(*rows.shape[:-1], len(self.rows))

    def mean(self, rows: Tensor) -> Tensor:
        """Shape (...,) of rows (..., r)."""
        known = self.prior.covariance(rows.reshape(-1, rows.shape[-1]), self.rows)
        return self.prior.mean_of(rows) + (known @ self._alpha).reshape(rows.shape[:-1])

    def moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f, shape (...,) each, of rows (..., r)."""
        variance = self.prior.variance(rows) - (self.explained(rows) ** 2).sum(-1)
        return self.mean(rows), variance.clamp_min(LEAST_VARIANCE)

    def covariance(self, left: Tensor, right: Tensor, right_explained: Tensor) -> Tensor:
        """Shape (n, m) of rows (n, r) and (m, r), with `explained` of the latter."""
        return self.prior.covariance(left, right) - self.explained(left) @ right_explained.mT

    def posterior(self, X: Tensor, *_: Any, **__: Any) -> GPyTorchPosterior:
        """Jointly at rows (..., q, r), as BoTorch's acquisition functions ask for it."""
        return self.joint(X, self.explained(X), self.mean(X))

    def joint(self, rows: Tensor, explained: Tensor, mean: Tensor) -> GPyTorchPosterior:
        """Of rows (..., q, r), from what `explained` and `mean` say of them."""
        joint = self.prior.covariance(rows, rows) - explained @ explained.mT
        jitter = JITTER * self.prior.amplitude * torch.eye(rows.shape[-2], dtype=DTYPE)
        return GPyTorchPosterior(MultivariateNormal(mean, joint + jitter))

    def believing(self, rows: Tensor, precision: Tensor) -> Latent:
        """The process as if its mean were seen at further rows: certainty grows, the mean stays."""
        if not len(rows):
            return self
        return Latent(
            self.prior,
            torch.cat([self.rows, rows]),
            torch.cat([self.targets, self.mean(rows)]),
            torch.cat([self.precision, precision]),
        )


class Anchored(Model):  # type: ignore[misc]  # botorch's types are not read
    """A process that is often asked for the same rows together with others.

    Expected improvement asks for every point along with those it is compared with: what these
    need is worked out once.
    """

    num_outputs = 1
    batch_shape = torch.Size()

    def __init__(self, latent: Latent, anchors: Tensor) -> None:
        super().__init__()
        self._latent = latent
        self._anchors = anchors
        self._explained = latent.explained(anchors)
        self._mean = latent.mean(anchors)

    def posterior(self, X: Tensor, *_: Any, **__: Any) -> GPyTorchPosterior:
        """Jointly at rows (..., q, r), the first of which may be the anchors."""
        count = len(self._anchors)
        first, rest = X[..., :count, :], X[..., count:, :]
        if first.shape[-2] < count or not bool((first == self._anchors).all()):
            return self._latent.posterior(X)
        many = X.shape[:-2]
        explained = self._explained.expand(*many, *self._explained.shape)
        return self._latent.joint(
            X,
            torch.cat([explained, self._latent.explained(rest)], -2),
            torch.cat([self._mean.expand(*many, count), self._latent.mean(rest)], -1),
        )


def log_evidence(prior: Prior, rows: Tensor, targets: Tensor, precision: Tensor) -> Tensor:
    """The log density of the targets of a Latent, as a function of its prior."""
    root = torch.sqrt(precision)
    scaled = root[:, None] * prior.covariance(rows, rows) * root
    factor = torch.linalg.cholesky(scaled + torch.eye(len(rows), dtype=DTYPE))
    residual = root * (targets - prior.mean_of(rows))
    white = torch.linalg.solve_triangular(factor, residual[:, None], upper=False)
    size = 0.5 * (white**2).sum() + factor.diagonal().log().sum() - root.log().sum()
    return -size - 0.5 * len(rows) * math.log(2 * math.pi)
