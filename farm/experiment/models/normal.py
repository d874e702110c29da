"""Closed forms for normal variables, on tensors and differentiable by autograd."""

from __future__ import annotations

import math

import torch
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.legendre import leggauss
from torch import Tensor

DTYPE = torch.float64

_NODES, _WEIGHTS = (torch.tensor(part, dtype=DTYPE) for part in leggauss(40))
_HERMITE, _HERMITE_WEIGHTS = (torch.tensor(part, dtype=DTYPE) for part in hermegauss(24))
_HERMITE_WEIGHTS = _HERMITE_WEIGHTS / _HERMITE_WEIGHTS.sum()

LEAST_VARIANCE = 1e-12


def cdf(x: Tensor) -> Tensor:
    """Return the distribution function of the standard normal."""
    return torch.special.ndtr(x)


def quantile(p: float) -> float:
    """Return the quantile of the standard normal at p, in (0, 1)."""
    return float(torch.special.ndtri(torch.tensor(p, dtype=DTYPE)))


def owens_t(h: Tensor, a: Tensor) -> Tensor:
    """Return Owen's T function for 0 <= a <= 1, by Gauss-Legendre quadrature of its definition."""
    x = a[..., None] * (_NODES + 1) / 2
    inside = torch.exp(-0.5 * h[..., None] ** 2 * (1 + x**2)) / (1 + x**2)
    return (inside * _WEIGHTS).sum(-1) * a / (4 * math.pi)


def bivariate_cdf(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """Return P(x <= h, y <= k) of standard normal x and y with correlation rho, |rho| < 1.

    Source: Drezner and Wesolowsky (1990), the integral over the angle whose sine is rho.
    """
    angle = torch.asin(rho)[..., None] * (_NODES + 1) / 2
    sine, cosine = torch.sin(angle), torch.cos(angle)
    h_, k_ = h[..., None], k[..., None]
    inside = torch.exp(-(h_**2 + k_**2 - 2 * h_ * k_ * sine) / (2 * cosine**2))
    integral = (inside * _WEIGHTS).sum(-1) * torch.asin(rho) / (4 * math.pi)
    return cdf(h) * cdf(k) + integral


def probit_mean(mean: Tensor, variance: Tensor) -> Tensor:
    """Return the mean of cdf(f) for a normal f."""
    return cdf(mean / torch.sqrt(1 + variance))


def probit_variance(mean: Tensor, variance: Tensor) -> Tensor:
    """Return the variance of cdf(f) for a normal f, by Owen's T function."""
    h = mean / torch.sqrt(1 + variance)
    p = cdf(h)
    # The second moment is p - 2 T; p - p^2 is written in a form without cancellation near 0 and 1.
    return (p * cdf(-h) - 2 * owens_t(h, 1 / torch.sqrt(1 + 2 * variance))).clamp_min(0.0)


def nodes(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return values of a normal variable, on a new last axis, and their weights (Gauss-Hermite)."""
    return mean[..., None] + torch.sqrt(variance)[..., None] * _HERMITE, _HERMITE_WEIGHTS


def entropy(p: Tensor) -> Tensor:
    """Return the entropy in nats of a binary outcome with probability p."""
    p = p.clamp(1e-12, 1 - 1e-12)
    return -(p * torch.log(p) + (1 - p) * torch.log1p(-p))
