"""Designs, which choose a sweep's points in the unit cube. Pure: same seed, same bytes.

    grid  grid:10  grid:10,5     every combination; levels for all, or for each distribution in turn
    random:100                   independent points
    lhs:100  lhs:100,random-cd   Latin hypercube, optimised by random-cd or lloyd if asked
    sobol:256  halton:100        scrambled low-discrepancy sequences, which can be continued
    file:points.csv              the points of a table (csv, npy, h5)

For sensitivity analysis, by SALib, for P parameters:

    saltelli:64        pairs of points that differ in one parameter: 64 x (2 P + 2) points
    saltelli:64,first  without Sobol' indices of second order: 64 x (P + 2) points
    morris:20          20 trajectories in a grid of 4 levels, each changes one parameter after the
    morris:20,8        other: 20 x (P + 1) points; the same with 8 levels
    ff                 two-level fractional factorial: 2 x P points, P rounded up to a power of 2

The bytes are the same for the same versions of numpy and scipy; other versions may scramble
differently. With constraints, random, sobol and halton draw on until enough points satisfy them; a
grid and a table leave out those that do not; a Latin hypercube is refused, as it would have gaps.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.sweep.errors import SweepError
from farm.sweep.space.correlation import WITH_CORRELATION
from farm.sweep.space.parameters import SMALLEST_UNIT, Category, Choice, Distribution
from farm.sweep.space.space import ParameterSpace
from farm.wording import needs, worded

SALTELLI, MORRIS, FACTORIAL = "saltelli", "morris", "ff"
SALIB_KINDS = (SALTELLI, MORRIS, FACTORIAL)
SEQUENCES = ("random", "sobol", "halton")
"""Designs that can draw on and on."""
COUNTED = (*SEQUENCES, "lhs", SALTELLI, MORRIS)
OPTIMISATIONS = ("random-cd", "lloyd")
FIRST = "first"
"""The option of saltelli that leaves out indices of second order."""

LARGEST_SWEEP = 2**30
"""Most points of a sweep: more are probably a typing error, and Sobol's sequence ends here."""

MORRIS_LEVELS = 4
"""Levels of a design morris that names none; SALib has the same."""

MOST_FACTORIAL = 512
"""Most parameters of SALib's fractional factorial design."""

ORDER_KEY = 0x6F72646572
"""Spawn key of the shuffle; it differs from the keys of the points, which are their indices."""

AT_ONCE = 2**14
"""Most points to draw at once, which bounds the memory of points that are refused."""

LEAST_SHARE = 1e-3
"""Smallest share of points that satisfy the constraints."""

LEAST_DRAWN = 10_000
"""Points to draw before a share counts as too small."""


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

    @property
    def levels(self) -> int:
        """The levels of a parameter in a design of SALib."""
        if self.kind == FACTORIAL:
            return 2
        return self.counts[1] if len(self.counts) == 2 else MORRIS_LEVELS

    def blocks(self, parameters: int) -> tuple[int, str, int]:
        """Return the number of blocks of a design of SALib, and a block's size, also as text."""
        if self.kind == FACTORIAL:
            size = 1 << (parameters - 1).bit_length()
            return 2, str(size), size
        if self.kind == MORRIS:
            return self.counts[0], f"({parameters} + 1)", parameters + 1
        if self.option == FIRST:
            return self.counts[0], f"({parameters} + 2)", parameters + 2
        return self.counts[0], f"(2 x {parameters} + 2)", 2 * parameters + 2

    def size(self, parameters: int) -> int:
        """Return the number of points of a design of SALib."""
        count, _, size = self.blocks(parameters)
        return count * size

    def product(self, parameters: int) -> str:
        """Return how many points a design of blocks has, such as "64 x (2 x 3 + 2)"; or ""."""
        if self.kind not in SALIB_KINDS:
            return ""
        count, text, _ = self.blocks(parameters)
        return f"{count} x {text}"


def parse_design(text: str) -> Design:
    """Parse a design; the grammar is at the top of this file. Raises SweepError."""
    kind, _, rest = text.strip().partition(":")
    settings = [part.strip() for part in rest.split(",")] if rest else []
    if kind == "grid":
        return Design("grid", tuple(_count(s, text) for s in settings))
    if kind == "file" and rest:
        return Design("file", option=rest)
    takes_option, most_counts = kind in ("lhs", SALTELLI), 2 if kind == MORRIS else 1
    option = settings.pop() if takes_option and len(settings) == 2 else ""
    if kind in (*COUNTED, FACTORIAL) and (kind == FACTORIAL) != (0 < len(settings) <= most_counts):
        if kind == "lhs" and option not in ("", *OPTIMISATIONS):
            raise SweepError(
                f"design {text!r}: unknown optimisation {option!r}; "
                f"use {' or '.join(OPTIMISATIONS)}"
            )
        design = Design(kind, tuple(_count(s, text) for s in settings), option)
        if kind == SALTELLI and option not in ("", FIRST):
            raise SweepError(f"design {text!r}: unknown option {option!r}; use saltelli:64,{FIRST}")
        if kind == MORRIS and (design.levels < 2 or design.levels % 2):
            raise SweepError(
                f"design {text!r}: {design.levels} levels; expected an even number from 2 on"
            )
        return design
    raise SweepError(
        f"unknown design {text!r}; use grid:10, random:100, lhs:100, lhs:100,random-cd, "
        "sobol:256, halton:100, saltelli:64, morris:20, ff or file:points.csv"
    )


