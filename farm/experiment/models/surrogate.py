"""Models of one outcome: a BoTorch model, fitted to the trials and conditioned on them.

Models are cached by the content of their trials: the same trials give the same model anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import PairwiseGP, SingleTaskGP, SingleTaskVariationalGP
from botorch.models.model import Model
from botorch.models.pairwise_gp import PairwiseLaplaceMarginalLogLikelihood
from botorch.models.transforms.input import NumericToCategoricalEncoding
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood, VariationalELBO
from gpytorch.priors import LogNormalPrior
from torch import Tensor
from torch.nn.functional import one_hot

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import Config, Surrogate, SurrogateKind
from farm.experiment.models import exact
from farm.experiment.models.domain import Domain
from farm.experiment.models.exact import Exact
from farm.experiment.models.libraries import alone
from farm.experiment.models.normal import DTYPE, LEAST_VARIANCE, probit_mean, probit_variance
from farm.experiment.work import Data

LARGEST = 1e150
"""Outcomes are clamped to this magnitude: their squares stay finite."""

MOST_TRIALS = 400
"""Maximum trials for estimating length scales and noise, evenly selected: the cost is cubic."""

MOST_SPARSE_TRIALS = 2000
"""The same limit for models whose cost grows linearly with the trials."""

INDUCING = 100
"""Maximum inducing points, which represent trials with a binary outcome."""

STEPS = {"maxiter": 200, "ftol": 1e-6}
"""Settings of a fit: further steps change nothing visible."""

NUMBERS = LogNormalPrior(0.0, 1.0)
"""Prior of the process's variance, for outcomes of variance 1."""

NOISE = LogNormalPrior(-5.0, 1.5)
"""Prior of the noise's variance, for outcomes of variance 1: simulators have almost none."""

PROBIT = LogNormalPrior(math.log(4.0), 1.0)
"""Prior of the process's variance for binary outcomes: near certainty at two deviations."""

CHUNK = 256
"""Points whose joint distribution is computed at once."""


@dataclass(frozen=True, slots=True)
class _Trials:
    """The trials a model is fitted to, as a cache key. x, y: the bytes of their arrays."""

    x: bytes
    y: bytes
    shape: tuple[int, ...]
    binary: bool
    choices: tuple[tuple[int, int], ...]

    @property
    def arrays(self) -> tuple[Array, Array]:
        return np.frombuffer(self.x).reshape(self.shape), np.frombuffer(self.y)

    def only(self, rows: Array) -> _Trials:
        x, y = (part[rows] for part in self.arrays)
        return _Trials(x.tobytes(), y.tobytes(), x.shape, self.binary, self.choices)

    def model(self, like: Model | None = None) -> tuple[Model, MarginalLogLikelihood]:
        """Return the unfitted model and the likelihood that its fit maximises.

        like: a sparse model whose mean and kernel are reused.
        """
        x, y = (torch.tensor(part, dtype=DTYPE) for part in self.arrays)
        n, stimuli, d = x.shape
        points, encoding = x.reshape(-1, d), self._encoding()
        features = (points if encoding is None else encoding(points)).shape[-1]
        if stimuli == 2:
            first = torch.arange(0, 2 * n, 2)
            yes = (y > 0.5).long()
            compared = torch.stack([first + yes, first + 1 - yes], -1)  # the preferred one first
            model = PairwiseGP(points, compared, None, _kernel(features, PROBIT), encoding)
            return model, PairwiseLaplaceMarginalLogLikelihood(model.likelihood, model)
        if self.binary:
            model = SingleTaskVariationalGP(
                points,
                (y > 0.5).to(DTYPE)[:, None],
                BernoulliLikelihood(),
                covar_module=like.model.covar_module if like else _kernel(features, PROBIT),
                mean_module=like.model.mean_module if like else None,
                inducing_points=min(n, INDUCING),
                learn_inducing_points=False,
                input_transform=encoding,
            )
            return model, VariationalELBO(model.likelihood, model.model, num_data=n)
        # Differences between outcomes within rounding error are ignored.
        least = max(1e-8 * float(y.abs().max()), 1 / LARGEST)
        model = SingleTaskGP(
            points,
            y[:, None],
            likelihood=GaussianLikelihood(noise_prior=NOISE, noise_constraint=_above(1e-6, NOISE)),
            covar_module=_kernel(features, NUMBERS),
            outcome_transform=Standardize(1, min_stdv=least),
            input_transform=encoding,
        )
        return model, ExactMarginalLogLikelihood(model.likelihood, model)

    def _encoding(self) -> NumericToCategoricalEncoding | None:
        """Return the encoding with one feature per choice, because choices have no order."""
        if not self.choices:
            return None
        encoders: dict[int, Callable[[Tensor], Tensor]] = {
            j: partial(_encoded, num_classes=count) for j, count in self.choices
        }
        return NumericToCategoricalEncoding(self.shape[-1], dict(self.choices), encoders)


