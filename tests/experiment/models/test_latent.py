"""The process against closed forms in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from farm.call import Array
from farm.experiment.models.latent import Anchored, Latent, Prior, log_evidence
from farm.experiment.models.normal import DTYPE

LENGTHS = np.array([0.3, 0.7])
AMPLITUDE, MEAN = 2.5, 0.4


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=DTYPE)


def prior(*, pairs: bool = False) -> Prior:
    return Prior(tensor(LENGTHS), tensor(AMPLITUDE), tensor(MEAN), tensor(0.1), pairs=pairs)


def kernel(a: Array, b: Array) -> Array:
    apart = (a[:, None] - b[None]) / LENGTHS
    covariance: Array = AMPLITUDE * np.exp(-0.5 * (apart**2).sum(-1))
    return covariance


def observed(count: int = 12) -> tuple[Array, Array, Array]:
    """Points, targets and precisions; two points are the same."""
    rng = np.random.default_rng(0)
    x = rng.random((count, 2))
    x[1] = x[0]
    return x, rng.normal(size=count), rng.uniform(0.5, 50, size=count)


def test_mean_and_covariance_are_those_of_the_textbook() -> None:
    x, y, precision = observed()
    new = np.random.default_rng(1).random((5, 2))
    gain = kernel(new, x) @ np.linalg.inv(kernel(x, x) + np.diag(1 / precision))
    mean = MEAN + gain @ (y - MEAN)
    covariance = kernel(new, new) - gain @ kernel(x, new)

    latent = Latent(prior(), tensor(x), tensor(y), tensor(precision))
    found_mean, found_variance = latent.moments(tensor(new))
    assert found_mean.numpy() == pytest.approx(mean)
    assert found_variance.numpy() == pytest.approx(np.diag(covariance))
    joint = latent.posterior(tensor(new))
    assert joint.mean[..., 0].numpy() == pytest.approx(mean)
    assert joint.distribution.covariance_matrix.numpy() == pytest.approx(covariance, abs=1e-7)
    crossed = latent.covariance(tensor(new[:2]), tensor(new), latent.explained(tensor(new)))
    assert crossed.numpy() == pytest.approx(covariance[:2])


def test_evidence_is_the_density_of_the_targets() -> None:
    x, y, precision = observed()
    density = stats.multivariate_normal(np.full(12, MEAN), kernel(x, x) + np.diag(1 / precision))
    ours = log_evidence(prior(), tensor(x), tensor(y), tensor(precision))
    assert float(ours) == pytest.approx(density.logpdf(y))


def test_what_is_believed_leaves_the_mean_and_lowers_the_variance() -> None:
    x, y, precision = observed()
    latent = Latent(prior(), tensor(x), tensor(y), tensor(precision))
    grid = tensor(np.random.default_rng(2).random((20, 2)))
    pending = tensor([[0.2, 0.9], [0.8, 0.1]])
    later = latent.believing(pending, tensor([10.0, 10.0]))
    mean, variance = latent.moments(grid)
    later_mean, later_variance = later.moments(grid)
    assert later_mean.numpy() == pytest.approx(mean.numpy())
    assert (later_variance < variance).all()
    assert float(later.moments(pending)[1].max()) < 0.1


def test_pairs_are_differences_of_utilities() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.random((6, 2)), rng.random((6, 2))
    targets, precision = rng.normal(size=6), np.full(6, 4.0)
    points = np.concatenate([first, second])
    difference = np.hstack([-np.eye(6), np.eye(6)])
    inner = difference @ kernel(points, points) @ difference.T + np.diag(1 / precision)
    new = rng.random((3, 2))
    gain = kernel(new, points) @ difference.T @ np.linalg.inv(inner)
    mean = MEAN + gain @ targets
    covariance = kernel(new, new) - gain @ difference @ kernel(points, new)

    ones = np.ones((6, 1))
    latent = Latent(
        prior(pairs=True), tensor(np.hstack([first, second, ones])), tensor(targets),
        tensor(precision),
    )  # fmt: skip
    singles = tensor(np.hstack([np.zeros((3, 2)), new, np.zeros((3, 1))]))
    found_mean, found_variance = latent.moments(singles)
    assert found_mean.numpy() == pytest.approx(mean)
    assert found_variance.numpy() == pytest.approx(np.diag(covariance))
    comparison = tensor(np.hstack([new[:1], new[1:2], [[1.0]]]))
    found_mean, found_variance = latent.moments(comparison)
    assert float(found_mean) == pytest.approx(mean[1] - mean[0])
    wanted = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert float(found_variance) == pytest.approx(wanted)


def test_anchors_change_nothing_but_the_time() -> None:
    x, y, precision = observed()
    latent = Latent(prior(), tensor(x), tensor(y), tensor(precision))
    anchors = tensor(np.random.default_rng(4).random((3, 2)))
    anchored = Anchored(latent, anchors)
    new = tensor(np.random.default_rng(5).random((7, 2, 2)))
    rows = torch.cat([anchors.expand(7, 3, 2), new], -2)
    for asked in (rows, anchors, new):
        mine, plain = anchored.posterior(asked), latent.posterior(asked)
        assert mine.mean.numpy() == pytest.approx(plain.mean.numpy())
        mine_joint = mine.distribution.covariance_matrix.numpy()
        assert mine_joint == pytest.approx(plain.distribution.covariance_matrix.numpy())