def _count(text: str, whole: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST_SWEEP:
        raise SweepError(f"design {whole!r}: {text!r} is not a number of points from 1 on")
    return int(text)


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
        _check_size(design, design.size(len(spreads)))
        return _salib_sample(design, spreads, generator(seed))
    return sequence(design, len(spreads), seed)(design.counts[0])


def longer_design(design: Design, count: int, parameters: int) -> Design:
    """Return `design` with `count` points. Raises SweepError for a part of a block."""
    if design.kind not in (SALTELLI, MORRIS):
        return replace(design, counts=(count,))
    _, _, block = design.blocks(parameters)
    if count % block:
        each = "base point" if design.kind == SALTELLI else "trajectory"
        below = count - count % block
        raise SweepError(
            f"{design} has {block} points for each {each}, so {count} points do not fit; "
            f"{below} or {below + block} do"
        )
    return replace(design, counts=(count // block, *design.counts[1:]))


def _check_size(design: Design, total: int) -> None:
    if total > LARGEST_SWEEP:
        raise SweepError(f"design {design} has {total} points; the limit is {LARGEST_SWEEP}")


def _grid(design: Design, spreads: Sequence[Distribution]) -> Array:
    open_ones = sum(not isinstance(spread, Choice | Category) for spread in spreads)
    if len(design.counts) not in (0, 1, open_ones):
        raise SweepError(
            f"design {design} has {len(design.counts)} numbers of levels for {open_ones} "
            "parameters; expected one for all, or one for each parameter without a list of values"
        )
    counts = design.counts if len(design.counts) > 1 else (design.counts or (None,)) * open_ones
    of_open = iter(counts)
    axes = [s.levels(None if isinstance(s, Choice | Category) else next(of_open)) for s in spreads]
    total = math.prod(map(len, axes))
    _check_size(design, total)
    # The last parameter changes fastest, as in nested loops.
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(total, len(axes))


def _salib_sample(
    design: Design, spreads: Sequence[Distribution], rng: np.random.Generator
) -> Array:
    """Return the points of a design of SALib in the unit cube.

    The levels of morris and ff are those of a grid: they include both ends of a range, and of an
    unbounded distribution they are the middles of equally likely intervals.
    """
    dims = len(spreads)
    if design.kind == FACTORIAL and dims > MOST_FACTORIAL:
        raise SweepError(f"design ff takes up to {MOST_FACTORIAL} parameters, got {dims}")
    what = "SALib is needed for the designs saltelli, morris and ff"
    with needs("sensitivity", what, UnsupportedFeature):
        from SALib.sample import ff, morris, sobol
    # SALib adds to the lists of a problem.
    problem = {
        "num_vars": dims,
        "names": [f"x{j}" for j in range(dims)],
        "bounds": [[0.0, 1.0] for _ in range(dims)],
    }
    with _without_balance_warning():
        if design.kind == SALTELLI:
            second = design.option != FIRST
            return _inside(
                sobol.sample(problem, design.counts[0], calc_second_order=second, seed=rng)
            )
        if design.kind == MORRIS:
            unit = morris.sample(problem, design.counts[0], num_levels=design.levels, seed=rng)
        else:
            unit = ff.sample(problem)[:, :dims]
    steps = np.rint(unit * (design.levels - 1)).astype(np.int64)
    columns = [_positions(spread, design.levels)[steps[:, j]] for j, spread in enumerate(spreads)]
    return np.stack(columns, axis=1)


def _positions(spread: Distribution, levels: int) -> Array:
    """Return the positions of levels in [0, 1]; a list of values has its own number of levels."""
    positions = spread.levels(levels)
    return positions if len(positions) == levels else np.linspace(0.0, 1.0, levels)


@contextlib.contextmanager
def _without_balance_warning() -> Iterator[None]:
    """Drop scipy's warning about Sobol's points, which `Design.notes` reports instead."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties")
        yield


def _inside(unit: Any) -> Array:
    return np.clip(np.asarray(unit, np.float64), SMALLEST_UNIT, 1.0 - SMALLEST_UNIT)


def sequence(design: Design, dims: int, seed: int) -> Callable[[int], Array]:
    """Return what draws the next points of a design, as many as it is asked for.

    For the designs random, sobol and halton the points do not depend on how many are drawn at once.
    """
    rng = generator(seed)
    if design.kind == "random":
        return lambda count: rng.random((count, dims))
    from scipy.stats import qmc

    if design.kind == "lhs":
        engine = qmc.LatinHypercube(dims, optimization=design.option or None, rng=rng)
    else:
        kind = qmc.Sobol if design.kind == "sobol" else qmc.Halton
        engine = kind(dims, scramble=True, rng=rng)

    def draw_next(count: int) -> Array:
        with _without_balance_warning():
            return _inside(engine.random(count))

    return draw_next


class PointTable(NamedTuple):
    """Points, of a design or a user's. rows: shape (points, columns), a word by its index.

    An entry without a value is NaN. names: of the columns, None if unnamed. words: those of each
    column that has words. unit: the positions in the unit cube, None for a user's table.
    """

    names: tuple[str, ...] | None
    rows: Array
    words: Mapping[int, Category] = MappingProxyType({})
    unit: Array | None = None


def draw(design: Design, space: ParameterSpace, seed: int) -> PointTable:
    """Return the points of a design other than a table. Raises SweepError."""
    kind = design.kind
    if space.correlations and kind not in WITH_CORRELATION:
        why = "its points need independent parameters"
        if kind == "grid":
            why = "its levels are combined with each other"
        raise SweepError(
            f"a {kind} cannot have correlated parameters: {why}; use {', '.join(WITH_CORRELATION)}"
        )
    if space.where and kind not in (*SEQUENCES, "grid"):
        why = "each of its points is needed"
        if kind == "lhs":
            why = "it has a point in each of its slices, which would have gaps"
        raise SweepError(
            f"{kind} cannot have the constraint {worded('--where', 'where')} {space.where[0]!r}: "
            f"{why}; use {', '.join(SEQUENCES)} or grid"
        )
    if space.when and kind not in (*WITH_CORRELATION, "grid"):
        raise SweepError(
            f"{kind} cannot have the conditional parameter {space.when[0][0]!r}: its points need "
            f"all parameters; use {', '.join(WITH_CORRELATION)} or grid"
        )
    if space.where and kind in SEQUENCES and space.spreads:
        return _drawn_on(design, space, seed)
    unit = sample(design, space.spreads, seed)
    theta = space.values(unit)
    if kind != "grid":
        return PointTable(space.names, theta, unit=unit)
    kept = space.kept(theta)
    if space.when:  # combinations that differ in inactive parameters only are one point
        kept &= ~repeated(theta, ~kept)
    if not np.any(kept):
        raise SweepError(
            f"none of the {len(unit)} combinations of {design} satisfies "
            f"{' and '.join(space.where)}; use more levels, or other ranges"
        )
    return PointTable(space.names, theta[kept], unit=unit[kept])


def repeated(theta: Array, out: Array | None = None) -> Array:
    """Return which points are equal to an earlier one; `out`: points that do not count."""
    seen: set[bytes] = set()
    again = np.zeros(len(theta), dtype=bool)
    for k, row in enumerate(keys(theta)):
        if out is not None and out[k]:
            continue
        again[k] = row in seen
        seen.add(row)
    return again


def keys(theta: Array) -> list[bytes]:
    """Return what is the same for equal points: their bytes, with one zero and one NaN."""
    rows = np.ascontiguousarray(np.where(np.isnan(theta), np.nan, theta + 0.0))
    return [row.tobytes() for row in rows]


def _drawn_on(design: Design, space: ParameterSpace, seed: int) -> PointTable:
    count = design.counts[0]
    more = sequence(design, len(space.spreads), seed)
    units, thetas, found, drawn = [], [], 0, 0
    while found < count:
        unit = more(min(AT_ONCE, max(64, 2 * (count - found))))
        theta = space.values(unit)
        places = np.flatnonzero(space.kept(theta))[: count - found]
        found += len(places)
        drawn += len(unit) if found < count else int(places[-1]) + 1
        units.append(unit[places])
        thetas.append(theta[places])
        if drawn >= LEAST_DRAWN and found < min(count, LEAST_SHARE * drawn):
            raise SweepError(
                f"only {found} of the first {drawn} points of {design.kind} satisfy "
                f"{' and '.join(space.where)}; expected at least 1 in {1 / LEAST_SHARE:.0f}. Make "
                "the ranges narrower, or a constraint wider"
            )
    return PointTable(space.names, np.concatenate(thetas), unit=np.concatenate(units))
