"""Designs, which choose a sweep's points in the unit cube. Pure: same seed, same bytes.

    grid  grid:10  grid:10,5     every combination; levels for all, or for each distribution in turn
    random:100                   independent points
    lhs:100  lhs:100,random-cd   Latin hypercube, optimised by random-cd or lloyd if asked
    sobol:256  halton:100        scrambled low-discrepancy sequences, which can be continued
    saltelli:64  morris:20  ff   for sensitivity analysis: farm.sweep.design.salib_designs
    file:points.csv              the points of a table (csv, npy, h5)

The bytes are the same for the same versions of numpy and scipy; other versions may scramble
differently.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.call import Array
from farm.sweep.design.salib_designs import (
    MORRIS,
    SALIB_KINDS,
    SALTELLI,
    block_size,
    check_salib_design,
    salib_sample,
    size_note,
    size_of,
)
from farm.sweep.errors import SweepError
from farm.sweep.space.category import Category
from farm.sweep.space.parameters import Choice, Distribution
from farm.sweep.space.scipy_distribution import SMALLEST_UNIT
from farm.wording import worded

COUNTED = ("random", "lhs", "sobol", "halton", SALTELLI, MORRIS)
OPTIMISATIONS = ("random-cd", "lloyd")
LARGEST_SWEEP = 2**30
"""Most points of a sweep: more are probably a typing error, and Sobol's sequence ends here."""

ORDER_KEY = 0x6F72646572
"""Spawn key of the shuffle; it differs from the keys of the points, which are their indices."""


@dataclass(frozen=True, slots=True)
class Design:
    """A design of experiments; `parse_design` reads its text back as the same design.

    counts: the number of points; for a grid the levels, none if all parameters list their values;
    for saltelli the base points; for morris the trajectories, and the levels if given.
    option: the optimisation of lhs, "first" for saltelli, or the path of file.
    """

    kind: str
    counts: tuple[int, ...] = ()
    option: str = ""

    def __str__(self) -> str:
        if self.kind == "file":
            return f"file:{self.option}"
        settings = [*map(str, self.counts), *filter(None, [self.option])]
        return f"{self.kind}:{','.join(settings)}" if settings else self.kind

    @property
    def notes(self) -> tuple[str, ...]:
        """Hints for the user about this design, one sentence each."""
        if self.kind in ("sobol", SALTELLI) and self.counts[0] & (self.counts[0] - 1):
            n = self.counts[0]
            return (
                f"{self.kind}:{n} is not a power of 2, so the points are not balanced; "
                f"{1 << (n.bit_length() - 1)} or {1 << n.bit_length()} are",
            )
        return ()

    def product(self, parameters: int) -> str:
        """Return how many points a design of blocks has, such as "64 x (2 x 3 + 2)"; or ""."""
        if self.kind not in SALIB_KINDS:
            return ""
        return size_note(self.kind, self.counts, self.option, parameters)


def parse_design(text: str) -> Design:
    """Parse a design; the grammar is at the top of this file. Raises SweepError."""
    kind, _, rest = text.strip().partition(":")
    settings = [part.strip() for part in rest.split(",")] if rest else []
    if kind == "grid":
        return Design("grid", tuple(_count(s, text) for s in settings))
    if kind == "file" and rest:
        return Design("file", option=rest)
    if kind in SALIB_KINDS and bool(settings) == (kind in COUNTED):
        option = settings.pop() if kind == SALTELLI and len(settings) == 2 else ""
        if len(settings) <= (2 if kind == MORRIS else 1):
            counts = tuple(_count(s, text) for s in settings)
            check_salib_design(kind, counts, option, text)
            return Design(kind, counts, option)
    elif kind in COUNTED and settings:
        option = ""
        if kind == "lhs" and len(settings) == 2:
            option = settings.pop()
            if option not in OPTIMISATIONS:
                raise SweepError(
                    f"design {text!r}: unknown optimisation {option!r}; "
                    f"use {' or '.join(OPTIMISATIONS)}"
                )
        if len(settings) == 1:
            return Design(kind, (_count(settings[0], text),), option)
    raise SweepError(
        f"unknown design {text!r}; use grid:10, random:100, lhs:100, lhs:100,random-cd, "
        "sobol:256, halton:100, saltelli:64, morris:20, ff or file:points.csv"
    )


