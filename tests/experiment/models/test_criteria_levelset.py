"""Looking one observation ahead, against brute force with real observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from farm.call import Array
from farm.experiment.models.criteria import Ahead, look_ahead
from farm.experiment.models.normal import DTYPE

LEVEL = 0.6744897501960817  # probability 0.75
NOISE = 0.3
SEEN = np.random.default_rng(0).random((8, 1))
TARGETS = np.random.default_rng(1).normal(size=8)


def kernel(a: Array, b: Array) -> Array:
    covariance: Array = 4 * np.exp(-0.5 * ((a - b.T) / 0.25) ** 2)
    return covariance


def known(points: Array, x: Array = SEEN, y: Array = TARGETS) -> tuple[Array, Array]:
    """Return mean and covariance of a process of one variable, given eight observations."""
    gain = kernel(points, x) @ np.linalg.inv(kernel(x, x) + NOISE * np.eye(len(x)))
    return 0.2 + gain @ (y - 0.2), kernel(points, points) - gain @ kernel(x, points)


GRID = np.linspace(0, 1, 15)[:, None]
PLACES = np.array([[0.05], [0.4], [0.77], [1.3]])


def ahead(places: Array, points: Array | None = None, *, binary: bool) -> Ahead:
    """Return the effect of observations at the places on the points, by default the places."""
    everything = places if points is None else np.concatenate([places, points])
    mean, covariance = (torch.tensor(part, dtype=DTYPE) for part in known(everything))
    b, variance = len(places), covariance.diagonal()
    noise = None if binary else torch.full((b,), NOISE, dtype=DTYPE)
    if points is None:
        own = variance[:, None]
        return look_ahead(mean, variance, mean[:, None], own, own, LEVEL, noise)
    return look_ahead(
        mean[:b], variance[:b], mean[None, b:], variance[None, b:], covariance[:b, b:], LEVEL, noise
    )


def entropy(p: Array) -> Array:
    h: Array = special.entr(p) + special.entr(1 - p)
    return h


def below_after(place: Array, points: Array) -> tuple[Array, Array]:
    """Return probabilities (q, 2) of being below after a 0 or 1 at the place, and theirs.

    They are integrals over the process at the place: given it, all other points are normal.
    """
    mean, covariance = known(np.concatenate([place[None], points]))
    spread = np.sqrt(covariance[0, 0])
    f = np.linspace(mean[0] - 9 * spread, mean[0] + 9 * spread, 4001)
    density = stats.norm.pdf(f, mean[0], spread) * (f[1] - f[0])
    slope = covariance[1:, 0] / covariance[0, 0]
    left = np.sqrt(np.maximum(np.diag(covariance)[1:] - slope * covariance[0, 1:], 1e-14))
    centre = mean[1:, None] + slope[:, None] * (f - mean[0])
    below = stats.norm.cdf((LEVEL - centre) / left[:, None])
    likelihood = np.stack([special.ndtr(f), special.ndtr(-f)])
    weights = (likelihood * density).sum(1)
    after = np.einsum("qf,kf,f->qk", below, likelihood, density) / weights
    return after, weights


def test_a_yes_or_no_changes_what_brute_force_says() -> None:
    found = ahead(PLACES, GRID, binary=True)
    mean, covariance = known(GRID)
    now = stats.norm.cdf((LEVEL - mean) / np.sqrt(np.diag(covariance)))
    for i, place in enumerate(PLACES):
        after, weights = below_after(place, GRID)
        assert found.after[i].numpy() == pytest.approx(after, abs=2e-5)
        assert found.weights[i].numpy() == pytest.approx(weights, abs=1e-7)
        information = (entropy(now) - entropy(after) @ weights).mean()
        assert float(found.information()[i]) == pytest.approx(information, abs=2e-5)
        change = abs(after.mean(0) - now.mean()) @ weights
        assert float(found.volume_change()[i]) == pytest.approx(change, abs=2e-5)


def test_information_at_the_place_itself() -> None:
    found = ahead(PLACES, binary=True)
    for i, place in enumerate(PLACES):
        after, weights = below_after(place, place[None] + 1e-9)
        now = after @ weights
        information = float((entropy(now) - entropy(after) @ weights)[0])
        assert float(found.information()[i]) == pytest.approx(information, abs=1e-3)


def test_a_number_changes_what_brute_force_says() -> None:
    found = ahead(PLACES, GRID, binary=False)
    z = np.linspace(-7, 7, 281)
    weights = stats.norm.pdf(z) * (z[1] - z[0])
    for i, place in enumerate(PLACES):
        mean, covariance = known(place[None])
        after = []
        for y in mean[0] + z * np.sqrt(covariance[0, 0] + NOISE):
            x = np.concatenate([SEEN, place[None]])
            m, v = known(GRID, x, np.append(TARGETS, y))
            after.append(stats.norm.cdf((LEVEL - m) / np.sqrt(np.diag(v))))
        table = np.array(after).T
        now = found.below[0].numpy()
        information = (entropy(now) - entropy(table) @ weights).mean()
        assert float(found.information()[i]) == pytest.approx(information, abs=1e-4)
        change = abs(table.mean(0) - now.mean()) @ weights
        assert float(found.volume_change()[i]) == pytest.approx(change, rel=0.02)


def test_far_from_everything_nothing_is_learned() -> None:
    for binary in (True, False):
        found = ahead(np.array([[40.0]]), GRID, binary=binary)
        assert float(found.information()) == pytest.approx(0.0, abs=1e-7)
        assert float(found.volume_change()) == pytest.approx(0.0, abs=1e-7)
