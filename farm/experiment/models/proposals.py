"""The next points of a strategy with a surrogate."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import Acquisition, Generator
from farm.experiment.config.work import Generate, Generated
from farm.experiment.models.criteria import Situation, acquisition_of
from farm.experiment.models.domain import Domain
from farm.experiment.models.libraries import alone
from farm.experiment.models.normal import DTYPE
from farm.experiment.models.search import BestPosition, search
from farm.experiment.models.surrogate import Learned

RANGE_POINTS = 1024

NO_DATA = "no trial is modelled yet: points that fill the space"
CROWDED = "every point is in flight: one of them again"


def generate(work: Generate) -> Generated:
    """Return the points that maximise the acquisition function, chosen one after another.

    Each chosen point counts as in flight for the next. With a generator for each outcome there are
    `count` points for each. Raises InvalidInput for invalid options.
    """
    strategy = work.config.strategies[work.strategy]
    if strategy.surrogate is None:
        raise InvalidInput(f"strategy {strategy.name!r} has no model; expected one")
    with alone(work.seed):
        domain = Domain(work.config.parameters, work.config.stimuli, work.fixed)
        pending = np.asarray(work.pending, dtype=float)
        flying = domain.positions(pending.reshape(-1, domain.stimuli, len(domain.free)))
        jobs = _jobs(strategy.generator, work.count)
        made: list[Array] = []
        notes: list[str] = []
        learned: dict[int, Learned] = {}
        if len(work.data.x):
            learned = {i: Learned.of(strategy.surrogate, i, domain, work.data) for i, _ in jobs}
        for number, (outcome, acquisition) in enumerate(jobs):
            seed = seed_of(work.seed, work.strategy, work.asked + number)
            if outcome in learned:
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
        for outcome in range(len(work.config.outcomes)):
            known = Learned.of(strategy.surrogate, outcome, domain, work.data)
            points = torch.as_tensor(domain.sample(RANGE_POINTS, 0)[:, :1], dtype=DTYPE)
            probability = known.binary and domain.stimuli == 1
            values, _ = known.seen(points, probability=probability)
            spans.append(float(values.max() - values.min()))
    return min(spans)
