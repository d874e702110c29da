"""Answers to questions about the surrogate of a strategy."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from farm.errors import InvalidInput
from farm.experiment.config import Surrogate as Kind
from farm.experiment.models.domain import Domain
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.proposals import alone, seed_of
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
    unit = torch.as_tensor(domain.unit(np.asarray(query.x, dtype=float)), dtype=DTYPE)
    return Answered(query.x, _values(learned, unit, probability=query.probability))


def _values(learned: list[Learned], unit: Tensor, *, probability: bool) -> tuple[float, ...]:
    whole = unit.shape[-2] == 2
    found = []
    for known in learned:
        rows = known.trials(unit) if whole else known.singles(unit[:, 0])
        found.append(float(known.value(rows, probability=probability)[0]))
    return tuple(found)


def _sought(query: Query, learned: list[Learned]) -> Answered:
    first = learned[0]
    single = Domain(query.config.parameters, 1, query.constraints)

    def mean(unit: Tensor) -> Tensor:
        return first.value(first.singles(unit[:, 0]), probability=query.probability)

    def criterion(unit: Tensor) -> Tensor:
        # In units of the outcomes' own spread, so that a search stops neither early nor late.
        values = mean(unit) / first.scale
        if query.kind is QueryKind.INVERSE:
            assert query.y is not None
            return -((values - query.y / first.scale) ** 2)
        return values if query.kind is QueryKind.MAX else -values

    if query.kind is QueryKind.INVERSE and query.y is None:
        raise InvalidInput("an inverse query needs y; expected a number")
    deadline = None if query.max_time_s is None else time.monotonic() + query.max_time_s
    told = first.told.reshape(-1, 1, first.told.shape[-1])[-256:].numpy()
    best = search(
        criterion,
        single,
        seed=seed_of(query.seed, query.strategy),
        avoid=told[:0],
        starts=told,
        deadline=deadline,
    )
    x = single.raw(best.point[None])
    unit = torch.as_tensor(single.unit(x), dtype=DTYPE)
    return Answered(x, _values(learned, unit, probability=query.probability))
