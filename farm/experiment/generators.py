"""Points that need no surrogate: sequences, chance, and lists.

Points depend on their number in the strategy alone: asks of any sizes give the same ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.call import Array
from farm.experiment import names
from farm.experiment.config import Config, Generator
from farm.experiment.ini import Section
from farm.experiment.listed import Listed, block_size, check_held, read_listed
from farm.experiment.space import Space
from farm.experiment.work import Generate, Generated

FILLER_KEY = 0x66696C6C
"""Spawn key of the points that fill in, apart from the numbers of strategies."""


def generate_model_free(work: Generate) -> Generated:
    """The next points of a generator that needs no surrogate, or those that fill in.

    Raises InvalidInput.
    """
    strategy = work.config.strategies[work.strategy]
    space = Space.of(work.config)
    generator = strategy.generator
    if work.filler:
        seed = np.random.SeedSequence(work.seed, spawn_key=(work.strategy, FILLER_KEY))
        unit = _quasi_random(names.SOBOL, space, seed, work.asked, work.count)
        return Generated(space.hold(space.from_unit(unit), work.fixed))
    seed = _seed(generator, work)
    if generator.kind in names.WITH_AN_END:
        check_held(generator, work.fixed)
        listed = _in_order(read_listed(generator, space), space, seed)
        return Generated(listed[work.asked : work.asked + work.count])
    if generator.kind == names.RANDOM:
        unit = _random(space, seed, work.asked, work.count)
    elif generator.kind == names.LATIN_HYPERCUBE:
        section = Section(generator.name, generator.options, generator.options)
        size = block_size(section, strategy.min_asks)
        unit = _latin_hypercubes(space, seed, work.asked, work.count, size)
    else:
        unit = _quasi_random(generator.kind, space, seed, work.asked, work.count)
    return Generated(space.hold(space.from_unit(unit), work.fixed))


def length_of(generator: Generator, config: Config) -> int | None:
    """How many points the generator gives in all; None: as many as are asked for."""
    if generator.kind not in names.WITH_AN_END:
        return None
    return len(read_listed(generator, Space.of(config)))


def _seed(generator: Generator, work: Generate) -> np.random.SeedSequence:
    """Of the generator's own seed, else of the experiment's."""
    if generator.options.get("seed", "").lower() in ("", "none"):
        return np.random.SeedSequence(work.seed, spawn_key=(work.strategy,))
    section = Section(generator.name, generator.options, generator.options)
    return np.random.SeedSequence(section.whole("seed", 0))


def _quasi_random(
    kind: str, space: Space, seed: np.random.SeedSequence, asked: int, count: int
) -> Array:
    """Source: scipy.stats.qmc; the stimuli of a trial are further dimensions."""
    from scipy.stats import qmc

    engines = {names.SOBOL: qmc.Sobol, names.HALTON: qmc.Halton}
    rng = np.random.Generator(np.random.PCG64(seed))
    engine: Any = engines[kind](space.stimuli * space.dimensions, scramble=True, rng=rng)
    if asked:
        engine.fast_forward(asked)
    # The first point on its own: Sobol's engine warns when it begins with another number than a
    # power of two, but an ask is a part of the sequence.
    first = 0 if asked else min(count, 1)
    points = np.empty((0, space.stimuli * space.dimensions))
    for n in (first, count - first):
        if n:
            points = np.concatenate([points, engine.random(n)])
    return points.reshape(count, space.stimuli, space.dimensions)


def _random(space: Space, seed: np.random.SeedSequence, asked: int, count: int) -> Array:
    bits = np.random.PCG64(seed)
    bits.advance(asked * space.stimuli * space.dimensions)  # one step for each number
    return np.random.Generator(bits).random((count, space.stimuli, space.dimensions))


def _latin_hypercubes(
    space: Space, seed: np.random.SeedSequence, asked: int, count: int, size: int
) -> Array:
    """One hypercube after the other, of `size` points each, as one cannot be continued."""
    from scipy.stats import qmc

    first, last = asked // size, (asked + count + size - 1) // size
    blocks = [np.empty((0, space.stimuli * space.dimensions))]
    for block in range(first, last):
        key = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, block))
        rng = np.random.Generator(np.random.PCG64(key))
        blocks.append(qmc.LatinHypercube(space.stimuli * space.dimensions, rng=rng).random(size))
    points = np.concatenate(blocks)[asked - first * size :][:count]
    return points.reshape(count, space.stimuli, space.dimensions)


def _in_order(listed: Listed, space: Space, seed: np.random.SeedSequence) -> Array:
    """All points of the list in the order in which they are given."""
    rng = np.random.Generator(np.random.PCG64(seed))
    points = listed.points
    if listed.window is not None:
        points = np.repeat(points, listed.around, axis=0)
        half = np.where(space.whole, 0.5, 0.0)
        lower = np.clip(points - listed.window, space.lower, space.upper) - half
        upper = np.clip(points + listed.window, space.lower, space.upper) + half
        points = space.clamped(rng.uniform(lower, upper))
    return rng.permutation(points) if listed.shuffle else points
