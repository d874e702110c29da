"""Does a piece of work, in whatever process: without a surrogate here, with one in `models`."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec

from farm.errors import InvalidInput, UnsupportedFeature
from farm.experiment import names
from farm.experiment.config import Config
from farm.experiment.generators import generate_model_free
from farm.experiment.work import Answered, Generate, Generated, Query, Work

LIBRARIES = ("torch", "gpytorch", "botorch")
"""What surrogates are made with."""
INSTALL = 'pip install "modelfarm[experiments]"'


def perform(work: Work) -> Generated | Answered:
    """The points or the answer that the work is for. Raises FarmError."""
    strategy = work.config.strategies[work.strategy]
    if isinstance(work, Generate):
        if work.filler or strategy.generator.kind in names.MODEL_FREE:
            return generate_model_free(work)
    elif strategy.surrogate is None:
        raise InvalidInput(
            f"strategy {strategy.name!r} has no model to answer a query; expected one in "
            f"[{strategy.name}] model"
        )
    try:
        from farm.experiment.models import answer, generate
    except ImportError as error:
        raise UnsupportedFeature(
            f"strategy {strategy.name!r} uses a model, which needs BoTorch ({error}): {INSTALL}"
        ) from error
    return answer(work) if isinstance(work, Query) else generate(work)


def load() -> None:
    """Import now what surrogates need, if it is installed; it takes seconds."""
    with suppress(ImportError):
        import farm.experiment.models  # noqa: F401


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
