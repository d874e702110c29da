"""Draws the points of a design in a space with constraints. Pure: same seed, same points.

random, sobol and halton draw on until enough points satisfy the constraints; a grid and a table
leave out those that do not; a Latin hypercube is refused, as its slices would have gaps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from farm.call import Array
from farm.sweep.design.points import Design, sample, sequence
from farm.sweep.errors import SweepError
from farm.sweep.space.correlation import WITH_CORRELATION
from farm.sweep.space.space import ParameterSpace
from farm.wording import worded

SEQUENCES = ("random", "sobol", "halton")
"""Designs that can draw on and on."""

AT_ONCE = 2**14
"""Most points to draw at once, which bounds the memory of points that are refused."""

LEAST_SHARE = 1e-3
"""Smallest share of points that satisfy the constraints."""

LEAST_DRAWN = 10_000
"""Points to draw before a share counts as too small."""


class DrawnPoints(NamedTuple):
    """Points of a design. drawn: how many were looked at, with those that were left out."""

    unit: Array
    theta: Array
    drawn: int


def draw(design: Design, space: ParameterSpace, seed: int) -> DrawnPoints:
    """Return the points of a design other than a table. Raises SweepError."""
    kind = design.kind
    if space.correlations and kind not in WITH_CORRELATION:
        why = (
            "its levels are combined with each other"
            if kind == "grid"
            else ("its points need independent parameters")
        )
        raise SweepError(
            f"a {kind} cannot have correlated parameters: {why}; use {', '.join(WITH_CORRELATION)}"
        )
    if space.where and kind not in (*SEQUENCES, "grid"):
        why = (
            "it has a point in each of its slices, which would have gaps"
            if kind == "lhs"
            else "each of its points is needed"
        )
        raise SweepError(
            f"{kind} cannot have the constraint {worded('--where', 'where')} {space.where[0]!r}: "
            f"{why}; use {', '.join(SEQUENCES)} or grid"
        )
    if space.when and kind not in (*WITH_CORRELATION, "grid"):
        raise SweepError(
            f"{kind} cannot have the conditional parameter {space.when[0][0]!r}: its points need "
            f"all parameters; use {', '.join(WITH_CORRELATION)} or grid"
        )
    if space.where and kind in SEQUENCES:
        return _drawn_on(design, space, seed)
    unit = sample(design, space.spreads, seed)
    theta = space.values(unit)
    if kind != "grid":
        return DrawnPoints(unit, theta, len(unit))
    kept = space.kept(theta)
    if space.when:  # combinations that differ in inactive parameters only are one point
        kept &= ~repeated(theta, ~kept)
    if not np.any(kept):
        raise SweepError(
            f"none of the {len(unit)} combinations of {design} satisfies "
            f"{' and '.join(space.where)}; use more levels, or other ranges"
        )
    return DrawnPoints(unit[kept], theta[kept], len(unit))


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


def _drawn_on(design: Design, space: ParameterSpace, seed: int) -> DrawnPoints:
    count = design.counts[0]
    if not space.spreads:
        sample(design, space.spreads, seed)  # raises the error for a sweep without parameters
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
    return DrawnPoints(np.concatenate(units), np.concatenate(thetas), drawn)
