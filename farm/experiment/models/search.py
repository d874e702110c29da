"""The best point of a domain, by a criterion: many points looked at, the best of them improved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from farm.call import Array
from farm.experiment.models.domain import Domain
from farm.experiment.models.normal import DTYPE

Criterion = Callable[[Tensor], Tensor]
"""From points (b, stimuli, d) of the unit cube to numbers (b,), the greater the better."""

LEAST_DISTANCE = 3e-3
"""Between points in flight, in the unit cube: nearer ones would tell nothing new."""

CANDIDATES = 512
RESTARTS = 6
MOST_STEPS = 60
MOST_MOVES = 20
APART = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """point: shape (stimuli, d), of the unit cube. crowded: no point keeps the least distance."""

    point: Array
    value: float
    crowded: bool = False


def search(
    criterion: Criterion,
    domain: Domain,
    *,
    seed: int,
    avoid: Array,
    starts: Array,
    chunk: int = 256,
    deadline: float | None = None,
) -> Best:
    """The best point found that keeps its distance from `avoid`.

    avoid: shape (p, stimuli, d). starts: points worth a look, shape (m, stimuli, d).
    chunk: points that are judged at once, which bounds the memory.
    deadline: by time.monotonic(); past it the best point so far is given.
    """
    points = np.concatenate([domain.sample(CANDIDATES, seed), domain.snapped(starts)])
    values = _judged(criterion, points, chunk)
    order = np.argsort(-values, kind="stable")
    points, values = points[order], values[order]
    away = _away(points, avoid)
    if not away.any():
        # Every point that there is is in flight: one of them again.
        return Best(points[0], float(values[0]), crowded=True)
    points, values = points[away], values[away]
    tops = points[_spread(points, RESTARTS)]
    found, judged = [points[:1]], [values[:1]]

    def keep(more: Array) -> None:
        more = more[_away(more, avoid)]
        if len(more):
            found.append(more)
            judged.append(_judged(criterion, more, chunk))

    def best() -> tuple[Array, float]:
        points, values = np.concatenate(found), np.concatenate(judged)
        at = int(np.argmax(values))
        return points[at], float(values[at])

    still = tuple(j for j in domain.discrete if j not in domain.relaxed)
    keep(domain.snapped(_improved(criterion, tops, still + domain.held, deadline)))
    if domain.discrete and not _late(deadline):
        for _ in range(MOST_MOVES):
            here, value = best()
            keep(domain.neighbours(here))
            if best()[1] <= value or _late(deadline):
                break
        everywhere = domain.discrete + domain.held
        if len(everywhere) < len(domain.free):
            keep(domain.snapped(_improved(criterion, best()[0][None], everywhere, deadline)))
    point, value = best()
    return Best(point, value)


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _judged(criterion: Criterion, points: Array, chunk: int) -> Array:
    with torch.no_grad():
        parts = torch.as_tensor(points, dtype=DTYPE).split(chunk)
        values: Array = torch.cat([criterion(part) for part in parts]).numpy()
    return np.nan_to_num(values, nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def _away(points: Array, avoid: Array) -> Array:
    """Which points keep their distance, shape (n,)."""
    if not len(avoid):
        return np.ones(len(points), dtype=bool)
    gaps = points[:, None] - avoid[None]
    far: Array = ((gaps**2).sum((-1, -2)) >= LEAST_DISTANCE**2).all(1)
    return far


def _spread(points: Array, count: int) -> list[int]:
    """The first points that are not close to one another; close ones if there are no others."""
    chosen: list[int] = []
    for i in range(len(points)):
        gaps = points[chosen] - points[i]
        if not chosen or ((gaps**2).sum((-1, -2)) >= APART**2).all():
            chosen.append(i)
        if len(chosen) == count:
            break
    return chosen


def _improved(
    criterion: Criterion, points: Array, still: tuple[int, ...], deadline: float | None
) -> Array:
    """The points moved uphill in the unit cube, the coordinates `still` left as they are."""
    from scipy.optimize import minimize

    lower, upper = np.zeros(points.shape), np.ones(points.shape)
    for j in still:
        lower[..., j] = upper[..., j] = points[..., j]
    start = np.clip(points, lower, upper)
    if _late(deadline) or (lower == upper).all():
        return start
    # A worthless point costs no more than one without a number: the others go on.
    best, least = start, np.full(len(points), np.inf)

    def loss(flat: Array) -> tuple[float, Array]:
        nonlocal best, least
        x = torch.tensor(flat.reshape(points.shape), dtype=DTYPE, requires_grad=True)
        values = -criterion(x)
        (gradient,) = torch.autograd.grad(values.sum(), x)
        now = values.detach().numpy()
        better = now < least
        best = np.where(better[:, None, None], flat.reshape(points.shape), best)
        least = np.where(better, now, least)
        return float(now.sum()), np.nan_to_num(gradient.numpy()).ravel()

    def stop(*_: object) -> None:
        if _late(deadline):
            raise StopIteration

    minimize(
        loss,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(lower.ravel(), upper.ravel(), strict=True)),
        options={"maxiter": MOST_STEPS},
        callback=stop,
    )
    return best
