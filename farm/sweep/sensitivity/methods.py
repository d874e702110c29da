"""The methods of SALib, each for one scalar output of a table of points. They need the extra
`sensitivity`.

SALib takes the seed 0 for no seed, seeds numpy's global generator, changes the warnings of the
whole process, reports some failures as NaN, and refuses some names of parameters. The functions
here undo or avoid this.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from farm.call import Array
from farm.errors import UnsupportedFeature
from farm.sweep.design.points import FIRST, Design
from farm.sweep.errors import SweepError
from farm.wording import needs

SLICES = 10
"""Intervals into which PAWN divides a parameter; SALib has the same."""

DUMMIES = 20
"""Parameters without influence that PAWN gets: a value above all of theirs is by chance once in 21
times."""

SMALLEST_BASE = 8
"""Fewest base points of saltelli for Sobol' indices: intervals come from resampling them."""

FEWEST_TRAJECTORIES = 4
"""Fewest trajectories of morris: the customary minimum for its mean and standard deviation."""

FEWEST_ROWS = 50
"""Fewest rows for delta and PAWN: five in each slice of a parameter."""


class MethodMeasures(NamedTuple):
    """The measures of one method: the ranking one with its interval, and all others by name."""

    measure: str
    values: Array
    confidence: Array
    others: dict[str, Array]


@dataclass(frozen=True, slots=True)
class AnalysedRows:
    """The rows that a method gets.

    coordinates: shape (points, P); of the unit cube for morris. output: shape (points,), finite and
    not constant. seed: of resampling.
    """

    coordinates: Array
    output: Array
    design: Design
    seed: int


def sobol(table: AnalysedRows) -> MethodMeasures:
    """Return the shares of variance: ST, S1 and, unless the design leaves them out, S2.

    Source: SALib.analyze.sobol (Saltelli et al. 2010). Raises SweepError for too few base points.
    """
    _check(table.design.counts[0], SMALLEST_BASE, "base points are too few for Sobol' indices")
    with _salib("sobol", table.seed) as (analyze, seed):
        second = table.design.option != FIRST
        found = analyze(_problem(table), table.output, calc_second_order=second, seed=seed)
    others = {name: np.asarray(found[name]) for name in ("S1", "S1_conf")}
    for name in ("S2", "S2_conf"):
        if name in found:  # the part above the diagonal
            others[name] = np.fmax(found[name], np.transpose(found[name]))
    return MethodMeasures("ST", found["ST"], found["ST_conf"], others)


def morris(table: AnalysedRows) -> MethodMeasures:
    """Return the elementary effects over the whole range: their mean size mu_star, mu, sigma.

    Source: SALib.analyze.morris. Raises SweepError for too few trajectories.
    """
    what = "trajectories are too few for Morris' method"
    _check(table.design.counts[0], FEWEST_TRAJECTORIES, what)
    with _salib("morris", table.seed) as (analyze, seed):
        found = analyze(
            _problem(table),
            table.coordinates,
            table.output,
            num_levels=table.design.levels,
            seed=seed,
        )
    names = ("mu_star", "mu_star_conf", "mu", "sigma")
    numbers = {name: np.asarray(found[name], dtype=np.float64) for name in names}
    return MethodMeasures("mu_star", numbers.pop("mu_star"), numbers.pop("mu_star_conf"), numbers)


def factorial(table: AnalysedRows) -> MethodMeasures:
    """Return the main effects ME: half of the mean change from the low to the high level.

    Source: SALib.analyze.ff.
    """
    with _salib("ff", table.seed) as (analyze, seed):
        found = analyze(_problem(table), table.coordinates, table.output, seed=seed)
    effect = np.asarray(found["ME"])[: table.coordinates.shape[1]]
    return MethodMeasures("abs ME", np.abs(effect), np.full(len(effect), np.nan), {"ME": effect})


def delta(table: AnalysedRows) -> MethodMeasures:
    """Return Borgonovo's delta, and S1 estimated from the same rows.

    Source: SALib.analyze.delta (Plischke et al. 2013). Raises SweepError for too few rows, or an
    output without a density.
    """
    _check_rows(table)
    different = len(np.unique(table.output))
    if different <= len(table.output) / 2:  # SALib skips the slices in which all are the same
        raise SweepError(
            f"the output has {different} different values in {len(table.output)} rows, and delta "
            "needs one with a density; use pawn"
        )

    def analysed(coordinates: Array) -> dict[str, Array]:
        count = coordinates.shape[1]
        with _salib("delta", table.seed) as (analyze, seed):
            found = analyze(
                _problem(table, count),
                coordinates,
                table.output,
                # Few bins, as SALib fails with few rows in a bin; `delta_raw` does not use them.
                bins_specs=dict.fromkeys(_names(count), 2),
                seed=seed,
            )
        names = ("delta_raw", "delta_raw_conf", "S1", "S1_conf")
        return {name: np.asarray(found[name]) for name in names}

    found = _of_varying(table, analysed)
    if np.isnan(found["delta_raw"][_varies(table.coordinates)]).any():
        raise SweepError(f"SALib finds no delta for the {len(table.output)} rows; use pawn")
    return MethodMeasures("delta", found.pop("delta_raw"), found.pop("delta_raw_conf"), found)


