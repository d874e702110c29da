"""The acquisition functions, which rate candidates for the next point, by their names in configs.

Functions that BoTorch has are BoTorch's own. The others are implemented here in closed form,
assuming that points in flight have their expected outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.acquisition.objective import GenericMCObjective
from botorch.acquisition.utils import prune_inferior_points
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor

from farm.errors import InvalidInput
from farm.experiment.config.definition import OF_PROBABILITY, Acquisition
from farm.experiment.config.options import ACQUISITION
from farm.experiment.models.closed import Criterion, LogImprovement, UpperBound
from farm.experiment.models.domain import Domain
from farm.experiment.models.normal import (
    DTYPE,
    LEAST_VARIANCE,
    bivariate_cdf,
    cdf,
    entropy,
    nodes,
    probit_mean,
    probit_variance,
    quantile,
)
from farm.experiment.models.surrogate import Learned

SAMPLES = 256
BASELINE = 32
"""Maximum trials that expected improvement compares with: those that may be the best."""


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """Inputs of an acquisition function. pending: positions in flight, (p, stimuli, d)."""

    acquisition: Acquisition
    learned: Learned
    domain: Domain
    pending: Tensor
    seed: int

    def number(self, option: str) -> float:
        """Return an option of the acquisition function. Raises InvalidInput."""
        value: float = ACQUISITION.read(self.acquisition.section, option)
        return value

    @property
    def objective(self) -> str:
        """The objective that transforms the outcomes; the identity for continuous ones."""
        return self.acquisition.objective if self.learned.binary else ""

    @property
    def floor(self) -> float:
        """The smallest probability that the objective returns."""
        return self.number("floor") if self.objective.startswith("Floor") else 0.0

    def made(self, f: Tensor) -> Tensor:
        """Return the objective's value for values of the process."""
        if self.objective not in OF_PROBABILITY:
            return f
        p = torch.sigmoid(f) if self.objective == "FloorLogitObjective" else cdf(f)
        return self.floor + (1 - self.floor) * p

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the objective for normal values of the process."""
        if self.objective not in OF_PROBABILITY:
            return mean, variance
        if self.objective == "FloorLogitObjective":
            values, weights = nodes(mean, variance)
            made = self.made(values)
            centre = (made * weights).sum(-1)
            return centre, ((made - centre[..., None]) ** 2 * weights).sum(-1)
        p, rest = probit_mean(mean, variance), 1 - self.floor
        return self.floor + rest * p, rest**2 * probit_variance(mean, variance)

    def target(self) -> float:
        """Return the target as a value of the objective. Raises InvalidInput."""
        target = self.number("target")
        if self.learned.binary:
            return target
        return (target - self.learned.offset) / self.learned.scale

    def level(self) -> float:
        """Return the target as a value of the process. Raises InvalidInput."""
        target = self.target()
        if not self.learned.binary:
            return target
        share = (target - self.floor) / (1 - self.floor)
        if not 0.0 < share < 1.0:
            raise InvalidInput(
                f"[{self.acquisition.name}] target = {target}; expected a probability between "
                f"{self.floor} and 1"
            )
        if self.objective == "FloorLogitObjective":
            return math.log(share / (1 - share))
        return quantile(share)

    def everywhere(self) -> Tensor:
        """Return trials that fill the whole space, ignoring held coordinates."""
        count = min(max(int(self.number("query_set_size")), 16), 1024)
        whole = Domain(self.domain.space.parameters, self.domain.stimuli, {})
        return torch.as_tensor(whole.sample(count, self.seed + 1), dtype=DTYPE)


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """The joint posterior of f at trials (b,) and points (b or 1, q), given points in flight.

    covariance: of each trial with each point, (b, q). noise: variance of an observation at a trial.
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor
    point_mean: Tensor
    point_variance: Tensor
    covariance: Tensor


def look(situation: Situation, X: Tensor, points: Tensor) -> Look:
    """Return the joint posterior at trials X (b, stimuli, d) and at points (q, stimuli, d).

    Points in flight count as observed with their expected outcome: the variance falls, the mean
    stays.
    """
    learned, pending = situation.learned, situation.pending
    b, p = len(X), len(pending)
    mean, covariance = learned.joint(torch.cat([X, pending, points]))
    if p:
        flying = slice(b, b + p)
        noise = learned.noise(mean[flying].detach())
        seen = covariance[flying, flying] + torch.diag(noise + LEAST_VARIANCE)
        gain = torch.linalg.solve(seen, covariance[flying])
        covariance = covariance - covariance[:, flying] @ gain
    variance = covariance.diagonal().clamp_min(LEAST_VARIANCE)
    return Look(
        mean[:b],
        variance[:b],
        learned.noise(mean[:b]),
        mean[None, b + p :],
        variance[None, b + p :],
        covariance[:b, b + p :],
    )


