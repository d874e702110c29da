"""The acquisition functions, which rate candidates for the next point, by their names in configs.

Functions that BoTorch has are BoTorch's own. The others are implemented here as BoTorch acquisition
functions in closed form, assuming that points in flight have their expected outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.acquisition.objective import GenericMCObjective
from botorch.acquisition.utils import prune_inferior_points
from botorch.sampling.normal import SobolQMCNormalSampler
from torch import Tensor

from farm.errors import InvalidInput
from farm.experiment.config.definition import Acquisition
from farm.experiment.config.ini import Section
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
        given = self.acquisition.options
        value: float = ACQUISITION.read(Section(self.acquisition.name, given, given), option)
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
        if self.objective not in ("ProbitObjective", "FloorProbitObjective", "FloorLogitObjective"):
            return f
        p = torch.sigmoid(f) if self.objective == "FloorLogitObjective" else cdf(f)
        return self.floor + (1 - self.floor) * p

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the objective for normal values of the process."""
        rest = 1 - self.floor
        if self.objective == "FloorLogitObjective":
            values, weights = nodes(mean, variance)
            made = self.made(values)
            centre = (made * weights).sum(-1)
            return centre, ((made - centre[..., None]) ** 2 * weights).sum(-1)
        if self.objective in ("ProbitObjective", "FloorProbitObjective"):
            p, spread = probit_mean(mean, variance), probit_variance(mean, variance)
            return self.floor + rest * p, rest**2 * spread
        return mean, variance

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
    """The joint posterior of f at trials (b,) and points (q,), given points in flight.

    covariance: of each trial with each point, (b, q). noise: variance of an observation at a trial.
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor
    point_mean: Tensor
    point_variance: Tensor
    covariance: Tensor


class Believing(AcquisitionFunction):  # type: ignore[misc]  # botorch has no types
    """A criterion of single trials, X of shape (b, stimuli, d), from the moments of f there.

    Points in flight count as observed with their expected outcome: the variance falls, the mean
    stays. `points`: further points whose moments the criterion uses.
    """

    def __init__(self, situation: Situation) -> None:
        super().__init__(model=situation.learned.model)
        self.situation = situation
        self.points = situation.pending[:0]

    def look(self, X: Tensor) -> Look:
        """Return the joint posterior at X and at the points."""
        learned, pending = self.situation.learned, self.situation.pending
        b, p = len(X), len(pending)
        mean, covariance = learned.joint(torch.cat([X, pending, self.points]))
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
            mean[b + p :],
            variance[b + p :],
            covariance[:b, b + p :],
        )


class Straddle(Believing):
    """The straddle, sqrt(beta * variance) - |mean - target|. Source: Bryan et al. (2005)."""

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self._beta = situation.number("beta")
        self._target = situation.target()

    def forward(self, X: Tensor) -> Tensor:
        look = self.look(X)
        mean, variance = self.situation.moments(look.mean, look.variance)
        return torch.sqrt(self._beta * variance + 1e-18) - (mean - self._target).abs()


class Variance(Believing):
    """The variance of the objective."""

    def forward(self, X: Tensor) -> Tensor:
        look = self.look(X)
        return self.situation.moments(look.mean, look.variance)[1]


class PairVariance(Believing):
    """The variance of the probability that the second of a pair is preferred."""

    def forward(self, X: Tensor) -> Tensor:
        look = self.look(X)
        return probit_variance(look.mean, look.variance)


class MutualInformation(Believing):
    """Mutual information of outcome and process at the point. Source: Houlsby et al. (2011)."""

    def forward(self, X: Tensor) -> Tensor:
        look = self.look(X)
        if not self.situation.learned.binary:
            return 0.5 * torch.log1p(look.variance / look.noise)
        values, weights = nodes(look.mean, look.variance)
        p = probit_mean(look.mean, look.variance)
        return entropy(p) - (entropy(cdf(values)) * weights).sum(-1)


class IntegratedVariance(Believing):
    """The expected reduction of the process's variance by an observation, averaged over the space.

    This is BoTorch's qNegIntegratedPosteriorVariance minus a constant, in closed form: that one
    adds fantasy trials to the model, which models of binary outcomes do not support.
    """

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self.points = situation.everywhere()

    def forward(self, X: Tensor) -> Tensor:
        look = self.look(X)
        return (look.covariance**2 / (look.variance + look.noise)[:, None]).mean(-1)


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

    Both have a closed form for a binary outcome, by the bivariate normal distribution, and take one
    quadrature for a normal outcome. Source: Letham, Guan, Tymms, Bakshy and Shvartsman, Look-Ahead
    Acquisition Functions for Bernoulli Level Set Estimation, AISTATS 2022.
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


class LookAhead(Believing):
    """The information that an observation gives about the set above the target."""

    def __init__(self, situation: Situation, *, judged: Callable[[Ahead], Tensor]) -> None:
        super().__init__(situation)
        self.points = situation.everywhere()
        self._level = situation.level()
        self._judged = judged

    def forward(self, X: Tensor) -> Tensor:
        look = self.look(X)
        return self._judged(self._ahead(
            look, look.point_mean[None], look.point_variance[None], look.covariance
        ))  # fmt: skip

    def _ahead(self, look: Look, mean: Tensor, variance: Tensor, joint: Tensor) -> Ahead:
        noise = None if self.situation.learned.binary else look.noise
        return look_ahead(look.mean, look.variance, mean, variance, joint, self._level, noise)


class LookAheadHere(LookAhead):
    """The information that an observation gives about whether its own point is above the target."""

    def forward(self, X: Tensor) -> Tensor:
        look = self.look(X)
        own = look.variance[:, None]
        return self._judged(self._ahead(look, look.mean[:, None], own, own))


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
    "MCLevelSetEstimation": Straddle,
    "EAVC": partial(LookAhead, judged=Ahead.volume_change),
    "GlobalMI": partial(LookAhead, judged=Ahead.information),
    "LocalMI": partial(LookAheadHere, judged=Ahead.information),
    "MCPosteriorVariance": Variance,
    "PairwiseMCPosteriorVariance": PairVariance,
    "BernoulliMCMutualInformation": MutualInformation,
    "qNegIntegratedPosteriorVariance": IntegratedVariance,
    "qUpperConfidenceBound": upper_confidence_bound,
    "qLogNoisyExpectedImprovement": improvement,
    "qNoisyExpectedImprovement": improvement,
}


def acquisition_of(situation: Situation) -> Criterion:
    """Return the acquisition function that the config names. Raises InvalidInput."""
    return _ACQUISITIONS[situation.acquisition.kind](situation)
