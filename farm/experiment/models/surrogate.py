"""What is known of one outcome: a Gaussian process, found from the trials and conditioned on them.

Numbers and processes are kept for a while by the content of what they were made from, so that asks
between fits cost no more than the search; the same trials give the same process in any process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.experiment.config import Surrogate
from farm.experiment.models.domain import Domain, Features
from farm.experiment.models.fitting import Numbers, fit_probit, fit_regression
from farm.experiment.models.latent import Latent
from farm.experiment.models.normal import DTYPE, LEAST_VARIANCE, probit_mean
from farm.experiment.models.propagation import propagate
from farm.experiment.names import CLASSIFICATION
from farm.experiment.work import Data

LARGEST = 1e150
"""Outcomes count as no larger than this: their squares are numbers still."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """latent: the process, of outcomes less `offset` and divided by `scale`."""

    latent: Latent
    offset: float
    scale: float


@dataclass(frozen=True, slots=True)
class _Trials:
    """What a process is made from, as a key of a cache. rows, y: the bytes of their arrays."""

    rows: bytes
    y: bytes
    width: int
    features: int
    binary: bool
    pairs: bool

    @classmethod
    def of(cls, rows: Array, y: Array, features: int, *, binary: bool, pairs: bool) -> _Trials:
        return cls(rows.tobytes(), y.tobytes(), rows.shape[1], features, binary, pairs)

    @property
    def arrays(self) -> tuple[Array, Array]:
        return np.frombuffer(self.rows).reshape(-1, self.width), np.frombuffer(self.y)

    def first(self, count: int) -> _Trials:
        rows, y = self.arrays
        return _Trials.of(
            rows[:count], y[:count], self.features, binary=self.binary, pairs=self.pairs
        )


@lru_cache(maxsize=64)
def _numbers(trials: _Trials) -> tuple[Numbers, float, float]:
    """The numbers, and the offset and scale of the outcomes."""
    rows, y = trials.arrays
    if trials.binary:
        signs = np.where(y > 0.5, 1.0, -1.0)
        fitted = fit_probit(rows, signs, features=trials.features, pairs=trials.pairs)
        return fitted, 0.0, 1.0
    offset, scale = float(np.mean(y)), float(np.std(y))
    if not scale > 1e-9 * max(1.0, abs(offset)):
        scale = max(1e-9, abs(offset)) if offset else 1.0
    return fit_regression(rows, (y - offset) / scale), offset, scale


@lru_cache(maxsize=4)
def _fitted(trials: _Trials, fit_to: int) -> Fitted:
    numbers, offset, scale = _numbers(trials.first(fit_to))
    prior = numbers.prior(pairs=trials.pairs)
    x, y = (torch.tensor(part, dtype=DTYPE) for part in trials.arrays)
    if trials.binary:
        sites = propagate(prior, x, torch.where(y > 0.5, 1.0, -1.0).to(DTYPE))
        return Fitted(Latent(prior, x, sites.targets, sites.precision), 0.0, 1.0)
    precision = (1 / prior.noise).expand(len(y))
    return Fitted(Latent(prior, x, (y - offset) / scale, precision), offset, scale)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """One outcome's process, for points of the unit cube.

    binary: the outcome is yes with probability cdf(f). pairs: f is a utility, and a trial says
    whether the second stimulus has more of it. told: trials, shape (n, stimuli, d).
    """

    latent: Latent
    features: Features
    told: Tensor
    offset: float
    scale: float
    binary: bool
    pairs: bool

    @classmethod
    def of(cls, surrogate: Surrogate, outcome: int, domain: Domain, data: Data) -> Learned:
        """From the trials in `data`, at least one, and their outcome of that number."""
        pairs = domain.stimuli == 2
        binary = pairs or surrogate.kind == CLASSIFICATION
        features = Features.of(domain.free)
        told = torch.as_tensor(domain.unit(np.asarray(data.x, dtype=float)), dtype=DTYPE)
        rows = np.ascontiguousarray(features.trials(told, pairs=pairs).numpy())
        y = np.clip(np.asarray(data.y, dtype=float)[:, outcome], -LARGEST, LARGEST)
        trials = _Trials.of(rows, y, features.count, binary=binary, pairs=pairs)
        fitted = _fitted(trials, min(max(data.fit_to, 1), len(y)))
        return cls(fitted.latent, features, told, fitted.offset, fitted.scale, binary, pairs)

    def trials(self, unit: Tensor) -> Tensor:
        """Rows (..., r) of whole trials (..., stimuli, d): what is observed there."""
        return self.features.trials(unit, pairs=self.pairs)

    def singles(self, unit: Tensor) -> Tensor:
        """Rows (..., r) of points (..., d): the function itself."""
        return self.features.singles(unit, pairs=self.pairs)

    def precision(self, rows: Tensor) -> Tensor:
        """Of an observation at rows (..., r): for a yes or no what is to be expected of it.

        That is the Fisher information of a probit at the mean.
        """
        if not self.binary:
            return (1 / self.latent.prior.noise).expand(rows.shape[:-1])
        mean = self.latent.mean(rows)
        log_both = torch.special.log_ndtr(mean) + torch.special.log_ndtr(-mean)
        return torch.exp(-(mean**2) - log_both) / (2 * torch.pi) + LEAST_VARIANCE

    def believing(self, unit: Tensor) -> Learned:
        """As if trials (p, stimuli, d) had been observed with the outcome that is expected."""
        with torch.no_grad():
            rows = self.trials(unit)
            latent = self.latent.believing(rows, self.precision(rows))
        return Learned(
            latent, self.features, self.told, self.offset, self.scale, self.binary, self.pairs
        )

    def promising(self) -> Array:
        """Told trials near which a search may begin: the last and those of greatest mean."""
        mean = self.latent.mean(self.trials(self.told))
        best = torch.argsort(-mean, stable=True)[:16].tolist()
        last = range(max(0, len(self.told) - 16), len(self.told))
        promising: Array = self.told[sorted({*best, *last})].numpy()
        return promising

    def value(self, rows: Tensor, *, probability: bool) -> Tensor:
        """The mean (...,) at rows (..., r), as the user sees it."""
        if probability:
            return probit_mean(*self.latent.moments(rows))
        return self.latent.mean(rows) * self.scale + self.offset