def _encoded(indices: Tensor, num_classes: int) -> Tensor:
    return one_hot(indices.clamp(0, num_classes - 1), num_classes)


def _kernel(features: int, amplitude: LogNormalPrior) -> ScaleKernel:
    """Return BoTorch's default kernel with an amplitude, without which no boundary is found."""
    return ScaleKernel(
        get_covar_module_with_dim_scaled_prior(ard_num_dims=features),
        outputscale_prior=amplitude,
        outputscale_constraint=_above(1e-2, amplitude),
    ).to(DTYPE)


def _above(least: float, prior: LogNormalPrior) -> GreaterThan:
    """Return a bound for a search that starts at the prior's median."""
    return GreaterThan(least, transform=None, initial_value=math.exp(float(prior.loc)))


def _fit(mll: MarginalLogLikelihood) -> None:
    """Maximise the likelihood of the trials; the model is then ready to predict."""
    if isinstance(mll, ExactMarginalLogLikelihood):
        exact.fit(mll.model)
        return
    try:
        fit_gpytorch_mll(mll, optimizer=fit_gpytorch_mll_scipy, optimizer_kwargs={"options": STEPS})
    except ModelFittingError:
        mll.eval()  # keep the most probable values of the priors


@lru_cache(maxsize=16)
def _first(trials: _Trials) -> Model:
    """Return the fitted model whose hyperparameters are used."""
    model, mll = trials.model()
    _fit(mll)
    return model


