"""Performs a piece of work in the current process: by `models` if it needs a surrogate."""

from __future__ import annotations

import traceback
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType

from farm.call import Array
from farm.errors import FarmError, InvalidInput, Unavailable, UnsupportedFeature
from farm.experiment.ask.generators import generate_model_free
from farm.experiment.config.definition import MODEL_FREE, Config, Strategy
from farm.experiment.work import Answered, Data, Generate, Generated, Query, Work

LIBRARIES = ("torch", "gpytorch", "botorch")
"""The libraries that surrogates need."""
INSTALL = 'pip install "modelfarm[experiments]"'


def needs_surrogate(work: Work) -> bool:
    """Whether the work needs the surrogate libraries, to fit a model or otherwise."""
    if not isinstance(work, Generate):
        return True
    strategy = work.config.strategies[work.strategy]
    if work.filler:
        return False
    if strategy.generator.kind not in MODEL_FREE:
        return True
    # It may end by its surrogate's range although its points need no surrogate.
    known = strategy.surrogate is not None and len(work.data.x) > 0
    return known and strategy.min_post_range is not None


def execute(work: Work) -> Generated | Answered:
    """Return the points or the answer that the work requests. Raises FarmError."""
    strategy = work.config.strategies[work.strategy]
    made: Generated | Answered
    if isinstance(work, Query):
        if strategy.surrogate is None:
            raise InvalidInput(
                f"strategy {strategy.name!r} has no model to answer a query; expected one in "
                f"[{strategy.name}] model"
            )
        made = _models(strategy).answer(work)
    elif work.filler or strategy.generator.kind in MODEL_FREE:
        made = generate_model_free(work)
        if needs_surrogate(work):
            made = replace(made, post_range=_models(strategy).post_range(work))
    else:
        made = _models(strategy).generate(work)
    return made


def outcome(work: Work) -> Generated | Answered | FarmError:
    """Return the result of the work, or the error if it failed for any reason."""
    try:
        return execute(work)
    except FarmError as error:
        return error
    except MemoryError:
        return Unavailable("there is not enough memory for the surrogate of this experiment")
    except Exception as error:
        said = " ".join(str(error).split())
        return Unavailable(
            f"the surrogate cannot be fitted to this data: {type(error).__name__}: {said}",
            detail=traceback.format_exc(),
        )


def predict(config: Config, strategy: int, data: Data, points: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each outcome at points, both of shape (m, outcomes).

    They are predicted by the surrogate of strategy number `strategy` and exclude the noise of the
    outcome; for a binary outcome they are those of its probability. points: shape (m, stimuli, d);
    for pairs (m, 1, d) gives the utilities of single points. Raises FarmError.
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
    """Import all that surrogates need, if it is installed; takes seconds, computes nothing."""
    with suppress(ImportError):
        import farm.experiment.models

        farm.experiment.models.libraries.import_the_rest()


def can_execute(config: Config) -> None:
    """Raise UnsupportedFeature if a strategy's libraries are not installed; imports nothing."""
    for strategy in config.strategies:
        if strategy.surrogate is None:
            continue
        for library in LIBRARIES:
            if find_spec(library) is None:
                raise UnsupportedFeature(
                    f"[{strategy.name}] model = {strategy.surrogate.name} needs the package "
                    f"{library}: {INSTALL}"
                )
