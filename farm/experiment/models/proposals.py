"""The next points of a strategy with a surrogate, and answers to queries about it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import Acquisition, Config, Generator
from farm.experiment.models.criteria import Situation, acquisition_of
from farm.experiment.models.domain import Domain
from farm.experiment.models.libraries import alone
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.search import BestPosition, search
from farm.experiment.models.surrogate import Learned
from farm.experiment.work import Answered, Data, Generate, Generated, Query, QueryKind

RANGE_POINTS = 1024

NO_DATA = "no trial is modelled yet: points that fill the space"
CROWDED = "every point is in flight: one of them again"


def generate(work: Generate) -> Generated:
    """Return the points that maximise the acquisition function, chosen one after another.

    Each chosen point counts as in flight for the next. With a generator for each outcome there are
    `count` points for each. Raises InvalidInput for invalid options.
    """
    with alone(work.seed):
        domain = Domain(work.config.parameters, work.config.stimuli, work.fixed)
        pending = np.asarray(work.pending, dtype=float)
        flying = domain.positions(pending.reshape(-1, domain.stimuli, len(domain.free)))
        made: list[Array] = []
        notes: list[str] = []
        learned = Learned.all(work.config, work.strategy, domain, work.data)
        jobs = _jobs(work.config.strategies[work.strategy].generator, work.count)
        for number, (outcome, acquisition) in enumerate(jobs):
            seed = seed_of(work.seed, work.strategy, work.asked + number)
            if learned:
                best = _best(acquisition, learned[outcome], domain, flying, seed)
            else:
                best = _filling(domain, flying, seed)
                notes.append(NO_DATA)
            if best.crowded:
                notes.append(CROWDED)
            flying = np.concatenate([flying, best.point[None]])
            made.append(domain.raw(best.point[None]))
        points = np.concatenate(made) if made else np.empty((0, *flying.shape[1:]))
        return Generated(points, "; ".join(dict.fromkeys(notes)), post_range(work))


def seed_of(*numbers: int) -> int:
    """Return one seed derived from several numbers."""
    sequence = np.random.SeedSequence([number % 2**63 for number in numbers])
    return int(sequence.generate_state(1, np.uint32)[0]) % 2**31


def _jobs(generator: Generator, count: int) -> list[tuple[int, Acquisition]]:
    """Return the outcome and acquisition function of each point to generate."""
    parts = generator.parts or (generator,)
    jobs = []
    for outcome, part in enumerate(parts):
        if part.acquisition is None:
            raise InvalidInput(f"generator {part.name!r} has no acqf; expected one")
        jobs += [(outcome, part.acquisition)] * count
    return jobs


def _best(
    acquisition: Acquisition, known: Learned, domain: Domain, flying: Array, seed: int
) -> BestPosition:
    pending = torch.as_tensor(flying, dtype=DTYPE)
    with alone(seed):
        return search(
            acquisition_of(Situation(acquisition, known, domain, pending, seed)),
            domain,
            avoid=flying,
            starts=known.promising().numpy(),
        )


def _filling(domain: Domain, flying: Array, seed: int) -> BestPosition:
    """Return the point farthest from those in flight."""
    others = torch.as_tensor(flying, dtype=DTYPE).flatten(1)

    def criterion(points: Tensor) -> Tensor:
        if not len(others):
            return points.flatten(1).sum(-1) * 0.0
        return ((points.flatten(1)[:, None] - others[None]) ** 2).sum(-1).amin(-1)

    with alone(seed):
        return search(criterion, domain, avoid=flying, starts=flying[:0])


def post_range(work: Generate) -> float | None:
    """Return `Generated.post_range`, or None if no rule of the strategy needs it.

    Of several outcomes, the smallest range counts.
    """
    strategy = work.config.strategies[work.strategy]
    if strategy.min_post_range is None or strategy.surrogate is None or not len(work.data.x):
        return None
    domain = Domain(work.config.parameters, work.config.stimuli, {})
    spans = []
    with alone(work.seed), torch.no_grad():
        for known in Learned.all(work.config, work.strategy, domain, work.data):
            points = torch.as_tensor(domain.sample(RANGE_POINTS, 0)[:, :1], dtype=DTYPE)
            probability = known.binary and domain.stimuli == 1
            values, _ = known.seen(points, probability=probability)
            spans.append(float(values.max() - values.min()))
    return min(spans)


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
        moments = [
            known.seen(positions, probability=known.binary and whole)
            for known in _learned(config, strategy, domain, data)
        ]
    mean, sd = (torch.stack(column, 1).numpy() for column in zip(*moments, strict=True))
    return mean, sd


def _learned(config: Config, number: int, domain: Domain, data: Data) -> list[Learned]:
    """Return the fitted model of each outcome."""
    if not (learned := Learned.all(config, number, domain, data)):
        raise InvalidInput("no trial is modelled yet; tell at least one outcome before a query")
    return learned


def _positions(domain: Domain, points: Array) -> Tensor:
    return torch.as_tensor(domain.positions(np.asarray(points, dtype=float)), dtype=DTYPE)


def _prediction(query: Query, domain: Domain, learned: list[Learned]) -> Answered:
    if query.x is None or len(query.x) != 1:
        raise InvalidInput("a prediction needs x, one point; expected a value of each parameter")
    return _answered(query, learned, domain, query.x)


def _answered(query: Query, learned: list[Learned], domain: Domain, raw: Array) -> Answered:
    """Return the means at a point."""
    points = _positions(domain, raw)
    with torch.no_grad():
        means = [known.seen(points, probability=query.probability)[0] for known in learned]
    return Answered(raw, tuple(map(float, means)))


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
    return _answered(query, learned, single, single.raw(best.point[None]))
