"""Correlated parameters: a Gaussian copula over the positions in the unit cube. Pure.

The correlation of two parameters is that of the standard normals that their positions in the unit
cube stand for: the shape matrix of `NormalCopula` in OpenTURNS, `corr_z` of `Nataf` in UQpy. For
normal parameters it is their own correlation, for lognormal ones that of their logarithms. The
values of others have a correlation that differs from it a little; ranks have 6/pi arcsin(r/2).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.call import Array
from farm.expression import number
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.parameters import SMALLEST_UNIT, Category, Choice
from farm.wording import worded

LEAST_EIGENVALUE = 1e-10
"""Smallest eigenvalue of a matrix that counts as positive definite."""

WITH_CORRELATION = ("random", "lhs", "sobol", "halton")
"""Designs whose points may be correlated: no combination of levels, and no other structure."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """The correlation of two parameters, by the names of their columns."""

    one: str
    other: str
    value: float

    def __str__(self) -> str:
        return f"{self.one},{self.other}={self.value!r}"


def parse_correlation(text: str) -> tuple[tuple[str, str], float]:
    """Parse `a,b=0.7`; a comma in an index, as in `x[0,1],b=0.7`, is none. Raises SweepError."""
    names, sign, after = text.rpartition("=")
    pair = _split(names)
    try:
        value = number(after)
    except ValueError:
        value = np.nan
    if not sign or len(pair) != 2 or not all(pair) or np.isnan(value):
        raise SweepError(f"--correlation {text!r}: expected NAME,NAME=NUMBER, such as a,b=0.7")
    return (pair[0], pair[1]), value


def bound_correlations(
    given: Mapping[tuple[str, str], float],
    columns: Mapping[str, Collection[int]],
    parameters: Sequence[BoundParameter],
) -> tuple[Correlation, ...]:
    """Check the correlations that a user gives; columns: those of each parameter's name.

    Raises SweepError for other names, numbers outside -1 to 1, and matrices that no correlations
    can have.
    """
    found: dict[tuple[int, int], Correlation] = {}
    for pair, value in given.items():
        where = _where(pair, value)
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise SweepError(f"{where}: expected two names as the key, such as ('a', 'b')")
        one, other = (_column(name, columns, parameters, where) for name in pair)
        if one == other:
            raise SweepError(f"{where}: expected two different parameters")
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise SweepError(f"{where}: expected a number between -1 and 1")
        if not -1 < value < 1:
            raise SweepError(
                f"{where}: expected a number above -1 and below 1; a parameter that follows from "
                "another is computed in the model"
            )
        key = min(one, other), max(one, other)
        if key in found:
            raise SweepError(f"{where}: the correlation of these two is given twice")
        found[key] = Correlation(parameters[key[0]].name, parameters[key[1]].name, float(value))
    correlations = tuple(found[key] for key in sorted(found))
    _factor(correlations, [p.name for p in parameters])
    return correlations


def correlator(
    correlations: Sequence[Correlation], names: Sequence[str]
) -> Callable[[Array], Array]:
    """Return what moves independent positions in the unit cube to correlated ones.

    The first of correlated parameters keeps its positions.
    """
    if not correlations:
        return lambda unit: unit
    factor, columns = _factor(correlations, names)

    def correlated(unit: Array) -> Array:
        from scipy.special import ndtr, ndtri

        inside = np.clip(unit[:, columns], SMALLEST_UNIT, 1.0 - SMALLEST_UNIT)
        moved = unit.copy()
        normals = ndtri(inside)
        # Not a matrix product: its last bits depend on the number of rows.
        for row, j in enumerate(columns[1:], 1):
            terms = [factor[row, k] * normals[:, k] for k in range(row + 1)]
            moved[:, j] = ndtr(sum(terms[1:], terms[0]))
        return moved

    return correlated


def _factor(correlations: Sequence[Correlation], names: Sequence[str]) -> tuple[Array, list[int]]:
    """Return the Cholesky factor of the matrix, and its columns. Raises SweepError."""
    place = {name: j for j, name in enumerate(names)}
    columns = sorted({place[name] for c in correlations for name in (c.one, c.other)})
    row = {j: k for k, j in enumerate(columns)}
    matrix = np.eye(len(columns))
    for c in correlations:
        i, j = row[place[c.one]], row[place[c.other]]
        matrix[i, j] = matrix[j, i] = c.value
    if not columns:
        return matrix, columns
    least = float(np.linalg.eigvalsh(matrix)[0])
    if least < LEAST_EIGENVALUE:
        listed = "; ".join(str(c) for c in correlations)
        raise SweepError(
            f"the correlations {listed} contradict each other: their matrix is not positive "
            f"definite, its smallest eigenvalue is {least:.3g}; expected one above 0. Pairs that "
            "are not given have the correlation 0; give theirs, or smaller numbers"
        )
    return np.linalg.cholesky(matrix), columns


def _column(
    name: Any,
    columns: Mapping[str, Collection[int]],
    parameters: Sequence[BoundParameter],
    where: str,
) -> int:
    found = columns.get(name)
    if found is None:
        by_entry = [j for j, p in enumerate(parameters) if p.name == name]
        found = by_entry or None
    if found is None:
        known = ", ".join(p.name for p in parameters)
        raise SweepError(f"{where}: no parameter {name!r}; the parameters are {known}")
    if len(found) != 1:
        entries = ", ".join(parameters[j].name for j in found)
        raise SweepError(f"{where}: {name!r} has several entries; name one of {entries}")
    (j,) = found
    spread = parameters[j].spread
    if isinstance(spread, Category):
        raise SweepError(f"{where}: the words of {name!r} have no order that could be correlated")
    if isinstance(spread, Choice) and list(spread.values) != sorted(spread.values):
        raise SweepError(f"{where}: expected the values of {name!r} in ascending order: {spread}")
    return j


def _split(names: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth = [""], 0
    for sign in names:
        depth += (sign == "[") - (sign == "]")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _where(pair: Any, value: Any) -> str:
    text = ",".join(map(str, pair)) if isinstance(pair, tuple) else str(pair)
    return worded(f"--correlation {text}={value}", f"correlation={{{pair!r}: {value!r}}}")
