"""Answers to questions about the surrogate of a strategy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config import Surrogate as Kind
from farm.experiment.models.domain import Domain
from farm.experiment.models.libraries import alone
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.search import search
from farm.experiment.models.surrogate import Learned
from farm.experiment.work import Answered, Query, QueryKind


def answer(query: Query) -> Answered:
    """The mean of each outcome at a point: the one given, or the one that is sought.

    Of several outcomes the first one is the one that is greatest, least or nearest to y. Of pairs
    the value is the utility of a single point, and x has the shape (1, 1, d); a prediction for two
    stimuli tells how much more the second one has. Raises InvalidInput.
    """
    strategy = query.config.strategies[query.strategy]
    if strategy.surrogate is None:
        raise InvalidInput(f"strategy {strategy.name!r} has no model; expected one")
    if not len(query.data.x):
        raise InvalidInput("no trial is modelled yet; tell at least one outcome before a query")
    with alone(query.seed):
        domain = Domain(query.config.parameters, query.config.stimuli, {})
        outcomes = range(len(query.config.outcomes))
        learned = [
            Learned.of(_kind(strategy.surrogate, i), i, domain, query.data) for i in outcomes
        ]
        if query.probability and not all(known.binary for known in learned):
            raise InvalidInput(
                "probability_space is true, but the model is one of numbers; expected false"
            )
        if query.kind is QueryKind.PREDICTION:
            return _prediction(query, domain, learned)
        return _sought(query, learned)


def _kind(surrogate: Kind, outcome: int) -> Kind:
    return surrogate.parts[outcome] if surrogate.parts else surrogate


def _prediction(query: Query, domain: Domain, learned: list[Learned]) -> Answered:
    if query.x is None or len(query.x) != 1:
        raise InvalidInput("a prediction needs x, one point; expected a value of each parameter")
    return Answered(query.x, _values(learned, domain, query.x, probability=query.probability))


def _values(
    learned: list[Learned], domain: Domain, raw: Array, *, probability: bool
) -> tuple[float, ...]:
    points = torch.as_tensor(domain.positions(np.asarray(raw, dtype=float)), dtype=DTYPE)
    with torch.no_grad():
        return tuple(float(known.seen(points, probability=probability)[0]) for known in learned)


def _sought(query: Query, learned: list[Learned]) -> Answered:
    first = learned[0]
    single = Domain(query.config.parameters, 1, query.constraints)
    if query.kind is QueryKind.INVERSE and query.y is None:
        raise InvalidInput("an inverse query needs y; expected a number")

    def criterion(points: Tensor) -> Tensor:
        # In units of the outcomes' own spread, so that a search stops neither early nor late.
        values = first.seen(points, probability=query.probability)[0] / first.scale
        if query.kind is QueryKind.INVERSE:
            return -((values - query.y / first.scale) ** 2)
        return values if query.kind is QueryKind.MAX else -values

    told = first.told.flatten(0, 1)[-256:, None].numpy()
    best = search(
        criterion, single, avoid=told[:0], starts=told, timeout_s=query.max_time_s
    )
    x = single.raw(best.point[None])
    return Answered(x, _values(learned, single, x, probability=query.probability))
