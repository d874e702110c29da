"""How good the next point is: the acquisition functions by the names that configs use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.acquisition.objective import GenericMCObjective
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor

from farm.errors import InvalidInput
from farm.experiment.config import Acquisition
from farm.experiment.models.domain import Domain
from farm.experiment.models.latent import Anchored
from farm.experiment.models.levelset import Observed
from farm.experiment.models.normal import (
    DTYPE,
    cdf,
    entropy,
    nodes,
    probit_mean,
    probit_variance,
    quantile,
)
from farm.experiment.models.search import Criterion
from farm.experiment.models.surrogate import Learned

TARGET = 0.75
BETA = 3.84
FLOOR = 0.5
QUERY_POINTS = 256
SAMPLES = 128
BASELINE = 32
"""Told points that expected improvement compares with: those that may be the best. Each more makes
every look at a point dearer, by the square."""


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """What a criterion is made from.

    learned: with what is in flight believed. plain: without. pending: what is in flight, shape
    (p, stimuli, d) of the unit cube.
    """

    acquisition: Acquisition
    learned: Learned
    plain: Learned
    domain: Domain
    pending: Tensor
    seed: int

    def number(self, option: str, default: float) -> float:
        """An option of the acquisition function. Raises InvalidInput."""
        text = self.acquisition.options.get(option)
        if text is None:
            return default
        try:
            value = float(text.strip().strip("[]"))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InvalidInput(
                f"[{self.acquisition.name}] {option} = {text}; expected a finite number"
            )
        return value


Transform = Callable[[Tensor], Tensor]


def transform_of(s: Situation) -> Transform | None:
    """What the objective makes of the process; None: nothing."""
    if not s.learned.binary:
        return None
    if s.acquisition.objective == "ProbitObjective":
        return cdf
    floor = s.number("floor", FLOOR)
    if s.acquisition.objective == "FloorProbitObjective":
        return lambda f: floor + (1 - floor) * cdf(f)
    if s.acquisition.objective == "FloorLogitObjective":
        return lambda f: floor + (1 - floor) * torch.sigmoid(f)
    return None


def moments(s: Situation, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance at rows (..., r) of what the objective makes of the process."""
    mean, variance = s.learned.latent.moments(rows)
    transform = transform_of(s)
    if transform is None:
        return mean, variance
    if s.acquisition.objective == "FloorLogitObjective":
        values, weights = nodes(mean, variance)
        made = transform(values)
        centre = (made * weights).sum(-1)
        return centre, ((made - centre[..., None]) ** 2 * weights).sum(-1)
    floor = s.number("floor", FLOOR) if s.acquisition.objective == "FloorProbitObjective" else 0.0
    rest = 1 - floor
    return (
        floor + rest * probit_mean(mean, variance),
        rest**2 * probit_variance(mean, variance),
    )


def level_of(s: Situation) -> float:
    """The target as a value of the process. Raises InvalidInput."""
    target = s.number("target", TARGET)
    if not s.learned.binary:
        return (target - s.learned.offset) / s.learned.scale
    floor = s.number("floor", FLOOR) if s.acquisition.objective.startswith("Floor") else 0.0
    share = (target - floor) / (1 - floor)
    if not 0.0 < share < 1.0:
        raise InvalidInput(
            f"[{s.acquisition.name}] target = {target}; expected a probability between {floor} "
            "and 1"
        )
    if s.acquisition.objective == "FloorLogitObjective":
        return math.log(share / (1 - share))
    return quantile(share)


def _straddle(s: Situation) -> Criterion:
    beta = s.number("beta", BETA)
    target = s.number("target", TARGET)
    if transform_of(s) is None:
        target = (target - s.learned.offset) / s.learned.scale

    def criterion(unit: Tensor) -> Tensor:
        mean, variance = moments(s, s.learned.trials(unit))
        return torch.sqrt(beta * variance + 1e-18) - (mean - target).abs()

    return criterion


def _variance(s: Situation) -> Criterion:
    return lambda unit: moments(s, s.learned.trials(unit))[1]


def _pair_variance(s: Situation) -> Criterion:
    """The variance of the probability that the second is preferred."""

    def criterion(unit: Tensor) -> Tensor:
        return probit_variance(*s.learned.latent.moments(s.learned.trials(unit)))

    return criterion if s.learned.binary else _variance(s)


def _observed(s: Situation) -> Observed:
    count = int(s.number("query_set_size", QUERY_POINTS))
    # Held coordinates are free here: the set is one of the whole space.
    everywhere = Domain(s.domain.space.parameters, s.domain.stimuli, {})
    unit = everywhere.sample(min(max(count, 16), 1024), s.seed + 1)
    points = s.learned.trials(torch.as_tensor(unit, dtype=DTYPE))
    return Observed(s.learned.latent, points, level_of(s), binary=s.learned.binary)