def at_trials(situation: Situation, rate: Callable[[Look], Tensor]) -> Criterion:
    """Return a criterion of the posterior at single trials."""
    nowhere = situation.pending[:0]
    return lambda X: rate(look(situation, X, nowhere))


def over_space(situation: Situation, rate: Callable[[Look], Tensor]) -> Criterion:
    """Return a criterion of the joint posterior at trials and at points that fill the space."""
    points = situation.everywhere()
    return lambda X: rate(look(situation, X, points))


def straddle(situation: Situation) -> Criterion:
    """Return sqrt(beta * variance) - |mean - target|. Source: Bryan et al. (2005)."""
    beta, target = situation.number("beta"), situation.target()

    def rate(seen: Look) -> Tensor:
        mean, variance = situation.moments(seen.mean, seen.variance)
        return torch.sqrt(beta * variance + 1e-18) - (mean - target).abs()

    return at_trials(situation, rate)


def objective_variance(situation: Situation) -> Criterion:
    """Return the variance of the objective."""
    return at_trials(situation, lambda seen: situation.moments(seen.mean, seen.variance)[1])


def pair_variance(situation: Situation) -> Criterion:
    """Return the variance of the probability that the second of a pair is preferred."""
    return at_trials(situation, lambda seen: probit_variance(seen.mean, seen.variance))


def mutual_information(situation: Situation) -> Criterion:
    """Return that of outcome and process at the point. Source: Houlsby et al. (2011)."""

    def rate(seen: Look) -> Tensor:
        if not situation.learned.binary:
            return 0.5 * torch.log1p(seen.variance / seen.noise)
        values, weights = nodes(seen.mean, seen.variance)
        p = probit_mean(seen.mean, seen.variance)
        return entropy(p) - (entropy(cdf(values)) * weights).sum(-1)

    return at_trials(situation, rate)


