"""Finds the point that maximises an acquisition function, by BoTorch's optimizers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf_mixed_alternating
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from torch import Tensor

from farm.call import Array
from farm.experiment.models.closed import Criterion, graded
from farm.experiment.models.domain import Domain
from farm.experiment.models.normal import DTYPE

MOST_STEPS = 20
MOST_TRIED = 10
"""Points along the line of a step: several are for edges, where a criterion has no gradient."""


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


def climbed(
    graded: Callable[[Array], tuple[Array, Array]], rows: Array, free: Sequence[int], bounds: Array
) -> Array:
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


LEAST_DISTANCE = 1e-3
"""Minimum distance of points in flight, in the unit cube: nearer ones would add no information."""

NEAR = (1.5 * LEAST_DISTANCE) ** 2
"""Squared distance where the penalty begins: greater, so that the edge itself is outside."""

CANDIDATES = 512
RESTARTS = 10
STARTS = 2
CHUNK = 64
"""Points evaluated at once, which bounds the memory."""

POLISH_FROM, POLISH_TO, POLISH_ROUNDS = 0.05, 1e-4, 60
"""Initial and smallest step of a search without gradients, and its maximum rounds."""

WORTHLESS = -1e6
PENALTY = 1e4


@dataclass(frozen=True, slots=True, eq=False)
class BestPosition:
    """point: position (stimuli, d). crowded: no point keeps the minimum distance."""

    point: Array
    value: float
    crowded: bool = False


class OutOfTime(Exception):
    """The search exceeded its time. best: the best row that it has evaluated, and its value."""

    def __init__(self, best: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.best = best


class Apart(AcquisitionFunction):  # type: ignore[misc]  # botorch has no types
    """A criterion of trials, rows (b, 1, stimuli * d), with a penalty for points near `avoid`."""

    X_pending = None

    def __init__(self, criterion: Criterion, avoid: Array, timeout_s: float | None) -> None:
        """avoid: positions (p, stimuli, d). timeout_s: after it, an evaluation raises OutOfTime."""
        super().__init__(model=None)
        self._criterion = criterion
        self._avoid, self._shape = avoid, avoid.shape[1:]
        self._end = None if timeout_s is None else time.monotonic() + timeout_s
        self._best: tuple[Tensor, Tensor] | None = None
        self.met_worthless = False
        """Whether a point had no value: then there may be cliffs, which gradients do not reveal."""

    def forward(self, X: Tensor) -> Tensor:
        points = X.reshape(-1, *self._shape)
        if points.requires_grad:
            points.register_hook(torch.nan_to_num)
        values = torch.cat([self._criterion(part) for part in points.split(CHUNK)])
        self.met_worthless |= not bool(torch.isfinite(values).all())
        values = torch.nan_to_num(values, nan=WORTHLESS, neginf=WORTHLESS)
        if len(self._avoid):
            squared = ((points[:, None] - torch.from_numpy(self._avoid)) ** 2).sum((-1, -2))
            values = values - PENALTY * (1 - squared.amin(-1) / NEAR).clamp_min(0.0)
        self._note(X.detach().numpy(), values.detach().numpy())
        return values

    def graded(self, rows: Array) -> tuple[Array, Array]:
        """Return the values (b,) at rows (b, stimuli * d), and their gradients."""
        points = rows.reshape(-1, *self._shape)
        values, gradients = graded(self._criterion, points)
        self.met_worthless |= not np.isfinite(values).all()
        values = np.nan_to_num(values, nan=WORTHLESS, neginf=WORTHLESS)
        gradients = np.nan_to_num(gradients)
        if len(self._avoid):
            apart = points[:, None] - self._avoid
            squared = (apart**2).sum((-1, -2))
            nearest, each = squared.argmin(-1), np.arange(len(points))
            short = np.maximum(1 - squared[each, nearest] / NEAR, 0.0)
            values = values - PENALTY * short
            push = (short > 0) * (2 * PENALTY / NEAR)
            gradients = gradients + push[:, None, None] * apart[each, nearest]
        self._note(rows[:, None], values)
        return values, gradients.reshape(rows.shape)

    def _note(self, rows: Array, values: Array) -> None:
        """Keep the best row, and end the search if its time is over."""
        if self._end is None or not len(values):
            return
        top = int(values.argmax())
        if self._best is None or values[top] > self._best[1]:
            self._best = torch.tensor(rows[top]), torch.tensor(values[top])
        if time.monotonic() > self._end:
            raise OutOfTime(self._best)


def polished(
    apart: Apart, row: Tensor, value: Tensor, domain: Domain, snapped: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Improve `row` (1, columns) and its value by steps that need no gradients.

    A gradient method stops at a cliff, even if other coordinates are not optimal yet. Steps go
    along the axes and along random directions; if none is better, they are halved. Source: mesh
    adaptive direct search, Audet and Dennis, SIAM J. Optim. 17 (2006).
    """
    lower, upper = domain.bounds
    still = domain.fixed.keys() | domain.discrete.keys() | domain.categorical.keys()
    free = [column for column in range(row.shape[-1]) if column not in still]
    step = POLISH_FROM
    for _ in range(POLISH_ROUNDS if free else 0):
        turned = torch.linalg.qr(torch.randn(len(free), len(free), dtype=DTYPE))[0]
        axes = torch.cat([torch.eye(len(free), dtype=DTYPE), turned])
        moves = torch.zeros(2 * len(axes), row.shape[-1], dtype=DTYPE)
        moves[:, free] = step * torch.cat([axes, -axes])
        rows = snapped((row + moves).clamp(lower, upper)[:, None])
        with torch.no_grad():
            values = apart(rows)
        top = int(values.argmax())
        if values[top] > value:
            row, value = rows[top], values[top]
        elif step > POLISH_TO:
            step /= 2
        else:
            break
    return row, value