@lru_cache(maxsize=4)
def _fitted(trials: _Trials, fit_to: int) -> Model:
    sparse = trials.binary and trials.shape[1] == 1
    most = min(fit_to, MOST_SPARSE_TRIALS if sparse else MOST_TRIALS // trials.shape[1])
    rows = np.unique(np.linspace(0, fit_to - 1, most).round().astype(int))
    first = _first(trials.only(rows))
    if len(rows) == trials.shape[0]:
        return first
    if not sparse:
        model, _ = trials.model()
        model.load_state_dict(first.state_dict())
        return model.eval()
    model, mll = trials.model(deepcopy(first))
    model.model.mean_module.requires_grad_(False)
    model.model.covar_module.requires_grad_(False)
    _fit(mll)
    return model


_exact = lru_cache(maxsize=4)(Exact)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """One outcome's model, and the latent process f behind its outcomes.

    f has unit scale: a continuous outcome is offset + scale * f plus noise; a binary one is 1 with
    probability cdf(f), where f for a pair is the difference of utilities divided by `scale`.
    told: positions of the trials, shape (n, stimuli, d). exact: of a continuous outcome.
    """

    model: Model
    told: Tensor
    offset: float
    scale: float
    binary: bool
    exact: Exact | None = None

    @classmethod
    def of(cls, surrogate: Surrogate, outcome: int, domain: Domain, data: Data) -> Learned:
        """Return the model of outcome number `outcome`, from the trials in `data`, at least one."""
        if surrogate.parts:
            surrogate = surrogate.parts[outcome]
        pairs = domain.stimuli == 2
        binary = pairs or surrogate.kind == SurrogateKind.CLASSIFICATION
        x = domain.positions(np.asarray(data.x, dtype=float))
        y = np.clip(np.asarray(data.y, dtype=float)[:, outcome], -LARGEST, LARGEST)
        choices = tuple(domain.choices.items())
        trials = _Trials(x.tobytes(), y.tobytes(), x.shape, binary, choices)
        with alone(0), torch.enable_grad():
            model = _fitted(trials, min(max(data.fit_to, 1), len(y)))
        told = torch.tensor(x, dtype=DTYPE)
        if binary:
            return cls(model, told, 0.0, math.sqrt(2.0) if pairs else 1.0, binary)
        outcomes = model.outcome_transform
        return cls(model, told, float(outcomes.means), float(outcomes.stdvs), binary, _exact(model))

    @staticmethod
    def all(config: Config, number: int, domain: Domain, data: Data) -> list[Learned]:
        """Return the model of each outcome by a strategy. Raises InvalidInput without one."""
        strategy = config.strategies[number]
        if strategy.surrogate is None:
            raise InvalidInput(f"strategy {strategy.name!r} has no model; expected one")
        count = len(config.outcomes) if len(data.x) else 0
        return [Learned.of(strategy.surrogate, i, domain, data) for i in range(count)]

    def joint(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (k,) and covariance (k, k) of f at trials (k, stimuli, d), or points."""
        if self.exact is not None:
            return self.exact.joint(points[:, 0])
        k, stimuli, d = points.shape
        posterior = self.model.posterior(points.reshape(k * stimuli, d))
        weights = torch.tensor([-1.0, 1.0] if stimuli == 2 else [1.0], dtype=DTYPE) / self.scale
        mean = (posterior.distribution.mean - self.offset).reshape(k, stimuli) @ weights
        covariance = posterior.distribution.covariance_matrix.reshape(k, stimuli, k, stimuli)
        return mean, torch.einsum("isjt,s,t->ij", covariance, weights, weights)

    def moments(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (k,) of f at trials (k, stimuli, d), or single points."""
        if self.exact is not None:
            parts = [self.exact.moments(part[:, 0]) for part in points.split(CHUNK)]
            means, variances = zip(*parts, strict=True)
            return torch.cat(means), torch.cat(variances)
        parts = [self.joint(part) for part in points.split(CHUNK)]
        mean = torch.cat([mean for mean, _ in parts])
        variance = torch.cat([covariance.diagonal() for _, covariance in parts])
        return mean, variance.clamp_min(LEAST_VARIANCE)

    def noise(self, mean: Tensor) -> Tensor:
        """Return the variance of an observation at the mean; for a binary outcome its equivalent.

        The equivalent is the inverse of the Fisher information of a probit.
        """
        if not self.binary:
            return self.model.likelihood.noise.detach().expand(mean.shape)
        log_both = torch.special.log_ndtr(mean) + torch.special.log_ndtr(-mean)
        information = torch.exp(-(mean**2) - log_both) / (2 * torch.pi)
        return 1 / (information + LEAST_VARIANCE)

    def promising(self) -> Tensor:
        """Return trials as starting points of a search: the latest, and those of greatest mean."""
        with torch.no_grad():
            mean, _ = self.moments(self.told)
        best = torch.argsort(-mean, stable=True)[:16].tolist()
        last = range(max(0, len(self.told) - 16), len(self.told))
        return self.told[sorted({*best, *last})]

    def seen(self, points: Tensor, *, probability: bool) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation (k,) of the noise-free outcome, in the user's units.

        For a pair, the outcome is the difference of the second utility and the first.
        """
        mean, variance = self.moments(points)
        if probability:
            return probit_mean(mean, variance), torch.sqrt(probit_variance(mean, variance))
        return mean * self.scale + self.offset, torch.sqrt(variance) * self.scale
