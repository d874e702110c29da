"""The rows of a user's table as points of a space. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from farm.call import Array
from farm.sweep.design.tables import PointTable
from farm.sweep.errors import SweepError
from farm.sweep.space.binding import BoundParameter
from farm.sweep.space.space import ParameterSpace
from farm.wording import worded


def rows_of(table: PointTable, space: ParameterSpace, source: str) -> tuple[Array, Array]:
    """Return the rows that satisfy the constraints, and the mask of these rows.

    The columns of the table are those of the space. Values of inactive parameters are NaN in the
    result. source: the table, for messages. Raises SweepError for an empty cell of an active one.
    """
    if space.correlations:
        raise SweepError(
            f"a table has its points as they are: {worded('--correlation', 'correlation')} is for "
            "designs with distributions"
        )
    theta = table.rows.astype(np.float64, copy=True)
    active = space.active(theta)
    gaps = np.argwhere(active & np.isnan(theta))
    if len(gaps):
        row, j = (int(k) for k in gaps[0])
        name = space.bound.parameters[j].name
        raise SweepError(
            f"table {source!r}: row {row} has no {name}; expected one in every row"
            + (" where its condition is true" if name in dict(space.when) else "")
        )
    theta[~active] = np.nan
    kept = space.kept(theta)
    if not np.any(kept):
        raise SweepError(
            f"no row of table {source!r} satisfies {' and '.join(space.where)}; nothing to evaluate"
        )
    return theta[kept], kept


def whole_columns(parameters: Sequence[BoundParameter], theta: Array) -> tuple[BoundParameter, ...]:
    """Return the columns, marked as whole where all their numbers are."""
    whole = np.all((theta == np.floor(theta)) | np.isnan(theta), axis=0)
    return tuple(replace(p, whole=bool(w)) for p, w in zip(parameters, whole, strict=True))