def pawn(table: AnalysedRows) -> MethodMeasures:
    """Return PAWN: the median distance between distribution functions of the output.

    It is above 0 for every parameter, the more the fewer rows there are; `dummy` is the largest of
    DUMMIES parameters without influence. Source: SALib.analyze.pawn (Pianosi and Wagener 2018), and
    Zadeh et al. 2017 for the dummies. Raises SweepError for too few rows.
    """
    _check_rows(table)

    def analysed(coordinates: Array) -> dict[str, Array]:
        count = coordinates.shape[1]
        with _salib("pawn", table.seed) as (analyze, seed):
            rng = np.random.default_rng(seed)
            dummies = [rng.permutation(len(coordinates)) for _ in range(DUMMIES)]
            columns = np.column_stack([coordinates, *dummies])
            found = analyze(
                _problem(table, columns.shape[1]), columns, table.output, S=SLICES, seed=seed
            )
        names = ("median", "mean", "maximum", "CV")
        measures = {name: np.asarray(found[name])[:count] for name in names}
        return measures | {"dummy": np.full(count, np.max(found["median"][count:]))}

    found = _of_varying(table, analysed)
    median = found.pop("median")
    return MethodMeasures("PAWN median", median, np.full(len(median), np.nan), found)


def _of_varying(
    table: AnalysedRows, analysed: Callable[[Array], dict[str, Array]]
) -> dict[str, Array]:
    """Return measures of the parameters that vary, with NaN for the others.

    The methods cut a parameter into intervals of its rank. Equal values get their ranks at random:
    in the order of a grid, a slice of equal values would select values of another parameter.
    """
    varies = _varies(table.coordinates)
    rng = np.random.default_rng(table.seed)
    order = rng.permutation(len(table.output))
    ranks = np.empty((len(order), int(varies.sum())))
    for k, j in enumerate(np.flatnonzero(varies)):
        by_value = order[np.argsort(table.coordinates[order, j], kind="stable")]
        ranks[by_value, k] = np.arange(1, len(order) + 1)
        order = rng.permutation(order)
    found = analysed(ranks)
    measures = {}
    for name, values in found.items():
        measures[name] = np.full(len(varies), np.nan)
        measures[name][varies] = values
    return measures


def _varies(coordinates: Array) -> Array:
    # `unique` takes all NaN for one value: that of a parameter without a value at these points.
    return np.array([len(np.unique(column)) > 1 for column in coordinates.T])


def _check_rows(table: AnalysedRows) -> None:
    _check(len(table.output), FEWEST_ROWS, "rows with a result are too few")


def _check(number: int, least: int, what: str) -> None:
    if number < least:
        raise SweepError(f"{number} {what}; expected at least {least}")


def _names(count: int) -> list[str]:
    return [f"x{j}" for j in range(count)]


def _problem(table: AnalysedRows, count: int | None = None) -> dict[str, Any]:
    count = table.coordinates.shape[1] if count is None else count
    return {"num_vars": count, "names": _names(count), "bounds": [[0.0, 1.0]] * count}


@contextlib.contextmanager
def _salib(method: str, seed: int) -> Iterator[tuple[Callable[..., Any], int]]:
    """Yield a method's function and its seed, and leave the process as it was."""
    analyze = _analysers()[method]
    state, form = np.random.get_state(), warnings.formatwarning
    try:
        with warnings.catch_warnings(record=True):
            yield analyze, int(np.random.SeedSequence(seed).generate_state(1)[0]) or 1
    finally:
        np.random.set_state(state)
        warnings.formatwarning = form


def _analysers() -> dict[str, Callable[..., Any]]:
    with needs("sensitivity", "SALib is needed for sensitivity analysis", UnsupportedFeature):
        from SALib.analyze import delta, ff, morris, pawn, sobol
    return {
        "delta": delta.analyze,
        "ff": ff.analyze,
        "morris": morris.analyze,
        "pawn": pawn.analyze,
        "sobol": sobol.analyze,
    }
