"""Does a piece of work, in whatever process: without a surrogate here, with one in `models`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType

from farm.call import Array
from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment import names
from farm.experiment.config import Config, Strategy
from farm.experiment.generators import generate_model_free
from farm.experiment.work import Answered, Data, Generate, Generated, Query, Work

LIBRARIES = ("torch", "gpytorch", "botorch")
"""What surrogates are made with."""
INSTALL = 'pip install "modelfarm[experiments]"'


def needs_surrogate(work: Work) -> bool:
    """Whether a surrogate is fitted for the work, or what a surrogate is made with is used."""
    if not isinstance(work, Generate):
        return True
    strategy = work.config.strategies[work.strategy]
    if work.filler:
        return False
    return strategy.generator.kind not in names.MODEL_FREE or _is_measured(work, strategy)


def perform(work: Work) -> Generated | Answered:
    """The points or the answer that the work is for. Raises FarmError."""
    strategy = work.config.strategies[work.strategy]
    made: Generated | Answered
    if isinstance(work, Query):
        if strategy.surrogate is None:
            raise InvalidInput(
                f"strategy {strategy.name!r} has no model to answer a query; expected one in "
                f"[{strategy.name}] model"
            )
        made = _models(strategy).answer(work)
    elif work.filler or strategy.generator.kind in names.MODEL_FREE:
        made = generate_model_free(work)
        if needs_surrogate(work):
            made = replace(made, post_range=_models(strategy).post_range(work))
    else:
        made = _models(strategy).generate(work)
    return made


def _is_measured(work: Generate, strategy: Strategy) -> bool:
    """Whether the strategy goes on until its surrogate, which makes no points, tells enough."""
    known = strategy.surrogate is not None and len(work.data.x) > 0
    return known and strategy.min_post_range is not None


def predict(config: Config, strategy: int, data: Data, points: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each outcome at points, both of shape (m, outcomes).

    They are those of the surrogate of strategy number `strategy` for what an outcome is without
    its noise: of the probability where it is yes or no. points: shape (m, stimuli, d); for pairs
    (m, 1, d) gives the utilities of single points. Raises FarmError.
    """
    found: tuple[Array, Array]
    found = _models(config.strategies[strategy]).predict(config, strategy, data, points)
    return found


def _models(strategy: Strategy) -> ModuleType:
    try:
        import farm.experiment.models
    except ImportError as error:
        raise UnsupportedFeature(
            f"strategy {strategy.name!r} uses a model, which needs BoTorch ({error}): {INSTALL}"
        ) from error
    return farm.experiment.models


def load() -> None:
    """Import now what surrogates need, if it is installed; it takes seconds."""
    with suppress(ImportError):
        import farm.experiment.models  # noqa: F401  # for what it loads


def can_perform(config: Config) -> None:
    """Raise UnsupportedFeature when a strategy needs what is not installed; imports nothing."""
    for strategy in config.strategies:
        if strategy.surrogate is None:
            continue
        for library in LIBRARIES:
            if find_spec(library) is None:
                raise UnsupportedFeature(
                    f"[{strategy.name}] model = {strategy.surrogate.name} needs the package "
                    f"{library}: {INSTALL}"
                )
