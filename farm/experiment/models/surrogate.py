"""What is known of one outcome: a BoTorch model, fitted to the trials and conditioned on them.

Models are kept for a while by the content of what they were made from, so that asks between fits
cost no more than the search; the same trials give the same model in any process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood, VariationalELBO
from gpytorch.priors import LogNormalPrior
from torch import Tensor
from torch.nn.functional import one_hot

from farm.call import Array
from farm.experiment.config import Surrogate
from farm.experiment.models.domain import Domain
from farm.experiment.models.libraries import alone
from farm.experiment.models.normal import DTYPE, LEAST_VARIANCE, probit_mean, probit_variance
from farm.experiment.names import CLASSIFICATION
from farm.experiment.work import Data

LARGEST = 1e150
"""Outcomes count as no larger than this: their squares are numbers still."""

MOST_TRIALS = 400
"""Trials that length scales and noise are found from, evenly taken from all: the cost grows with
the cube, and more of them tell little. All trials are conditioned on afterwards."""

MOST_SPARSE_TRIALS = 2000
"""The same where the cost grows with their number alone."""

INDUCING = 100
"""Points that stand for the trials with a yes or no, at most."""

STEPS = {"maxiter": 200, "ftol": 1e-6}
"""Of a fit: what more of them find changes nothing that is seen."""

AMPLITUDE = LogNormalPrior(math.log(4.0), 1.0)
"""Two standard deviations of the process lead from even odds to near certainty."""

CHUNK = 256
"""Points whose joint distribution is worked out at once."""


@dataclass(frozen=True, slots=True)
class _Trials:
    """What a model is made from, as a key of a cache. x, y: the bytes of their arrays."""

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

    def model(self) -> tuple[Model, MarginalLogLikelihood]:
        """The model before it is fitted, and what is greatest when it is."""
        x, y = (torch.tensor(part, dtype=DTYPE) for part in self.arrays)
        n, stimuli, d = x.shape
        points, encoding = x.reshape(-1, d), self._encoding()
        features = (points if encoding is None else encoding(points)).shape[-1]
        if stimuli == 2:
            first = torch.arange(0, 2 * n, 2)
            yes = (y > 0.5).long()
            compared = torch.stack([first + yes, first + 1 - yes], -1)  # the better one first
            model = PairwiseGP(points, compared, None, _kernel(features), encoding)
            return model, PairwiseLaplaceMarginalLogLikelihood(model.likelihood, model)
        if self.binary:
            model = SingleTaskVariationalGP(
                points,
                (y > 0.5).to(DTYPE)[:, None],
                BernoulliLikelihood(),
                covar_module=_kernel(features),
                inducing_points=min(n, INDUCING),
                learn_inducing_points=False,
                input_transform=encoding,
            )
            return model, VariationalELBO(model.likelihood, model.model, num_data=n)
        # Differences between outcomes that are no more than those of rounding are none.
        least = max(1e-8 * float(y.abs().max()), 1 / LARGEST)
        model = SingleTaskGP(
            points,
            y[:, None],
            outcome_transform=Standardize(1, min_stdv=least),
            input_transform=encoding,
        )
        return model, ExactMarginalLogLikelihood(model.likelihood, model)

    def _encoding(self) -> NumericToCategoricalEncoding | None:
        """A feature of its own for each choice, as choices have no order."""
        if not self.choices:
            return None
        encoders: dict[int, Callable[[Tensor], Tensor]] = {
            j: partial(_encoded, num_classes=count) for j, count in self.choices
        }
        return NumericToCategoricalEncoding(self.shape[-1], dict(self.choices), encoders)


def _encoded(indices: Tensor, num_classes: int) -> Tensor:
    return one_hot(indices.clamp(0, num_classes - 1), num_classes)


def _kernel(features: int) -> ScaleKernel:
    """BoTorch's default with an amplitude: the probit gives the process a scale."""
    kernel = ScaleKernel(
        get_covar_module_with_dim_scaled_prior(ard_num_dims=features),
        outputscale_prior=AMPLITUDE,
    )
    kernel.outputscale = 4.0
    return kernel.to(DTYPE)


def _fit(mll: MarginalLogLikelihood) -> None:
    """Find what makes the trials most probable; the model then answers."""
    try:
        fit_gpytorch_mll(
            mll,
            optimizer=fit_gpytorch_mll_scipy,
            optimizer_kwargs={"options": STEPS},
        )
    except ModelFittingError:
        mll.eval()  # with what its priors hold for most probable


