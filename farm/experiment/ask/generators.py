"""Points that need no surrogate: sequences, random numbers and lists.

Points depend only on their number in the strategy: the sizes of the asks do not change them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import InvalidInput
from farm.experiment.config.definition import POINT_LISTS, Config, Generator, GeneratorKind
from farm.experiment.config.options import GENERATOR, LARGEST_BLOCK, SMALLEST_BLOCK
from farm.experiment.config.point_list import PointList, read_point_list
from farm.experiment.space import Space
from farm.experiment.work import Generate, Generated

FILLER_KEY = 0x66696C6C
"""Spawn key of filling points, distinct from the numbers of strategies."""


def generate_model_free(work: Generate) -> Generated:
    """Return the next points of a generator that needs no surrogate, or filling points.

    Raises InvalidInput.
    """
    strategy = work.config.strategies[work.strategy]
    space = Space.of(work.config)
    generator = strategy.generator
    if work.filler:
        seed = np.random.SeedSequence(work.seed, spawn_key=(work.strategy, FILLER_KEY))
        unit = _quasi_random(GeneratorKind.SOBOL, space, seed, work.asked, work.count)
        return Generated(space.hold(space.from_unit(unit), work.fixed))
    seed = _seed(generator, work)
    if generator.kind in POINT_LISTS:
        if work.fixed:
            raise InvalidInput(
                f"fixed_pars cannot be held: {generator.name} gives the points of its list"
            )
        listed = _in_order(read_point_list(generator, space), space, seed)
        return Generated(listed[work.asked : work.asked + work.count])
    if generator.kind == GeneratorKind.RANDOM:
        unit = _random(space, seed, work.asked, work.count)
    elif generator.kind == GeneratorKind.LATIN_HYPERCUBE:
        size = GENERATOR.read(generator.section, "size")
        if size is None:
            size = min(max(strategy.min_asks, SMALLEST_BLOCK), LARGEST_BLOCK)
        unit = _latin_hypercubes(space, seed, work.asked, work.count, size)
    else:
        unit = _quasi_random(generator.kind, space, seed, work.asked, work.count)
    return Generated(space.hold(space.from_unit(unit), work.fixed))


def length_of(generator: Generator, config: Config) -> int | None:
    """Return the total number of points of the generator; None: unlimited."""
    if generator.kind not in POINT_LISTS:
        return None
    return len(read_point_list(generator, Space.of(config)))


def _seed(generator: Generator, work: Generate) -> np.random.SeedSequence:
    """Return the seed sequence from the generator's own seed, or else from the experiment's."""
    seed = GENERATOR.read(generator.section, "seed")
    if seed is None:
        return np.random.SeedSequence(work.seed, spawn_key=(work.strategy,))
    return np.random.SeedSequence(seed)


def _quasi_random(
    kind: str, space: Space, seed: np.random.SeedSequence, asked: int, count: int
) -> Array:
    """Return points of a quasi-random sequence; the stimuli of a trial are further dimensions.

    Source: scipy.stats.qmc.
    """
    from scipy.stats import qmc

    engines: dict[str, Any] = {GeneratorKind.SOBOL: qmc.Sobol, GeneratorKind.HALTON: qmc.Halton}
    rng = np.random.Generator(np.random.PCG64(seed))
    engine: Any = engines[kind](space.stimuli * space.dimensions, scramble=True, rng=rng)
    if asked:
        engine.fast_forward(asked)
    # The first point is drawn separately: Sobol's engine warns if its first draw is not a power of
    # two, but an ask is a part of the sequence.
    first = 0 if asked else min(count, 1)
    points = np.empty((0, space.stimuli * space.dimensions))
    for n in (first, count - first):
        if n:
            points = np.concatenate([points, engine.random(n)])
    return points.reshape(count, space.stimuli, space.dimensions)


def _random(space: Space, seed: np.random.SeedSequence, asked: int, count: int) -> Array:
    bits = np.random.PCG64(seed)
    bits.advance(asked * space.stimuli * space.dimensions)  # one step per number
    return np.random.Generator(bits).random((count, space.stimuli, space.dimensions))


def _latin_hypercubes(
    space: Space, seed: np.random.SeedSequence, asked: int, count: int, size: int
) -> Array:
    """Return points of consecutive hypercubes of `size` points each, as one cannot be continued."""
    from scipy.stats import qmc

    first, last = asked // size, (asked + count + size - 1) // size
    blocks = [np.empty((0, space.stimuli * space.dimensions))]
    for block in range(first, last):
        key = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, block))
        rng = np.random.Generator(np.random.PCG64(key))
        blocks.append(qmc.LatinHypercube(space.stimuli * space.dimensions, rng=rng).random(size))
    points = np.concatenate(blocks)[asked - first * size :][:count]
    return points.reshape(count, space.stimuli, space.dimensions)


def _in_order(listed: PointList, space: Space, seed: np.random.SeedSequence) -> Array:
    """Return all points of the list in the order in which they are drawn."""
    rng = np.random.Generator(np.random.PCG64(seed))
    points = listed.points
    if listed.window is not None:
        points = np.repeat(points, listed.around, axis=0)
        half = np.where(space.whole, 0.5, 0.0)
        lower = np.clip(points - listed.window, space.lower, space.upper) - half
        upper = np.clip(points + listed.window, space.lower, space.upper) + half
        points = space.clamped(rng.uniform(lower, upper))
    return rng.permutation(points) if listed.shuffle else points
