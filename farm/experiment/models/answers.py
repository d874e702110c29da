"""Answers to queries about the surrogate of a strategy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import Config
from farm.experiment.config.work import Answered, Data, Query, QueryKind
from farm.experiment.models.domain import Domain
from farm.experiment.models.libraries import alone
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.search import search
from farm.experiment.models.surrogate import Learned


def answer(query: Query) -> Answered:
    """Return the mean of each outcome at a point: the given one, or the one searched for.

    A search considers the first outcome: its maximum, its minimum or the value nearest to y. For
    pairs, the value is the utility of a single point, and x has the shape (1, 1, d); a prediction
    for two stimuli is the difference of the second utility and the first. Raises InvalidInput.
    """
    with alone(query.seed):
        domain = Domain(query.config.parameters, query.config.stimuli, {})
        learned = _learned(query.config, query.strategy, domain, query.data)
        if query.probability and not all(known.binary for known in learned):
            raise InvalidInput(
                "probability_space is true, but the model is not of binary outcomes; expected false"
            )
        if query.kind is QueryKind.PREDICTION:
            return _prediction(query, domain, learned)
        return _sought(query, learned)


def predict(config: Config, strategy: int, data: Data, points: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of each outcome at points, both of shape (m, outcomes).

    They exclude the noise of the outcome; for a binary outcome they are those of its probability.
    points: shape (m, stimuli, d); for pairs (m, 1, d) gives the utilities of single points. Raises
    InvalidInput.
    """
    with alone(0), torch.no_grad():
        domain = Domain(config.parameters, config.stimuli, {})
        positions = _positions(domain, points)
        whole = positions.shape[1] == config.stimuli
        found = [
            known.seen(positions, probability=known.binary and whole)
            for known in _learned(config, strategy, domain, data)
        ]
    mean, sd = (torch.stack(column, 1).numpy() for column in zip(*found, strict=True))
    return mean, sd


def _learned(config: Config, number: int, domain: Domain, data: Data) -> list[Learned]:
    """Return the fitted model of each outcome."""
    strategy = config.strategies[number]
    if strategy.surrogate is None:
        raise InvalidInput(f"strategy {strategy.name!r} has no model; expected one")
    if not len(data.x):
        raise InvalidInput("no trial is modelled yet; tell at least one outcome before a query")
    return [
        Learned.of(strategy.surrogate, outcome, domain, data)
        for outcome in range(len(config.outcomes))
    ]


def _positions(domain: Domain, points: Array) -> Tensor:
    return torch.as_tensor(domain.positions(np.asarray(points, dtype=float)), dtype=DTYPE)


def _prediction(query: Query, domain: Domain, learned: list[Learned]) -> Answered:
    if query.x is None or len(query.x) != 1:
        raise InvalidInput("a prediction needs x, one point; expected a value of each parameter")
    return Answered(query.x, _values(learned, domain, query.x, probability=query.probability))


def _values(
    learned: list[Learned], domain: Domain, raw: Array, *, probability: bool
) -> tuple[float, ...]:
    points = _positions(domain, raw)
    with torch.no_grad():
        return tuple(float(known.seen(points, probability=probability)[0]) for known in learned)


def _sought(query: Query, learned: list[Learned]) -> Answered:
    first = learned[0]
    single = Domain(query.config.parameters, 1, query.constraints)
    if query.kind is QueryKind.INVERSE and query.y is None:
        raise InvalidInput("an inverse query needs y; expected a number")
    wanted = 0.0 if query.y is None else query.y / first.scale

    def criterion(points: Tensor) -> Tensor:
        # Values are in units of the outcomes' spread, so that the search's tolerance fits them.
        values = first.seen(points, probability=query.probability)[0] / first.scale
        if query.kind is QueryKind.INVERSE:
            return -((values - wanted) ** 2)
        return values if query.kind is QueryKind.MAX else -values

    told = first.told.flatten(0, 1)[-256:, None].numpy()
    best = search(criterion, single, avoid=told[:0], starts=told, timeout_s=query.max_time_s)
    x = single.raw(best.point[None])
    return Answered(x, _values(learned, single, x, probability=query.probability))