@lru_cache(maxsize=16)
def _first(trials: _Trials) -> Model:
    """The model of the trials that its hyperparameters are found from."""
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
    model, mll = trials.model()
    if not sparse:
        model.load_state_dict(first.state_dict())
        return model.eval()
    for whole, part in (
        (model.model.mean_module, first.model.mean_module),
        (model.model.covar_module, first.model.covar_module),
    ):
        whole.load_state_dict(part.state_dict())
        whole.requires_grad_(False)
    model.init_inducing_points(model.model.train_inputs[0])
    _fit(mll)
    return model


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """One outcome's model, and the process f that outcomes are an observation of.

    f has unit scale: a number is offset + scale * f and noise; the outcome is yes with probability
    cdf(f) where it is binary, for a pair with f the difference of utilities over `scale`.
    told: positions of the trials, shape (n, stimuli, d).
    """

    model: Model
    told: Tensor
    offset: float
    scale: float
    binary: bool

    @classmethod
    def of(cls, surrogate: Surrogate, outcome: int, domain: Domain, data: Data) -> Learned:
        """From the trials in `data`, at least one, and their outcome of that number."""
        if surrogate.parts:
            surrogate = surrogate.parts[outcome]
        pairs = domain.stimuli == 2
        binary = pairs or surrogate.kind == CLASSIFICATION
        x = domain.positions(np.asarray(data.x, dtype=float))
        y = np.clip(np.asarray(data.y, dtype=float)[:, outcome], -LARGEST, LARGEST)
        choices = tuple(domain.choices.items())
        trials = _Trials(x.tobytes(), y.tobytes(), x.shape, binary, choices)
        with alone(0):
            model = _fitted(trials, min(max(data.fit_to, 1), len(y)))
        offset, scale = 0.0, math.sqrt(2.0) if pairs else 1.0
        if not binary:
            offset = float(model.outcome_transform.means)
            scale = float(model.outcome_transform.stdvs)
        return cls(model, torch.tensor(x, dtype=DTYPE), offset, scale, binary)

    def joint(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (k,) and covariance (k, k) of f at trials (k, stimuli, d), or single points."""
        k, stimuli, d = points.shape
        posterior = self.model.posterior(points.reshape(k * stimuli, d))
        weights = torch.tensor([-1.0, 1.0] if stimuli == 2 else [1.0], dtype=DTYPE) / self.scale
        mean = (posterior.distribution.mean - self.offset).reshape(k, stimuli) @ weights
        covariance = posterior.distribution.covariance_matrix.reshape(k, stimuli, k, stimuli)
        return mean, torch.einsum("isjt,s,t->ij", covariance, weights, weights)

    def moments(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f, shape (k,) each, at trials (k, stimuli, d) or single points."""
        parts = [self.joint(part) for part in points.split(CHUNK)]
        mean = torch.cat([mean for mean, _ in parts])
        variance = torch.cat([covariance.diagonal() for _, covariance in parts])
        return mean, variance.clamp_min(LEAST_VARIANCE)

    def noise(self, mean: Tensor) -> Tensor:
        """Variance of an observation where f has that mean; for a yes or no what it amounts to.

        That is the inverse of the Fisher information of a probit.
        """
        if not self.binary:
            return self.model.likelihood.noise.detach().expand(mean.shape)
        log_both = torch.special.log_ndtr(mean) + torch.special.log_ndtr(-mean)
        information = torch.exp(-(mean**2) - log_both) / (2 * torch.pi)
        return 1 / (information + LEAST_VARIANCE)

    def promising(self) -> Tensor:
        """Told trials near which a search may begin: the last and those of greatest mean."""
        with torch.no_grad():
            mean, _ = self.moments(self.told)
        best = torch.argsort(-mean, stable=True)[:16].tolist()
        last = range(max(0, len(self.told) - 16), len(self.told))
        return self.told[sorted({*best, *last})]

    def seen(self, points: Tensor, *, probability: bool) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (k,) of the outcome without its noise, in the user's units.

        A pair's outcome is by how much the second one's utility is greater.
        """
        mean, variance = self.moments(points)
        if probability:
            return probit_mean(mean, variance), torch.sqrt(probit_variance(mean, variance))
        return mean * self.scale + self.offset, torch.sqrt(variance) * self.scale
