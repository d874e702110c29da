"""Experiments for the tests of models, built without the configuration grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import qmc

from farm.call import Array
from farm.experiment.config.definition import (
    Acquisition,
    Config,
    Generator,
    Outcome,
    OutcomeKind,
    Parameter,
    ParameterKind,
    Strategy,
    Surrogate,
)
from farm.experiment.space import Space
from farm.experiment.work import Data, Generate

if TYPE_CHECKING:
    from farm.experiment.models.surrogate import Learned

REGRESSION = "GPRegressionModel"
CLASSIFICATION = "GPClassificationModel"
PAIRWISE = "PairwiseProbitModel"
IMPROVEMENT = "qLogNoisyExpectedImprovement"
STRADDLE = "MCLevelSetEstimation"
PROBIT = "ProbitObjective"

SQUARE = (Parameter("a"), Parameter("b"))
SHAPE = Parameter("shape", ParameterKind.CATEGORICAL, upper=2, choices=("a", "b", "c"))
BRANIN_BOUNDS = (Parameter("x", lower=-5.0, upper=10.0), Parameter("y", lower=0.0, upper=15.0))
BRANIN_BEST = -0.397887


def config(
    model: str,
    acqf: str = IMPROVEMENT,
    *,
    parameters: tuple[Parameter, ...] = SQUARE,
    objective: str = "",
    options: Mapping[str, str] | None = None,
    min_post_range: float | None = None,
) -> Config:
    """Return a config with one strategy, one model and one outcome."""
    acquisition = Acquisition(acqf, acqf, options or {}, objective)
    generator = Generator("OptimizeAcqfGenerator", "generator", {}, acquisition)
    kind = OutcomeKind.CONTINUOUS if model == REGRESSION else OutcomeKind.BINARY
    strategy = Strategy(
        "learning", generator, Surrogate(model, model), min_post_range=min_post_range
    )
    stimuli = 2 if model == PAIRWISE else 1
    return Config("", parameters, (Outcome("seen", kind),), (strategy,), stimuli)


def data(x: Array, y: Array, fit_to: int | None = None) -> Data:
    """Return trials (n, d) or (n, stimuli, d) with one outcome (n,)."""
    x = np.asarray(x, dtype=float)
    y = np.asarray(y, dtype=float)
    x = x[:, None, :] if x.ndim == 2 else x
    return Data(x, y[:, None] if y.ndim == 1 else y, len(x) if fit_to is None else fit_to)


def ask(
    config: Config,
    known: Data,
    count: int = 1,
    *,
    asked: int = 0,
    pending: Array | None = None,
    fixed: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Generate:
    """Return work for the only strategy."""
    if pending is None:
        pending = np.empty((0, config.stimuli, Space.of(config).dimensions))
    return Generate(config, 0, count, asked, known, pending, fixed or {}, seed)


def spread(config: Config, count: int, seed: int = 0) -> Array:
    """Return Sobol points (count, d) within the bounds, not rounded."""
    free = Space.of(config).free
    unit = sobol(len(free), count, seed)
    scaled: Array = qmc.scale(unit, [p.lower for p in free], [p.upper for p in free])
    return scaled


def sobol(dimensions: int, count: int, seed: int = 0) -> Array:
    """Return the first points of a scrambled sequence, shape (count, dimensions)."""
    whole = 1 << max(count - 1, 0).bit_length()  # scipy warns unless the count is a power of two
    unit: Array = qmc.Sobol(dimensions, seed=seed).random(whole)[:count]
    return unit


def branin(x: Array) -> Array:
    """Return the negative Branin function of points (n, 2); its three maxima are BRANIN_BEST."""
    a, b = x[:, 0], x[:, 1]
    bowl = (b - 5.1 / (4 * np.pi**2) * a**2 + 5 / np.pi * a - 6) ** 2
    return -(bowl + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10)


def learned(*, choices: bool = False) -> Learned:
    """Return a model of 20 trials with some noise."""
    from farm.experiment.models.domain import Domain
    from farm.experiment.models.surrogate import Learned

    rng = np.random.default_rng(0)
    x = sobol(2, 20, seed=1)
    x[:, 1] = rng.integers(0, 3, 20) if choices else x[:, 1]
    y = 100 + 5 * np.sin(6 * x[:, 0]) + x[:, 1] + 0.1 * rng.standard_normal(20)
    domain = Domain((SQUARE[0], SHAPE) if choices else SQUARE, 1, {})
    return Learned.of(Surrogate(REGRESSION, REGRESSION), 0, domain, data(x, y))
