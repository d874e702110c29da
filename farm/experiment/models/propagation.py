"""Expectation propagation for yes-or-no observations of a Gaussian process through a probit.

Every observation is replaced by a normal one of the process, with a target and a precision of its
own, so that what holds for normal observations serves here as well. Source: Rasmussen and Williams,
Gaussian Processes for Machine Learning (2006), section 3.6, all sites at once and damped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farm.experiment.models.latent import Prior
from farm.experiment.models.normal import DTYPE

TOLERANCE = 1e-5
MOST_SWEEPS = 100
MEMORY = 6
NEAR = 0.05
"""Steps shorter than this are nearly linear in one another, so that they can be accelerated."""
LEAST_PRECISION = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """The normal observations that stand for the real ones, shape (n,) each.

    log_evidence: of the real ones, as expectation propagation estimates it.
    """

    targets: Tensor
    precision: Tensor
    log_evidence: float


def propagate(prior: Prior, rows: Tensor, signs: Tensor, start: Sites | None = None) -> Sites:
    """The sites for observations `signs` (-1 or 1) at `rows`, from those of `start` if given."""
    with torch.no_grad():
        return _propagate(prior, rows, signs, start)


def _propagate(prior: Prior, rows: Tensor, signs: Tensor, start: Sites | None) -> Sites:
    mean, kernel = prior.mean_of(rows), prior.covariance(rows, rows)
    tau = torch.full((len(rows),), LEAST_PRECISION, dtype=DTYPE)
    shift = torch.zeros(len(rows), dtype=DTYPE)  # tau * (target - mean)
    if start is not None:
        tau, shift = start.precision.clone(), start.precision * (start.targets - mean)
    here, steps = torch.cat([tau, shift]), _Steps()
    for _ in range(MOST_SWEEPS):
        centre, variance, _ = _marginals(kernel, tau, shift)
        there = torch.cat(_matched(mean, signs, tau, shift, centre, variance))
        if float((there - here).abs().max()) < TOLERANCE:
            break
        here = steps.next(here, there)
        here[: len(rows)].clamp_(min=LEAST_PRECISION)
        tau, shift = here.chunk(2)
    return Sites(mean + shift / tau, tau, _log_evidence(kernel, mean, signs, tau, shift))


class _Steps:
    """Anderson's acceleration of a fixed point: the last steps tell where they lead to.

    Source: Walker and Ni, Anderson Acceleration for Fixed-Point Iterations (2011).
    """

    def __init__(self) -> None:
        self._points: list[Tensor] = []
        self._residuals: list[Tensor] = []
        self._damping = 1.0
        self._size = math.inf

    def next(self, here: Tensor, there: Tensor) -> Tensor:
        """The point to go on from, having come from `here` to `there`."""
        residual = there - here
        size = float(residual.abs().max())
        if size > self._size:
            # The last step led astray: shorter ones from here, and plain ones first.
            self._points, self._residuals = [], []
            self._damping = max(self._damping / 2, 0.2)
        self._size = size
        if size > NEAR:
            return here + self._damping * residual
        self._points = [*self._points[1 - MEMORY :], here]
        self._residuals = [*self._residuals[1 - MEMORY :], residual]
        plain = here + self._damping * residual
        if len(self._points) < 3:
            return plain
        moves = torch.stack(self._points, 1).diff(dim=1)
        turns = torch.stack(self._residuals, 1).diff(dim=1)
        weights = torch.linalg.lstsq(turns, residual[:, None], driver="gelsd").solution
        return plain - ((moves + self._damping * turns) @ weights)[:, 0]


def _marginals(kernel: Tensor, tau: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (less the prior's) and variance at each observation, and the diagonal of a factor."""
    root = torch.sqrt(tau)
    scaled = root[:, None] * kernel * root
    scaled.diagonal().add_(1.0)
    factor = torch.linalg.cholesky(scaled)
    known = torch.linalg.solve_triangular(factor, root[:, None] * kernel, upper=False)
    centre = kernel @ shift - known.mT @ (known @ shift)
    return centre, kernel.diagonal() - (known**2).sum(0), factor.diagonal()


def _cavity(tau: Tensor, shift: Tensor, centre: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (less the prior's) and variance at each observation, without that observation."""
    precision = (1 / variance - tau).clamp_min(1e-10)
    return (centre / variance - shift) / precision, 1 / precision


def _matched(
    mean: Tensor, signs: Tensor, tau: Tensor, shift: Tensor, centre: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """The sites whose first two moments are those of the real observations."""
    c_mean, c_variance = _cavity(tau, shift, centre, variance)
    scale = torch.sqrt(1 + c_variance)
    z = signs * (c_mean + mean) / scale
    hazard = torch.exp(-0.5 * z**2 - torch.special.log_ndtr(z)) / math.sqrt(2 * math.pi)
    slope = signs * hazard / scale
    curvature = hazard * (z + hazard) / (1 + c_variance)
    new_tau = curvature / (1 - c_variance * curvature).clamp_min(1e-10)
    new_tau = new_tau.clamp_min(LEAST_PRECISION)
    return new_tau, new_tau * c_mean + slope * (1 + c_variance * new_tau)


def _log_evidence(kernel: Tensor, mean: Tensor, signs: Tensor, tau: Tensor, shift: Tensor) -> float:
    centre, variance, diagonal = _marginals(kernel, tau, shift)
    c_mean, c_variance = _cavity(tau, shift, centre, variance)
    z = signs * (c_mean + mean) / torch.sqrt(1 + c_variance)
    total = torch.special.log_ndtr(z).sum() - diagonal.log().sum()
    total += 0.5 * torch.log1p(tau * c_variance).sum()
    total += (
        0.5 * (shift * centre).sum() - 0.5 * (shift**2 * c_variance / (1 + tau * c_variance)).sum()
    )
    total += 0.5 * (c_mean * (tau * c_mean - 2 * shift) / (1 + tau * c_variance)).sum()
    return float(total)
