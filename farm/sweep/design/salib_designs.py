"""Designs for sensitivity analysis, made by SALib in the unit cube. Pure. They need the extra
`sensitivity`.

    saltelli:64        pairs of points that differ in one parameter, for Sobol' indices:
                       64 x (2 P + 2) points for P parameters
    saltelli:64,first  without indices of second order: 64 x (P + 2) points
    morris:20          20 trajectories in a grid of 4 levels, each changes one parameter after the
    morris:20,8        other: 20 x (P + 1) points; the same with 8 levels
    ff                 two-level fractional factorial: 2 x P points, P rounded up to a power of 2
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.sweep.errors import SweepError
from farm.sweep.space.parameters import Distribution
from farm.sweep.space.scipy_distribution import SMALLEST_UNIT
from farm.wording import needs

SALTELLI, MORRIS, FACTORIAL = "saltelli", "morris", "ff"
SALIB_KINDS = (SALTELLI, MORRIS, FACTORIAL)
FIRST = "first"
"""The option of saltelli that leaves out indices of second order."""

MORRIS_LEVELS = 4
"""Levels of a design morris that names none; SALib has the same."""

MOST_FACTORIAL = 512
"""Most parameters of SALib's fractional factorial design."""


def levels_of(counts: Sequence[int]) -> int:
    """Return the number of levels of a design morris with these numbers."""
    return counts[1] if len(counts) == 2 else MORRIS_LEVELS


def check_salib_design(kind: str, counts: Sequence[int], option: str, text: str) -> None:
    """Raise SweepError unless these settings, parsed from `text`, are those of a design."""
    if kind == SALTELLI and option not in ("", FIRST):
        raise SweepError(f"design {text!r}: unknown option {option!r}; use saltelli:64,{FIRST}")
    if kind == MORRIS and (levels_of(counts) < 2 or levels_of(counts) % 2):
        raise SweepError(
            f"design {text!r}: {levels_of(counts)} levels; expected an even number from 2 on"
        )


def block_size(kind: str, option: str, parameters: int) -> int:
    """Return the number of points of a base point of saltelli, or of a trajectory of morris."""
    if kind == SALTELLI:
        return parameters + 2 if option == FIRST else 2 * parameters + 2
    return parameters + 1


def size_of(kind: str, counts: Sequence[int], option: str, parameters: int) -> int:
    """Return the number of points of a design."""
    if kind == FACTORIAL:
        return 2 << (parameters - 1).bit_length()
    return counts[0] * block_size(kind, option, parameters)


def size_note(kind: str, counts: Sequence[int], option: str, parameters: int) -> str:
    """Return how the number of points follows from the design, as a product."""
    if kind == FACTORIAL:
        return f"2 x {1 << (parameters - 1).bit_length()}"
    block = {SALTELLI: f"2 x {parameters} + 2", MORRIS: f"{parameters} + 1"}[kind]
    return f"{counts[0]} x ({f'{parameters} + 2' if option == FIRST else block})"


def salib_sample(
    kind: str,
    counts: Sequence[int],
    option: str,
    spreads: Sequence[Distribution],
    rng: np.random.Generator,
) -> Array:
    """Return the points of a design in the unit cube, shape (points, parameters).

    Source: SALib.sample. The levels of morris and ff are those of a grid: they include both ends of
    a range, and of an unbounded distribution they are the middles of equally likely intervals.
    Raises SweepError, UnsupportedFeature without SALib.
    """
    dims = len(spreads)
    if kind == FACTORIAL and dims > MOST_FACTORIAL:
        raise SweepError(f"design ff takes up to {MOST_FACTORIAL} parameters, got {dims}")
    # SALib adds to the lists of a problem.
    problem = {
        "num_vars": dims,
        "names": [f"x{j}" for j in range(dims)],
        "bounds": [[0.0, 1.0] for _ in range(dims)],
    }
    samplers = _samplers()
    with warnings.catch_warnings():
        # `Design.notes` reports this instead.
        warnings.filterwarnings("ignore", message="The balance properties")
        if kind == SALTELLI:
            second = option != FIRST
            unit = samplers[kind](problem, counts[0], calc_second_order=second, seed=rng)
            inside: Array = np.clip(unit, SMALLEST_UNIT, 1.0 - SMALLEST_UNIT)
            return inside
        if kind == MORRIS:
            levels = levels_of(counts)
            unit = samplers[kind](problem, counts[0], num_levels=levels, seed=rng)
        else:
            levels, unit = 2, samplers[kind](problem)[:, :dims]
    steps = np.rint(unit * (levels - 1)).astype(np.int64)
    columns = [_positions(spread, levels)[steps[:, j]] for j, spread in enumerate(spreads)]
    return np.stack(columns, axis=1)


def _positions(spread: Distribution, levels: int) -> Array:
    """Return the positions of levels in [0, 1]; a list of values has its own number of levels."""
    positions = spread.levels(levels)
    return positions if len(positions) == levels else np.linspace(0.0, 1.0, levels)


def _samplers() -> dict[str, Any]:
    what = "SALib is needed for the designs saltelli, morris and ff"
    with needs("sensitivity", what, UnsupportedFeature):
        from SALib.sample import ff, morris, sobol
    return {SALTELLI: sobol.sample, MORRIS: morris.sample, FACTORIAL: ff.sample}