def _climb(
    apart: Apart, domain: Domain, starts: Array, snapped: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the best row (1, columns) and its value, where all columns are continuous or fixed."""
    seed = int(torch.randint(2**31, ()))
    spread = domain.sample(CANDIDATES, seed).reshape(CANDIDATES, 1, -1)
    with torch.no_grad():
        given = snapped(torch.as_tensor(starts, dtype=DTYPE).flatten(1)[:, None])
        given = given[apart(given).argsort(descending=True, stable=True)[:STARTS]]
        rows = torch.as_tensor(spread, dtype=DTYPE)
        rows = rows[spread_by_value(apart(rows), RESTARTS - len(given))]
        rows = torch.cat([given, rows])
        free = [column for column in range(rows.shape[-1]) if column not in domain.fixed]
        if free:
            tops = climbed(apart.graded, rows[:, 0].numpy(), free, domain.bounds.numpy())
            rows = snapped(torch.from_numpy(tops)[:, None])
        values = apart(rows)
    top = int(values.argmax())
    return rows[top], values[top]


def search(
    criterion: Criterion,
    domain: Domain,
    *,
    avoid: Array,
    starts: Array,
    timeout_s: float | None = None,
) -> BestPosition:
    """Return the best point found that keeps its distance from `avoid`.

    avoid: positions (p, stimuli, d). starts: candidate starting points, shape (m, stimuli, d).
    timeout_s: after it, the best point so far is returned. Random numbers are torch's own.
    """
    shape = avoid.shape[1:]
    apart = Apart(criterion, np.asarray(avoid, dtype=float), timeout_s)

    def snapped(rows: Tensor) -> Tensor:
        points = domain.snapped(rows.detach().numpy().reshape(-1, *shape))
        return torch.as_tensor(points.reshape(rows.shape), dtype=DTYPE)

    try:
        if domain.discrete or domain.categorical:
            point, value = optimize_acqf_mixed_alternating(
                apart,
                discrete_dims=domain.discrete,
                cat_dims=domain.categorical,
                bounds=domain.bounds,
                q=1,
                num_restarts=RESTARTS,
                raw_samples=CANDIDATES,
                fixed_features=domain.fixed,
                post_processing_func=snapped,
                options={
                    "maxiter_init": MOST_STEPS,
                    "maxiter_alternating": 8,
                    "num_spray_points": 0,
                    "tol": 1e-6,
                },
            )
        else:
            point, value = _climb(apart, domain, starts, snapped)
        if apart.met_worthless:
            point, value = polished(apart, point, value, domain, snapped)
    except OutOfTime as end:
        point, value = end.best
    best = snapped(point).numpy().reshape(shape)
    gaps = np.sqrt(((avoid - best) ** 2).sum((-1, -2)))
    return BestPosition(best, float(value), crowded=bool((gaps < LEAST_DISTANCE).any()))
