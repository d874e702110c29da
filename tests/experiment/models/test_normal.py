"""Closed forms of normal variables, against scipy and numerical integration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import integrate, special, stats

if TYPE_CHECKING:
    import torch

    from farm.experiment.models.normal import (
        DTYPE,
        bivariate_cdf,
        entropy,
        nodes,
        owens_t,
        probit_mean,
        probit_variance,
        quantile,
    )


def test_owens_t_is_that_of_scipy() -> None:
    h, a = np.meshgrid(np.linspace(-7, 7, 29), np.linspace(0, 1, 11))
    ours = owens_t(torch.tensor(h), torch.tensor(a)).numpy()
    assert ours == pytest.approx(special.owens_t(h, a), abs=1e-12)


@pytest.mark.parametrize("rho", [-0.97, -0.5, 0.0, 0.3, 0.9, 0.99])
def test_the_bivariate_distribution_is_that_of_scipy(rho: float) -> None:
    pair = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]])
    for h in (-2.5, -0.3, 0.0, 1.7):
        for k in (-1.2, 0.0, 0.4, 3.0):
            ours = bivariate_cdf(*(torch.tensor(v, dtype=DTYPE) for v in (h, k, rho)))
            assert float(ours) == pytest.approx(pair.cdf([h, k]), abs=2e-6)


@pytest.mark.parametrize("mean", [-3.0, -0.4, 0.0, 2.2])
@pytest.mark.parametrize("variance", [1e-6, 0.1, 1.0, 25.0])
def test_moments_of_a_probability_are_those_of_quadrature(mean: float, variance: float) -> None:
    spread = np.sqrt(variance)

    def moment(power: int) -> float:
        def inside(z: float) -> float:
            return float(special.ndtr(mean + spread * z) ** power * stats.norm.pdf(z))

        return float(integrate.quad(inside, -10, 10, epsabs=1e-12, limit=200)[0])

    m, v = torch.tensor(mean, dtype=DTYPE), torch.tensor(variance, dtype=DTYPE)
    assert float(probit_mean(m, v)) == pytest.approx(moment(1), abs=1e-9)
    assert float(probit_variance(m, v)) == pytest.approx(moment(2) - moment(1) ** 2, abs=1e-9)


def test_nodes_have_the_moments_of_the_variable() -> None:
    values, weights = nodes(torch.tensor([2.0], dtype=DTYPE), torch.tensor([9.0], dtype=DTYPE))
    moments = [float((values**power * weights).sum()) for power in range(5)]
    assert moments == pytest.approx([1.0, 2.0, 13.0, 62.0, 475.0])  # of N(2, 9)


def test_quantile_and_entropy() -> None:
    assert quantile(0.975) == pytest.approx(1.959964, abs=1e-6)
    p = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=DTYPE)
    assert entropy(p).tolist() == pytest.approx([0.0, 0.562335, np.log(2), 0.0], abs=1e-6)
