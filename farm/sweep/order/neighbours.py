"""Guesses run times from those of the nearest points, and measures how good the guesses are."""

from __future__ import annotations

import numpy as np

from farm.call import Array
from farm.sweep.design.plan import Plan
from farm.sweep.space.parameters import Category, Choice, Integer

NEAREST = 6
"""Points that a guess is a mean of: fewer follow noise, more blur the dependence."""
SMALLEST_DISTANCE = 1e-9
INACTIVE = 0.5
"""The place of all points along a parameter that they do not have."""
EQUAL = 0.05
"""Standard deviation of the logarithms below which run times count as equal: 5 percent."""


def load_scipy() -> None:
    """Import scipy.spatial, which takes up to a second the first time."""
    import scipy.spatial  # noqa: F401  # only loaded


def coordinates(plan: Plan) -> Array:
    """Return the points in the unit cube, where each parameter counts the same."""
    if plan.unit is None or np.any(np.isnan(plan.unit)):  # some points come from a table
        return ranks(plan.theta)
    places = plan.unit.copy()
    # Positions within one value of a choice or one whole number mean nothing.
    kinds = Choice | Category | Integer
    steps = [j for j, p in enumerate(plan.parameters) if isinstance(p.spread, kinds)]
    places[:, steps] = ranks(plan.theta[:, steps])
    places[np.isnan(plan.theta)] = INACTIVE
    return places


def ranks(theta: Array) -> Array:
    """Return each number's rank among the different numbers of its column, from 0 to 1.

    Ranks suit a table whose columns have unknown and uneven scales.
    """
    places = np.empty(theta.shape)
    for j in range(theta.shape[1]):
        different, index = np.unique(theta[:, j], return_inverse=True)
        places[:, j] = index / max(1, len(different) - 1)
    places[np.isnan(theta)] = INACTIVE
    return places


def guesses(known: Array, run_s: Array, points: Array) -> Array:
    """Return the expected run time at `points`: a mean over the nearest of the known points.

    known, points: positions (points, parameters); run_s: positive. The mean is geometric, and
    nearer points weigh more.
    """
    distance, index = _nearest(known, points, min(NEAREST, len(known)))
    return _means(distance, run_s[index])


def left_out(known: Array, run_s: Array) -> Array:
    """Return the guess at each known point from the others; for two or more points."""
    count = min(NEAREST + 1, len(known))
    distance, index = _nearest(known, known, count)
    itself = index == np.arange(len(known))[:, None]
    # Of more equal points than neighbours, the point itself may be missing: the last one goes.
    itself[~itself.any(axis=1), -1] = True
    others = ~itself
    shape = (len(known), count - 1)
    return _means(distance[others].reshape(shape), run_s[index[others]].reshape(shape))


def explained(run_s: Array, guess: Array) -> float:
    """Return the share of the variance of the logarithms of run times that guesses explain.

    0 if the run times are equal: no guess is of use then.
    """
    actual = np.log(run_s)
    if np.std(actual) < EQUAL:
        return 0.0
    return float(1.0 - np.mean((actual - np.log(guess)) ** 2) / np.var(actual))


def correlated(run_s: Array, cost: Array) -> float:
    """Return the same share for costs of any unit and power: a squared correlation.

    0 if the correlation is negative or the costs are equal, 1 if the run times are equal.
    """
    actual, given = np.log(run_s), np.log(cost)
    if np.std(actual) < EQUAL:
        return 1.0
    if np.std(given) < EQUAL:
        return 0.0
    return max(0.0, float(np.corrcoef(actual, given)[0, 1])) ** 2


def blended(run_s: Array, known: Array, one: Array, other: Array) -> Array:
    """Return the product of powers of two costs that fits the known run times best.

    run_s: run times of the points `known`; one, other: costs of all points, above 0. Two guesses
    with independent errors are better together; least squares weigh them.
    """
    logs = np.log(np.stack([one, other], axis=1))
    centre = np.mean(logs[known], axis=0)
    actual = np.log(run_s)
    powers, *_ = np.linalg.lstsq(logs[known] - centre, actual - np.mean(actual), rcond=None)
    blend: Array = np.exp((logs - centre) @ np.maximum(powers, 0.0) + np.mean(actual))
    return blend


def _nearest(known: Array, points: Array, count: int) -> tuple[Array, Array]:
    from scipy.spatial import cKDTree

    distance, index = cKDTree(known).query(points, k=count)
    shape = (len(points), count)
    return distance.reshape(shape), index.reshape(shape)


def _means(distance: Array, run_s: Array) -> Array:
    weight = 1.0 / np.maximum(distance, SMALLEST_DISTANCE)
    logs = np.sum(weight * np.log(run_s), axis=1) / np.sum(weight, axis=1)
    means: Array = np.exp(logs)
    return means
