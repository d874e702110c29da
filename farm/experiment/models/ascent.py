"""Climbs from several points at once to the tops of a function with a known gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from torch import Tensor

from farm.call import Array

Graded = Callable[[Array], tuple[Array, Array]]
"""Maps rows (b, columns) to values (b,) and their gradients (b, columns)."""

MOST_STEPS = 20
MOST_TRIED = 10
"""Points along the line of a step: several are for edges of criteria that have no
gradient there.
"""


def spread_by_value(values: Tensor, count: int) -> Tensor:
    """Return `count` indices of values, drawn in favour of great ones; the greatest is among them.

    Weights are those of BoTorch's initialize_q_batch. Random numbers are torch's own.
    """
    spread = values.std()
    weights = torch.ones_like(values)
    if spread > 0 and torch.isfinite(spread):
        weights = torch.exp((values - values.mean()) / spread)
    drawn = torch.multinomial(weights, count)
    top = values.argmax()
    if top not in drawn:
        drawn[-1] = top
    return drawn


def climbed(graded: Graded, rows: Array, free: Sequence[int], bounds: Array) -> Array:
    """Return rows (b, columns) after climbing from each along its columns `free`.

    bounds: of all columns, (2, columns).
    """
    whole = rows.copy()

    def downhill(x: Array, batch_indices: list[int]) -> tuple[Array, Array]:
        some = whole[batch_indices]
        some[:, free] = x
        values, gradients = graded(some)
        return -values, -gradients[:, free]

    found, _, _ = fmin_l_bfgs_b_batched(
        downhill,
        rows[:, free],
        bounds=[*bounds[:, free].T],
        maxiter=MOST_STEPS,
        maxls=MOST_TRIED,
        pass_batch_indices=True,
    )
    whole[:, free] = np.asarray(found)
    return whole