def generator(seed: int, *key: int) -> np.random.Generator:
    """Return the random generator of a seed; each `key` gives an independent stream of it."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def point_seed(seed: int, point: int) -> int:
    """Return the seed of a model for one point: below 2**32, which fits in every language."""
    sequence = np.random.SeedSequence(seed, spawn_key=(point,))
    return int(sequence.generate_state(1, np.uint32)[0])


def shuffled(count: int, seed: int) -> Array:
    """Return the points 0 to count-1 in a random order, the same for the same seed."""
    return generator(seed, ORDER_KEY).permutation(count)


def sample(design: Design, spreads: Sequence[Distribution], seed: int) -> Array:
    """Return the design's points in the unit cube, shape (points, parameters).

    Does not handle files. Source of lhs, sobol and halton: scipy.stats.qmc; of saltelli, morris and
    ff: SALib. Raises SweepError, UnsupportedFeature without SALib.
    """
    if not spreads:
        raise SweepError(
            "a sweep needs at least one parameter: "
            + worded("--param NAME=LOWER:UPPER", "a range such as {'x': (0, 1)}")
        )
    if design.kind == "grid":
        return _grid(design, spreads)
    if design.kind in SALIB_KINDS:
        total = size_of(design.kind, design.counts, design.option, len(spreads))
        if total > LARGEST_SWEEP:
            raise SweepError(f"design {design} has {total} points; the limit is {LARGEST_SWEEP}")
        return salib_sample(design.kind, design.counts, design.option, spreads, generator(seed))
    return sequence(design, len(spreads), seed)(design.counts[0])


def longer_design(design: Design, count: int, parameters: int) -> Design:
    """Return `design` with `count` points. Raises SweepError for a part of a block."""
    if design.kind not in (SALTELLI, MORRIS):
        return replace(design, counts=(count,))
    block = block_size(design.kind, design.option, parameters)
    if count % block:
        each = "base point" if design.kind == SALTELLI else "trajectory"
        below = count - count % block
        raise SweepError(
            f"{design} has {block} points for each {each}, so {count} points do not fit; "
            f"{below} or {below + block} do"
        )
    return replace(design, counts=(count // block, *design.counts[1:]))


def _grid(design: Design, spreads: Sequence[Distribution]) -> Array:
    open_ones = [spread for spread in spreads if not isinstance(spread, Choice | Category)]
    counts: list[int | None]
    if not design.counts:
        counts = [None] * len(open_ones)
    elif len(design.counts) == 1:
        counts = [design.counts[0]] * len(open_ones)
    elif len(design.counts) == len(open_ones):
        counts = list(design.counts)
    else:
        raise SweepError(
            f"design {design} has {len(design.counts)} numbers of levels for {len(open_ones)} "
            "parameters; expected one for all, or one for each parameter without a list of values"
        )
    of_open = iter(counts)
    axes = [s.levels(None if isinstance(s, Choice | Category) else next(of_open)) for s in spreads]
    total = 1
    for axis in axes:
        total *= len(axis)  # Python integers cannot overflow before the check
    if total > LARGEST_SWEEP:
        raise SweepError(f"design {design} has {total} points; the limit is {LARGEST_SWEEP}")
    # The last parameter changes fastest, as in nested loops.
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(total, len(axes))


def sequence(design: Design, dims: int, seed: int) -> Callable[[int], Array]:
    """Return what draws the next points of a design, as many as it is asked for.

    For the designs random, sobol and halton the points do not depend on how many are drawn at once.
    """
    if design.kind == "random":
        rng = generator(seed)
        return lambda count: rng.random((count, dims))
    engine = _engine(design, dims, seed)

    def draw(count: int) -> Array:
        with warnings.catch_warnings():
            # `Design.notes` reports this instead.
            warnings.filterwarnings("ignore", message="The balance properties")
            points = engine.random(count)
        return np.clip(np.asarray(points, dtype=np.float64), SMALLEST_UNIT, 1.0 - SMALLEST_UNIT)

    return draw


def _engine(design: Design, dims: int, seed: int) -> Any:
    from scipy.stats import qmc

    rng = generator(seed)
    if design.kind == "lhs":
        return qmc.LatinHypercube(dims, optimization=design.option or None, rng=rng)
    if design.kind == "sobol":
        return qmc.Sobol(dims, scramble=True, rng=rng)
    return qmc.Halton(dims, scramble=True, rng=rng)


def _count(text: str, whole: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST_SWEEP:
        raise SweepError(f"design {whole!r}: {text!r} is not a number of points from 1 on")
    return int(text)