def _volume_change(s: Situation) -> Criterion:
    observed = _observed(s)
    return lambda unit: observed.everywhere(s.learned.trials(unit)).volume_change()


def _information(s: Situation) -> Criterion:
    observed = _observed(s)
    return lambda unit: observed.everywhere(s.learned.trials(unit)).information()


def _information_here(s: Situation) -> Criterion:
    observed = _observed(s)
    return lambda unit: observed.here(s.learned.trials(unit)).information()


def _mutual_information(s: Situation) -> Criterion:
    """Between the outcome and the process at the point (Houlsby et al. 2011)."""

    def criterion(unit: Tensor) -> Tensor:
        mean, variance = s.learned.latent.moments(s.learned.trials(unit))
        if not s.learned.binary:
            return 0.5 * torch.log1p(variance / s.learned.latent.prior.noise)
        values, weights = nodes(mean, variance)
        return entropy(probit_mean(mean, variance)) - (entropy(cdf(values)) * weights).sum(-1)

    return criterion


def _integrated_variance(s: Situation) -> Criterion:
    """By how much an observation lowers the variance of the process, averaged over the space."""
    latent = s.learned.latent
    count = int(s.number("query_set_size", QUERY_POINTS))
    everywhere = Domain(s.domain.space.parameters, s.domain.stimuli, {})
    unit = torch.as_tensor(everywhere.sample(min(max(count, 16), 1024), s.seed + 1), dtype=DTYPE)
    points = s.learned.trials(unit)
    with torch.no_grad():
        explained = latent.explained(points)

    def criterion(unit: Tensor) -> Tensor:
        rows = s.learned.trials(unit)
        _, variance = latent.moments(rows)
        fall = latent.covariance(rows, points, explained) ** 2
        return (fall / (variance + 1 / s.learned.precision(rows))[:, None]).mean(-1)

    return criterion


def _upper_confidence_bound(s: Situation) -> Criterion:
    beta = s.number("beta", BETA)
    if s.learned.pairs:
        joint = qUpperConfidenceBound(s.learned.latent, beta=beta, sampler=_sampler(s))
        return lambda unit: joint(s.learned.singles(unit))

    def criterion(unit: Tensor) -> Tensor:
        mean, variance = moments(s, s.learned.trials(unit))
        return mean + torch.sqrt(beta * variance + 1e-18)

    return criterion


def _improvement(s: Situation) -> Criterion:
    """The logarithm of the improvement that is expected over the best of the told points.

    Its maximum is where that of the improvement is, and gradients lead there from everywhere.
    """
    plain = s.plain
    told = plain.singles(plain.told.reshape(-1, plain.told.shape[-1]))
    told = torch.unique(told, dim=0)
    with torch.no_grad():
        mean, variance = plain.latent.moments(told)
        reach = mean + 2 * torch.sqrt(variance)
        best = torch.argsort(-reach, stable=True)[:BASELINE]
    flying = plain.singles(s.pending.reshape(-1, s.pending.shape[-1]))
    transform = transform_of(s)
    objective = None
    if transform is not None:
        objective = GenericMCObjective(lambda samples, X=None: transform(samples[..., 0]))
    # What is in flight is compared with as well: it may turn out to be the best.
    others = torch.cat([told[best], flying])
    with torch.no_grad():
        anchored = Anchored(plain.latent, others)
    joint = qLogNoisyExpectedImprovement(
        anchored,
        others,
        sampler=_sampler(s),
        objective=objective,
        prune_baseline=False,
        cache_root=False,
    )
    return lambda unit: joint(plain.singles(unit))


def _sampler(s: Situation) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=s.seed % 2**31)


_CRITERIA: dict[str, Callable[[Situation], Criterion]] = {
    "MCLevelSetEstimation": _straddle,
    "EAVC": _volume_change,
    "GlobalMI": _information,
    "LocalMI": _information_here,
    "MCPosteriorVariance": _variance,
    "PairwiseMCPosteriorVariance": _pair_variance,
    "BernoulliMCMutualInformation": _mutual_information,
    "qNegIntegratedPosteriorVariance": _integrated_variance,
    "qUpperConfidenceBound": _upper_confidence_bound,
    "qLogNoisyExpectedImprovement": _improvement,
    "qNoisyExpectedImprovement": _improvement,
}


def criterion_of(situation: Situation) -> Criterion:
    """The criterion that the acquisition function asks for. Raises InvalidInput."""
    return _CRITERIA[situation.acquisition.kind](situation)