def integrated_variance(situation: Situation) -> Criterion:
    """Return the expected fall of the process's variance, averaged over the space.

    It is BoTorch's qNegIntegratedPosteriorVariance minus a constant. That one adds fantasy trials
    to the model, which models of binary outcomes do not support.
    """
    return over_space(
        situation,
        lambda seen: (seen.covariance**2 / (seen.variance + seen.noise)[:, None]).mean(-1),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Probabilities of being below the level, before and after an observation.

    below: before, shape (b or 1, q). after: shape (b, q, k), for each of k outcomes; weights: the
    probabilities of the outcomes, shape (b, k) or (k,).
    """

    below: Tensor
    after: Tensor
    weights: Tensor

    def information(self) -> Tensor:
        """Return the mean expected fall of the entropy of above or below, shape (b,)."""
        weights = self.weights if self.weights.dim() == 1 else self.weights[:, None, :]
        return (entropy(self.below) - (entropy(self.after) * weights).sum(-1)).mean(-1)

    def volume_change(self) -> Tensor:
        """Return the expected absolute change of the fraction of points below, shape (b,)."""
        change = (self.after.mean(-2) - self.below.mean(-1)[:, None]).abs()
        return (change * self.weights).sum(-1)


def look_ahead(seen: Look, level: float, *, binary: bool) -> Ahead:
    """Return the probabilities that the points are below the level, before and after observing.

    They have a closed form for a binary outcome, by the bivariate normal distribution, and take one
    quadrature for a normal outcome. Source: Letham, Guan, Tymms, Bakshy and Shvartsman, Look-Ahead
    Acquisition Functions for Bernoulli Level Set Estimation, AISTATS 2022.
    """
    mean, variance, covariance = seen.mean, seen.variance, seen.covariance
    sd = torch.sqrt(seen.point_variance)
    height = (level - seen.point_mean) / sd
    below = cdf(height)
    if not binary:
        step = covariance / torch.sqrt(variance + seen.noise)[:, None]
        left = (seen.point_variance - step**2).clamp_min(LEAST_VARIANCE)
        values, weights = nodes(torch.zeros_like(step), torch.ones_like(step))
        moved = level - seen.point_mean[..., None] - step[..., None] * values
        return Ahead(below, cdf(moved / torch.sqrt(left)[..., None]), weights)
    spread = torch.sqrt(1 + variance)
    yes = cdf(mean / spread)
    rho = (-covariance / (sd * spread[:, None])).clamp(-1 + 1e-9, 1 - 1e-9)
    both = bivariate_cdf(*torch.broadcast_tensors(height, (mean / spread)[:, None], rho))
    if_yes = both / yes[:, None].clamp_min(1e-12)
    if_no = (below - both) / (1 - yes)[:, None].clamp_min(1e-12)
    after = torch.stack([if_yes, if_no], -1).clamp(0.0, 1.0)
    return Ahead(below, after, torch.stack([yes, 1 - yes], -1))


def after_observing(situation: Situation) -> Callable[[Look], Ahead]:
    """Return `look_ahead` to the target of an acquisition function. Raises InvalidInput."""
    return partial(look_ahead, level=situation.level(), binary=situation.learned.binary)


def volume_change(situation: Situation) -> Criterion:
    """Return how much an observation changes the volume of the set above the target."""
    ahead = after_observing(situation)
    return over_space(situation, lambda seen: ahead(seen).volume_change())


def global_information(situation: Situation) -> Criterion:
    """Return the information of an observation about the set above the target."""
    ahead = after_observing(situation)
    return over_space(situation, lambda seen: ahead(seen).information())


def local_information(situation: Situation) -> Criterion:
    """Return the information of an observation about its own point being above the target."""
    ahead = after_observing(situation)

    def rate(seen: Look) -> Tensor:
        own = seen.variance[:, None]
        here = replace(seen, point_mean=seen.mean[:, None], point_variance=own, covariance=own)
        return ahead(here).information()

    # The trials alone would do, but their sums are rounded otherwise: other points for a seed.
    return over_space(situation, rate)


def _sampled(situation: Situation) -> dict[str, object]:
    """Return the arguments shared by BoTorch's Monte Carlo acquisition functions."""
    s = situation
    pending = s.pending.reshape(-1, s.pending.shape[-1])
    common: dict[str, object] = {
        "sampler": SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=s.seed % 2**31),
        "X_pending": pending if len(pending) else None,
    }
    if s.objective:
        common["objective"] = GenericMCObjective(lambda samples, X=None: s.made(samples[..., 0]))
    return common


def upper_confidence_bound(situation: Situation) -> Criterion:
    exact = situation.learned.exact
    if exact is not None:
        return UpperBound(exact.believing(situation.pending[:, 0]), situation.number("beta"))
    sampled: Criterion = qUpperConfidenceBound(
        situation.learned.model, situation.number("beta"), **_sampled(situation)
    )
    return sampled


def improvement(situation: Situation) -> Criterion:
    """Return the logarithm of the expected improvement over the best trial.

    It has the same maximum as the improvement, with useful gradients everywhere.
    """
    exact, told = situation.learned.exact, situation.learned.told
    if exact is not None:
        best = torch.cat([told, situation.pending])[:, 0]
        highest = float(exact.moments(best)[0].max())
        return LogImprovement(exact.believing(situation.pending[:, 0]), highest)
    told = torch.unique(told.flatten(0, 1), dim=0)
    common = _sampled(situation)
    best = prune_inferior_points(
        situation.learned.model,
        told,
        objective=common.get("objective"),
        max_frac=min(1.0, BASELINE / len(told)),
    )
    sampled: Criterion = qLogNoisyExpectedImprovement(
        situation.learned.model,
        best,
        prune_baseline=False,
        cache_root=False,  # caching is slow for variational models
        **common,
    )
    return sampled


_ACQUISITIONS: dict[str, Callable[[Situation], Criterion]] = {
    "MCLevelSetEstimation": straddle,
    "EAVC": volume_change,
    "GlobalMI": global_information,
    "LocalMI": local_information,
    "MCPosteriorVariance": objective_variance,
    "PairwiseMCPosteriorVariance": pair_variance,
    "BernoulliMCMutualInformation": mutual_information,
    "qNegIntegratedPosteriorVariance": integrated_variance,
    "qUpperConfidenceBound": upper_confidence_bound,
    "qLogNoisyExpectedImprovement": improvement,
    "qNoisyExpectedImprovement": improvement,
}


def acquisition_of(situation: Situation) -> Criterion:
    """Return the acquisition function that the config names. Raises InvalidInput."""
    return _ACQUISITIONS[situation.acquisition.kind](situation)
