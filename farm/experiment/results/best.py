"""The best point of an experiment: among the recorded trials, and by its surrogate's mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.ask.execute import execute
from farm.experiment.config.definition import Config, OutcomeKind
from farm.experiment.state.experiment import Experiment
from farm.experiment.work import Answered, Query, QueryKind


@dataclass(frozen=True, slots=True)
class Best:
    """A point and its outcomes, by name. probability: outcomes are probabilities of a 1."""

    point: Mapping[str, Any]
    outcomes: Mapping[str, float]
    probability: bool = False

    def __str__(self) -> str:
        """Return the point and outcomes as one line."""
        probability = "probability of " * self.probability
        return f"{in_words(self.point)}: {probability}{in_words(self.outcomes)}"


def in_words(values: Mapping[str, Any]) -> str:
    """Return values by name as one line, to six digits."""
    return ", ".join(f"{name} = {_shown(value)}" for name, value in values.items())


def best_told(experiment: Experiment, outcome: str | None = None, *, least: bool = False) -> Best:
    """Return the recorded point with the greatest outcome, or the least.

    outcome: which one, if there are several. Raises InvalidInput if no trial was recorded, or the
    outcome is binary: ones and zeros have no single best.
    """
    place = place_of(experiment.config, outcome)
    chosen = experiment.config.outcomes[place]
    if chosen.kind is OutcomeKind.BINARY:
        raise InvalidInput(
            f"outcome {chosen.name!r} is binary, so no recorded point is better than another; the "
            "surrogate predicts where a 1 is most likely"
        )
    x, y = experiment.trials
    if not len(y):
        raise InvalidInput(f"experiment {experiment.number} has no trial that is modelled yet")
    at = int(np.argmin(y[:, place]) if least else np.argmax(y[:, place]))
    return _best(experiment, x[at : at + 1], y[at].tolist(), probability=False)


def best_expected(
    experiment: Experiment, outcome: str | None = None, *, least: bool = False
) -> Best:
    """Return the point where the surrogate's mean is greatest, or least.

    For a binary outcome, the mean is its probability. Raises FarmError if the surrogate, its
    data or its libraries are missing.
    """
    place = place_of(experiment.config, outcome)
    strategy = experiment.with_surrogate()
    if strategy is None:
        raise InvalidInput(
            f"experiment {experiment.number} has no strategy with a model, which could predict it"
        )
    if not experiment.has_data(strategy):
        raise InvalidInput(f"experiment {experiment.number} has no trial that is modelled yet")
    if len(experiment.config.outcomes) > 1:
        raise InvalidInput("the surrogate's best point of several outcomes is not defined")
    probability = experiment.config.outcomes[place].kind is OutcomeKind.BINARY
    answer = execute(
        Query(
            config=experiment.config,
            strategy=strategy,
            kind=QueryKind.MIN if least else QueryKind.MAX,
            data=experiment.data(strategy),
            probability=probability,
            seed=experiment.seed,
        )
    )
    assert isinstance(answer, Answered), "a query has an answer"
    return _best(experiment, answer.x, list(answer.y), probability=probability)


def _best(experiment: Experiment, x: Array, y: list[float], *, probability: bool) -> Best:
    names = [outcome.name for outcome in experiment.config.outcomes]
    return Best(experiment.space.values(x[0]), dict(zip(names, y, strict=True)), probability)


def place_of(config: Config, outcome: str | None) -> int:
    """Return the position of an outcome; of the first one by default. Raises InvalidInput."""
    names = [one.name for one in config.outcomes]
    if outcome is None:
        return 0
    if outcome not in names:
        raise InvalidInput(f"no outcome {outcome!r}; expected one of {', '.join(names)}")
    return names.index(outcome)


def _shown(value: object) -> str:
    if isinstance(value, list):  # a pair of stimuli
        return f"[{', '.join(map(_shown, value))}]"
    return f"{value + 0.0:.6g}" if isinstance(value, float) else str(value)
